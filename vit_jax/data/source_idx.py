"""`idx:FOLDER`: MNIST-style IDX files, compressed or not, by their usual names.

`train-images-idx3-ubyte[.gz]`, `train-labels-idx1-ubyte[.gz]`, and `t10k-...` for `test`; the form with a
dot (`train-images.idx3-ubyte`) too. Files hold no class names: classes are "0" to the largest label.
"""

import gzip
import math
import os
import struct
from collections.abc import Sequence

import numpy as np

from vit_jax.data.source import Catalog, ClassMap, Source
from vit_jax.data.source_memory import ArraySource
from vit_jax.errors import UsageError

_PREFIX = {"train": "train", "test": "t10k"}
_UBYTE = 0x08


class IdxCatalog(Catalog):
    """The splits whose two files lie in the folder."""

    def __init__(self, location: str) -> None:
        self.root = os.path.expanduser(location)
        if not os.path.isdir(self.root):
            raise UsageError(f"idx:{location}: no such folder", "give the folder that holds the IDX files")
        self.splits = tuple(s for s in _PREFIX if self._find(s, "images") and self._find(s, "labels"))
        if not self.splits:
            names = [self._names(s, what)[0] for s in _PREFIX for what in ("images", "labels")]
            raise UsageError(f"no IDX files in {self.root}", f"looked for {', '.join(names)}, also with .gz")

    def open(self, split: str, classes: Sequence[str] | None) -> Source:
        images = read_idx(self._find(split, "images"))
        labels = read_idx(self._find(split, "labels"))
        if images.ndim not in (3, 4) or labels.shape != images.shape[:1]:
            raise UsageError(
                f"idx:{self.root}@{split}: images {list(images.shape)}, labels {list(labels.shape)}",
                "the files must hold [n, H, W] or [n, H, W, C] images and n labels",
            )
        if images.ndim == 3:
            images = images[..., None]
        own = [str(i) for i in range(int(labels.max()) + 1 if labels.size else 0)]
        class_map = ClassMap(own, classes, f"idx:{self.root}@{split}")
        return ArraySource(f"idx:{self.root}", split, images, labels, class_map)

    def _names(self, split: str, what: str) -> list[str]:
        kind = "idx3-ubyte" if what == "images" else "idx1-ubyte"
        return [f"{_PREFIX[split]}-{what}-{kind}", f"{_PREFIX[split]}-{what}.{kind}"]

    def _find(self, split: str, what: str) -> str | None:
        """Path of a split's file, None if it isn't there."""
        for name in self._names(split, what):
            for path in (os.path.join(self.root, name), os.path.join(self.root, name + ".gz")):
                if os.path.isfile(path):
                    return path
        return None


def read_idx(path: str) -> np.ndarray:
    """Reads one IDX file of bytes: uint8 of the shape it states.

    Raises:
      UsageError: not such a file, or shorter or longer than it states.
    """
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError) as e:
        raise UsageError(f"{path} can't be read: {e}", "fetch the file again") from e
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UBYTE or len(data) < 4 + 4 * data[3]:
        raise UsageError(f"{path} isn't an IDX file of bytes", "its first three bytes must be 0, 0, 8")
    shape = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if values.size != math.prod(shape):
        raise UsageError(
            f"{path} states shape {list(shape)} but holds {values.size} bytes", "fetch the file again"
        )
    return values.reshape(shape)
