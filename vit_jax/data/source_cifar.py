"""`cifar10:FOLDER` and `cifar100:FOLDER`: the binary version of CIFAR, as unpacked.

CIFAR-10 is data_batch_1.bin ... data_batch_5.bin and test_batch.bin, CIFAR-100 train.bin and test.bin; the class
names lie beside them. A record is the label (CIFAR-100: the coarse, then the fine one, which counts), then 32 x 32
values each of red, green and blue. The Python version is pickled, which could run any code, and isn't read.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.data.source import Catalog, ClassMap, Source
from vit_jax.data.source_memory import ArraySource
from vit_jax.errors import UsageError

_SIDE = 32


class _Layout(NamedTuple):
    """Files of each split, the file of class names, bytes before a record's pixels (the last is the label)."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    num_classes: int
    label_bytes: int


_LAYOUTS = {
    "cifar10": _Layout(
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",), "batches.meta.txt", 10, 1
    ),
    "cifar100": _Layout(("train.bin",), ("test.bin",), "fine_label_names.txt", 100, 2),
}


class _CifarCatalog(Catalog):
    """Images uint8 [32, 32, 3] of `train` and `test`, held in memory."""

    kind: str
    splits = ("train", "test")

    def __init__(self, location: str) -> None:
        self._layout = _LAYOUTS[self.kind]
        self.root = os.path.expanduser(location)
        wanted = (*self._layout.train, *self._layout.test, self._layout.names)
        missing = [name for name in wanted if not os.path.isfile(os.path.join(self.root, name))]
        if missing:
            raise UsageError(
                f"{self.kind}:{location} lacks {', '.join(missing)}",
                "unpack the binary version (the Python version is pickled), or give folder:PATH of images",
            )

    def open(self, split: str, classes: Sequence[str] | None) -> Source:
        layout, spec = self._layout, f"{self.kind}:{self.root}"
        with open(os.path.join(self.root, layout.names), encoding="utf-8") as file:
            own = [line.strip() for line in file if line.strip()]
        if len(own) != layout.num_classes:
            raise UsageError(
                f"{layout.names} of {spec} names {len(own)} classes, not {layout.num_classes}",
                "fetch it again",
            )
        parts = [self._read(name) for name in getattr(layout, split)]
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return ArraySource(spec, split, images, labels, ClassMap(own, classes, f"{spec}@{split}"))

    def _read(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        path, start = os.path.join(self.root, name), self._layout.label_bytes
        data, size = np.fromfile(path, np.uint8), start + 3 * _SIDE**2
        if not data.size or data.size % size:
            raise UsageError(
                f"{path} has {data.size} bytes, no multiple of {size}", "it is cut off: fetch it again"
            )
        records = data.reshape(-1, size)
        labels = records[:, start - 1].astype(np.int64)
        if labels.max() >= self._layout.num_classes:
            raise UsageError(
                f"{path} holds the label {labels.max()}, its classes are 0 to {self._layout.num_classes - 1}",
                f"give the folder of {self.kind}",
            )
        images = records[:, start:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), labels


class Cifar10Catalog(_CifarCatalog):
    """10 classes, 50,000 training and 10,000 test images."""

    kind = "cifar10"


class Cifar100Catalog(_CifarCatalog):
    """100 classes, as many images."""

    kind = "cifar100"
