"""`digits`: the 1797 handwritten digits which scikit-learn ships; needs no file and no network."""

from collections.abc import Sequence

import numpy as np

from vit_jax.data.source import Catalog, ClassMap, Source
from vit_jax.data.source_memory import ArraySource

_TRAIN = 1437


class DigitsCatalog(Catalog):
    """Images uint8 [8, 8, 1]; a fixed permutation makes 1437 `train` and 360 `test` examples."""

    splits = ("train", "test")

    def __init__(self, location: str) -> None:
        del location

    def open(self, split: str, classes: Sequence[str] | None) -> Source:
        from sklearn.datasets import load_digits  # slow to import

        data = load_digits()
        order = np.random.default_rng(0).permutation(len(data.target))
        part = order[:_TRAIN] if split == "train" else order[_TRAIN:]
        # The originals count 0..16.
        images = np.rint(data.images[part] * (255 / 16)).astype(np.uint8)[..., None]
        names = [str(name) for name in data.target_names]
        class_map = ClassMap(names, classes, f"digits@{split}")
        return ArraySource("digits", split, images, data.target[part], class_map)
