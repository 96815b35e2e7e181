"""Named files that can be read at random, wherever they lie; and examples made of them.

Millions of files: names live in one bytes object, everything else in numpy arrays.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from vit_jax.data import tree
from vit_jax.data.source import Catalog, ClassMap, Example, Source
from vit_jax.data.source_folder import EXTENSIONS, SPLIT_NAMES, image_files
from vit_jax.errors import UsageError

_EXTENSIONS = frozenset(e.encode() for e in EXTENSIONS)
_SPLITS = frozenset(name.encode() for name in SPLIT_NAMES)


class Names(Sequence[bytes]):
    """Byte strings in one block."""

    def __init__(self, names: Iterable[bytes]) -> None:
        names = list(names)
        self._blob = b"".join(names)
        self._ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:
        return self._blob[int(self._ends[index - 1]) if index else 0 : int(self._ends[index])]


class Listing(Protocol):
    """Files by name, relative to the root of a data set.

    names: of all files.
    """

    names: Names

    def read(self, index: int) -> bytes:
        """The content of a file. Raises BadImage where that can't be had."""
        ...


class FolderListing:
    """The images below a folder, sorted by name."""

    def __init__(self, root: str) -> None:
        """UsageError: there is none."""
        if not tree.is_folder(root):
            raise UsageError(f"{root}: no such folder", "check the path")
        start = len(os.fsencode(root).rstrip(b"/")) + 1
        self._root = os.fsencode(root)
        self.names = Names(os.fsencode(path)[start:] for path in image_files(root))

    def read(self, index: int) -> bytes:
        return tree.read_file(os.path.join(self._root, self.names[index]))


def is_image(name: bytes) -> bool:
    """By its extension."""
    return os.path.splitext(name)[1].lower() in _EXTENSIONS


def split_of(name: bytes) -> bytes:
    """The split whose folder a file lies in; empty: none."""
    first, slash, _ = name.partition(b"/")
    return first if slash and first.lower() in _SPLITS else b""


class Labels:
    """Class indices of examples: one each, or any number each.

    Multi-label sets of many classes take memory for the labels that are set alone.
    """

    def __init__(self, labels: Sequence[int] | Sequence[Sequence[int]], *, multi: bool) -> None:
        self.multi = multi
        if multi:
            self._ends = np.cumsum([len(row) for row in labels], dtype=np.int64)
            self._flat = np.asarray([i for row in labels for i in row], np.int32)
        else:
            self._flat = np.asarray(labels, np.int32)

    def __getitem__(self, index: int) -> int | np.ndarray:
        """An index, or indices int32 [any]."""
        if not self.multi:
            return int(self._flat[index])
        return self._flat[int(self._ends[index - 1]) if index else 0 : int(self._ends[index])]

    def digest(self) -> str:
        """Of all of them."""
        digest = hashlib.sha256(self._flat.astype("<i4").tobytes())
        if self.multi:
            digest.update(self._ends.astype("<i8").tobytes())
        return digest.hexdigest()

    def counts(self, num_classes: int) -> np.ndarray:
        """How often each class is set, int64 [classes]."""
        return np.bincount(self._flat, minlength=num_classes)


class ListedSource(Source):
    """Examples whose images are files of a listing."""

    def __init__(
        self,
        spec: str,
        split: str,
        listing: Listing,
        items: Sequence[int],
        labels: Labels,
        class_map: ClassMap,
    ) -> None:
        """items: files of the listing, in the order of the examples; labels: own class indices."""
        self.spec, self.split, self.classes = spec, split, class_map.classes
        self._listing, self._items = listing, np.asarray(items, np.int64)
        self._labels, self._map = labels, class_map

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        own = self._labels[index]
        label = self._map.multi_hot(own) if isinstance(own, np.ndarray) else self._map.label(own)
        return Example(self._listing.read(int(self._items[index])), label, self.name(index))

    def name(self, index: int) -> str:
        return os.fsdecode(self._listing.names[int(self._items[index])])

    def memory_bytes(self) -> int:
        return self._items.nbytes

    def labels(self) -> np.ndarray:
        if self._labels.multi:
            return super().labels()
        return self._map.table[self._labels._flat]


class ListedCatalog(Catalog):
    """Splits of a listing whose labels are known.

    by_class: the classes were found as folders.
    digest: of all labels.
    """

    def __init__(
        self, spec: str, listing: Listing, splits: dict[str, tuple[list[int], Labels]], classes: Sequence[str],
        *, by_class: bool = False,
    ) -> None:  # fmt: skip
        """splits: name -> (files of the listing, own class indices); classes: own names."""
        self._spec, self._listing, self._own, self._classes = spec, listing, splits, tuple(classes)
        self.splits = tuple(splits)
        self.by_class = by_class
        self.digest = hashlib.sha256(
            "".join(labels.digest() for _, labels in splits.values()).encode()
        ).hexdigest()

    def open(self, split: str, classes: Sequence[str] | None) -> Source:
        items, labels = self._own[split]
        where = f"{self._spec}@{split}"
        own, table = self._classes, None
        if self.by_class and classes is not None:
            # A class that this split has no image of may be unknown to the split that gave the classes.
            known, counts = set(classes), labels.counts(len(own))
            kept = [i for i, name in enumerate(own) if name in known or counts[i]]
            table = np.full(len(own), -1, np.int64)
            table[kept] = np.arange(len(kept))
            own = tuple(own[i] for i in kept)
        if table is not None:
            labels = Labels(table[labels._flat].tolist(), multi=False)
        return ListedSource(self._spec, split, self._listing, items, labels, ClassMap(own, classes, where))


def by_class_folder(spec: str, listing: Listing) -> ListedCatalog:
    """Classes by the first folder, or the first below SPLIT/; in the order of their names, as `folder:` has them.

    Raises:
      UsageError: no image, one outside of class folders, or two of one name.
    """
    found: dict[bytes, dict[bytes, list[tuple[bytes, int]]]] = {}
    for i, name in enumerate(listing.names):
        if not is_image(name):
            continue
        split = split_of(name)
        folder, slash, rest = name[len(split) + 1 if split else 0 :].partition(b"/")
        if not slash:
            raise UsageError(
                f"{spec}: {os.fsdecode(name)} lies outside of class folders",
                "images belong in SPLIT/CLASS/ or CLASS/, or give their classes with --labels=FILE",
            )
        found.setdefault(split or b"all", {}).setdefault(folder, []).append((rest, i))
    if not found:
        raise UsageError(f"no images in {spec}", f"images are files ending in {' '.join(EXTENSIONS)}")
    if len(found) > 1:
        found.pop(b"all", None)  # beside the splits, as in a folder
    own = sorted({folder for classes in found.values() for folder in classes})
    place = {folder: k for k, folder in enumerate(own)}
    splits = {}
    for split in sorted(found):
        items, labels = [], []
        for folder in sorted(found[split]):
            files = sorted(found[split][folder])
            for (one, _), (other, _) in itertools.pairwise(files):
                if one == other:
                    raise UsageError(
                        f"{spec} holds {os.fsdecode(folder + b'/' + one)} twice", "remove one of them"
                    )
            items += [i for _, i in files]
            labels += [place[folder]] * len(files)
        splits[os.fsdecode(split)] = (items, Labels(labels, multi=False))
    return ListedCatalog(spec, listing, splits, [os.fsdecode(folder) for folder in own], by_class=True)
