"""WebDataset shards: the files of an example lie side by side in a tar and share a key.

    0001.jpg 0001.cls 0002.jpg 0002.cls ...

The key is the path up to the first dot of the file's name. The label comes from, in this order: `.cls` (a class
number or name), `.json` (an object with `labels`, `label`, `cls` or `class`; a list makes the set multi-label),
`.txt` (a class name). Examples keep their order.
"""

import json
import os
from collections.abc import Iterator, Sequence

from vit_jax.errors import UsageError
from vit_jax.preparing.labels import Value, numbered_or_named
from vit_jax.preparing.listing import Labels, ListedCatalog, Listing, is_image, split_of

_LABEL_FILES = (b"cls", b"json", b"txt")
_KEYS = ("labels", "label", "cls", "class")


def is_webdataset(listing: Listing) -> bool:
    """Whether an image of the first thousand files has a label file beside it."""
    names = [listing.names[i] for i in range(min(len(listing.names), 1000))]
    keys = {_key(name)[0] for name in names if is_image(name)}
    return any(key in keys and extension in _LABEL_FILES for key, extension in map(_key, names))


def open_webdataset(spec: str, listing: Listing, numbered: Sequence[str] | None) -> ListedCatalog:
    """The examples of a listing of shards.

    Args:
      spec: for messages.
      listing: files, named SHARD/KEY.EXTENSION or SPLIT/SHARD/KEY.EXTENSION.
      numbered: class names by number, where the user gave them.

    Raises:
      UsageError: an image without label or a label without image, a key that is there twice, a label that can't be
        read.
    """
    found: dict[str, tuple[list[int], list[Value | list[Value]]]] = {}
    for key, files in _examples(spec, listing):
        image, label = files.get(b""), None
        for extension in _LABEL_FILES:
            if extension in files:
                label = _label(spec, listing, files[extension], extension)
                break
        if image is None or label is None:
            raise UsageError(
                f"{spec}: {os.fsdecode(key)} has no {'image' if image is None else 'label'}",
                "every key needs an image and one of .cls, .json, .txt",
            )
        split = split_of(key)
        items, labels = found.setdefault(os.fsdecode(split) if split else "all", ([], []))
        items.append(image)
        labels.append(label)
    if not found:
        raise UsageError(f"{spec} holds no images", "give the shards of a WebDataset")
    every = [label for _, labels in found.values() for label in labels]
    multi = any(isinstance(label, list) for label in every)
    rows = [label if isinstance(label, list) else [label] for label in every]
    classes, place = numbered_or_named({value for row in rows for value in row}, numbered, spec)
    splits = {}
    for split, (items, labels) in found.items():
        own = [[place[v] for v in (label if isinstance(label, list) else [label])] for label in labels]
        splits[split] = (items, Labels(own if multi else [row[0] for row in own], multi=multi))
    return ListedCatalog(spec, listing, splits, classes)


def _examples(spec: str, listing: Listing) -> Iterator[tuple[bytes, dict[bytes, int]]]:
    """(key, file extension -> place in the listing) of every example; the image has the extension ''."""
    key, files, seen = None, {}, set()
    for i, name in enumerate(listing.names):
        own, extension = _key(name)
        if own != key:
            if key is not None and files.keys() & {b"", *_LABEL_FILES}:
                yield key, files
            if own in seen:
                raise UsageError(
                    f"{spec} holds {os.fsdecode(own)} twice", "the files of a key must lie side by side"
                )
            seen.add(own)
            key, files = own, {}
        extension = b"" if is_image(name) else extension
        if extension in files:
            raise UsageError(f"{spec} holds two files {os.fsdecode(name)}", "remove one of them")
        files[extension] = i
    if key is not None and files.keys() & {b"", *_LABEL_FILES}:
        yield key, files


def _key(name: bytes) -> tuple[bytes, bytes]:
    """(key, extension) of a file."""
    folder, slash, base = name.rpartition(b"/")
    stem, _, extension = base.partition(b".")
    return folder + slash + stem, extension.lower()


def _label(spec: str, listing: Listing, item: int, extension: bytes) -> Value | list[Value]:
    """The label that a file holds."""
    where = f"{spec}: {os.fsdecode(listing.names[item])}"
    try:
        text = listing.read(item).decode()
        value = json.loads(text) if extension == b"json" else text.strip()
    except ValueError as e:
        raise UsageError(f"{where} can't be read: {e}", "it must be UTF-8 text with a label") from e
    if extension == b"json":
        keys = [key for key in _KEYS if isinstance(value, dict) and key in value]
        if not keys:
            there = ", ".join(value) if isinstance(value, dict) else type(value).__name__
            raise UsageError(f"{where} has no label: {there}", f"it needs one of {', '.join(_KEYS)}")
        value = value[keys[0]]
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(v, int | str) and not isinstance(v, bool) and v != "" for v in rows):
        raise UsageError(f"{where} has the label {value!r}", "give class names or numbers")
    return value
