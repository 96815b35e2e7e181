"""The stored form of a data set: ArrayRecord shards and a manifest (`source_arrayrecord` reads it).

    ROOT/manifest.json
    ROOT/SPLIT/00000-of-00008.array_record

A record is a msgpack map:
  image  bytes of the image file as it was, or raw pixels, uint8
  shape  [H, W, C] for raw pixels, else absent
  label  class index, or a list of class indices in a multi-label set
  name   where the example came from

Of every split the manifest has `count`, `class_counts`, `multi_label`, and of every shard `file` and `count`; from
`prepare` also `bytes` and `sha256`. `order` says how examples lie in the shards: "dealt" (example i in shard
i % shards) or "contiguous" (one shard after the other). Version 1 had no `order`: dealt.

The manifest is written last; a folder without one is an unfinished copy.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence

import msgpack
import numpy as np
from array_record.python import array_record_module

from vit_jax.data.source import Example
from vit_jax.errors import UsageError

FORMAT = "vit_jax.arrayrecord"
VERSION = 2
MANIFEST = "manifest.json"
DEALT, CONTIGUOUS = "dealt", "contiguous"
# One record per group: single examples are read alone. Images are compressed already. With these options equal
# records give equal files (`max_parallelism` is what array_record would choose by itself).
WRITER_OPTIONS = "group_size:1,uncompressed,max_parallelism:1"


def encode_record(example: Example) -> bytes:
    """An example as a record. Multi-hot labels must hold only 0 and 1."""
    record: dict[str, object] = {"name": example.name}
    if isinstance(example.image, bytes):
        record["image"] = example.image
    else:
        image = example.image if example.image.ndim == 3 else example.image[:, :, None]
        record["image"], record["shape"] = (
            image.astype(np.uint8, casting="equiv").tobytes(),
            list(image.shape),
        )
    if isinstance(example.label, np.ndarray) and example.label.ndim == 1:
        record["label"] = np.flatnonzero(example.label).tolist()
    else:
        record["label"] = int(example.label)
    return msgpack.packb(record, unicode_errors="surrogateescape")  # names of files are any bytes


def decode_record(data: bytes) -> tuple[bytes | np.ndarray, int | list[int], str]:
    """(image, own class index or indices, name) of a record."""
    record = msgpack.unpackb(data, unicode_errors="surrogateescape")
    image = record["image"]
    if "shape" in record:
        image = np.frombuffer(image, np.uint8).reshape(record["shape"])
    return image, record["label"], record["name"]


def shard_name(index: int, num_shards: int) -> str:
    """The file of a shard, in the folder of its split."""
    return f"{index:05d}-of-{num_shards:05d}.array_record"


def write_split(
    root: str, split: str, examples: Iterable[Example], *, num_classes: int, num_shards: int
) -> dict:
    """Writes a split's shards; one pass, any number of examples.

    Args:
      root: folder to write to; made if need be.
      split: its name.
      examples: in the order in which they shall be read back; consumed once.
      num_classes: of the class map which labels index.
      num_shards: of shards. Example i goes to shard i % num_shards.

    Returns:
      the split's entry for `write_manifest`.
    """
    folder = os.path.join(root, split)
    os.makedirs(folder, exist_ok=True)
    names = [shard_name(i, num_shards) for i in range(num_shards)]
    writers = [
        array_record_module.ArrayRecordWriter(os.path.join(folder, name), WRITER_OPTIONS) for name in names
    ]
    counts, class_counts = [0] * num_shards, np.zeros(num_classes, np.int64)
    multi_label = False
    try:
        for i, example in enumerate(examples):
            writers[i % num_shards].write(encode_record(example))
            counts[i % num_shards] += 1
            if isinstance(example.label, np.ndarray) and example.label.ndim == 1:
                multi_label = True
                class_counts += example.label.astype(np.int64)
            else:
                class_counts[int(example.label)] += 1
    finally:
        for writer in writers:
            writer.close()
    return {
        "count": sum(counts),
        "order": DEALT,
        "shards": [{"file": name, "count": count} for name, count in zip(names, counts, strict=True)],
        "class_counts": class_counts.tolist(),
        "multi_label": multi_label,
    }


def write_manifest(
    root: str,
    classes: Sequence[str],
    splits: Mapping[str, dict],
    made_from: Mapping[str, object] | None = None,
) -> None:
    """Completes a data set.

    Args:
      root: its folder.
      classes: names in label order.
      splits: name -> what `write_split` returned.
      made_from: what `prepare` notes of the source and its options.
    """
    manifest = {"format": FORMAT, "version": VERSION, "classes": list(classes), "splits": dict(splits)}
    if made_from is not None:
        manifest["made_from"] = dict(made_from)
    path = os.path.join(root, MANIFEST)
    with open(path + ".tmp", "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(manifest, file, ensure_ascii=False, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def read_manifest(root: str) -> dict:
    """The manifest of a data set.

    Raises:
      UsageError: none there, unreadable, or of another format.
    """
    path = os.path.join(root, MANIFEST)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            manifest = json.load(file)
    except FileNotFoundError:
        raise UsageError(
            f"arrayrecord:{root} has no {MANIFEST}",
            f"write the folder with: python -m vit_jax.prepare SOURCE {root}",
        ) from None
    except (OSError, ValueError) as e:
        raise UsageError(f"{path} can't be read: {e}", "prepare the data set again") from e
    known = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    if not known or manifest.get("version") not in (1, VERSION):
        raise UsageError(
            f"{path} isn't a manifest of {FORMAT} version {VERSION}", "prepare the data set again"
        )
    return manifest
