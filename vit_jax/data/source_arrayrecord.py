"""`arrayrecord:FOLDER`: a data set written by `prepare` (its layout: see `arrayrecord`).

Of a folder on an object store the shards of the splits in use are copied to every host, once.
"""

import os
from collections.abc import Sequence

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource

from vit_jax import files
from vit_jax.data.arrayrecord import CONTIGUOUS, DEALT, MANIFEST, decode_record, read_manifest
from vit_jax.data.decode import BadImage
from vit_jax.data.source import Catalog, ClassMap, Example, Source
from vit_jax.errors import UsageError


class ArrayRecordCatalog(Catalog):
    """The splits which the manifest lists."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.root = self._local([MANIFEST])
        self.manifest = read_manifest(self.root)
        self.splits = tuple(self.manifest["splits"])

    def open(self, split: str, classes: Sequence[str] | None) -> Source:
        self._local([f"{split}/{shard['file']}" for shard in self.manifest["splits"][split]["shards"]])
        return ArrayRecordSource(self.root, split, self.manifest, classes)

    def _local(self, names: list[str]) -> str:
        """The folder with these files on this machine: ArrayRecord's reader knows no object store."""
        if files.is_remote(self.location):
            return str(files.mirror(self.location.rstrip("/"), names))
        return os.path.expanduser(self.location)


class ArrayRecordSource(Source):
    """The records of a split, in the order in which they were written. Only offsets stay in memory."""

    def __init__(self, root: str, split: str, manifest: dict, classes: Sequence[str] | None) -> None:
        self.spec, self.split = f"arrayrecord:{root}", split
        entry = manifest["splits"][split]
        where = f"{self.spec}@{split}"
        self._map = ClassMap(manifest["classes"], classes, where)
        self._map.warn_absent(np.asarray(entry["class_counts"]), where)
        self.classes = self._map.classes
        self.multi_label = bool(entry["multi_label"])
        order = entry["order"] if manifest["version"] > 1 else DEALT
        if order not in (DEALT, CONTIGUOUS):
            raise UsageError(f"{where} has the order {order!r}", f"known: {DEALT}, {CONTIGUOUS}")
        self._dealt = order == DEALT
        shards = [s for s in entry["shards"] if s["count"]]
        self._paths = [os.path.join(root, split, s["file"]) for s in shards]
        self._shards = len(entry["shards"])
        self._starts = np.cumsum([0] + [s["count"] for s in shards])
        for path in self._paths:
            if not os.path.isfile(path):
                raise UsageError(f"{where} lacks the shard {path}", "prepare the data set again")
        self._records = ArrayRecordDataSource(self._paths) if self._paths else ()
        if len(self._records) != entry["count"]:
            raise UsageError(
                f"{where} holds {len(self._records)} records, its manifest says {entry['count']}",
                "prepare the data set again",
            )

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = index
        if self._dealt:  # example i was written to shard i % shards, as its record i // shards
            place = int(self._starts[index % self._shards]) + index // self._shards
        try:
            image, own, name = decode_record(self._records[place])
        except (ValueError, KeyError, RuntimeError) as e:
            raise BadImage(f"{self.spec}/{self.split}/{index}", f"damaged record: {e}") from e
        label = self._map.multi_hot(own) if isinstance(own, list) else self._map.label(own)
        return Example(image, label, name)

    def memory_bytes(self) -> int:
        # The readers keep an offset for every record.
        return 8 * len(self) + self._starts.nbytes
