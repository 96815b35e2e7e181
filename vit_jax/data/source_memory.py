"""A source whose examples are arrays in memory."""

import numpy as np

from vit_jax.data.source import ClassMap, Example, Source


class ArraySource(Source):
    """Images uint8 [n, H, W, C] with the data set's own class indices [n]."""

    def __init__(
        self, spec: str, split: str, images: np.ndarray, own_labels: np.ndarray, class_map: ClassMap
    ) -> None:
        self.spec, self.split, self.classes = spec, split, class_map.classes
        self._images = images
        self._labels = class_map.table[own_labels]
        class_map.warn_absent(np.bincount(own_labels, minlength=len(class_map.table)), f"{spec}@{split}")

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Example(self._images[index], int(self._labels[index]), f"{self.spec}/{self.split}/{index}")

    def memory_bytes(self) -> int:
        return self._images.nbytes + self._labels.nbytes

    def labels(self) -> np.ndarray:
        return self._labels.copy()
