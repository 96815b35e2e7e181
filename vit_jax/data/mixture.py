"""Weighted mixtures of data sets: `data.mixture = (("folder:a@train", 0.7), ("folder:b@train", 0.3))`.

Examples are numbered end to end, first those of the first source; `draws.Mixed` says which stands where. An epoch,
where a duration is given in epochs, is as many draws as all sources have examples together: with weights that are
not in proportion to the sizes, a small source is seen more often than once in it and a large one less.

Classes merge by name: those of the first source in their order, then those that the second adds in its order, and
so on. So one more source at the end leaves the numbers of all classes before as they are.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from vit_jax.data.draws import Mixed, shares_of
from vit_jax.data.rows import Shapes
from vit_jax.data.source import ClassMap, Example, Source
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError


class Relabelled(Source):
    """Another source with its labels mapped by name to more classes."""

    def __init__(self, source: Source, classes: Sequence[str]) -> None:
        self.spec, self.split, self.classes = source.spec, source.split, tuple(classes)
        self._source = source
        self._map = ClassMap(source.classes, classes, f"{source.spec}@{source.split}")

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Example:
        example = self._source[index]
        return Example(example.image, self._relabel(example.label), example.name)

    def _relabel(self, label: Any) -> Any:
        if np.ndim(label) == 0:
            return self._map.label(int(label))
        out = np.zeros(len(self.classes), np.float32)
        out[self._map.table] = label
        return out

    def name(self, index: int) -> str:
        return self._source.name(index)

    def memory_bytes(self) -> int:
        return self._source.memory_bytes()

    def labels(self) -> np.ndarray:
        labels = self._source.labels()
        if labels.ndim == 1:
            return self._map.table[labels]
        out = np.zeros((len(labels), len(self.classes)), np.float32)
        out[:, self._map.table] = labels
        return out


class Mixture(Source):
    """Sources end to end with one class map.

    Attributes:
      parts: the sources; shares: of the draws, adding up to 1.
    """

    def __init__(self, sources: Sequence[Source], shares: Sequence[Fraction]) -> None:
        self.classes = tuple(dict.fromkeys(name for source in sources for name in source.classes))
        self.parts = tuple(Relabelled(source, self.classes) for source in sources)
        self.shares = tuple(shares)
        self.spec, self.split = "mixture", " + ".join(f"{s.spec}@{s.split}" for s in sources)
        self._ends = np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def place(self, index: int) -> tuple[int, int]:
        """Which source an example is of, and its place there."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        return number, index - int(self._ends[number]) + len(self.parts[number])

    def __getitem__(self, index: int) -> Example:
        number, place = self.place(index)
        return self.parts[number][place]

    def name(self, index: int) -> str:
        number, place = self.place(index)
        return self.parts[number].name(place)

    def memory_bytes(self) -> int:
        return sum(part.memory_bytes() for part in self.parts)

    def labels(self) -> np.ndarray:
        return np.concatenate([part.labels() for part in self.parts])

    def order(self) -> Mixed:
        """Of the draws."""
        return Mixed(tuple(len(part) for part in self.parts), self.shares)

    def describe(self) -> str:
        """What a log says: sizes, shares, passes over each source in an epoch, and merged classes."""
        parts = [
            f"{part.spec}@{part.split} {len(part)} images, {100 * float(share):.4g} % of the draws, "
            f"{float(share) * len(self) / len(part):.4g} passes in an epoch"
            for part, share in zip(self.parts, self.shares, strict=True)
        ]
        return f"{len(self)} ({'; '.join(parts)})"


def open_mixture(pairs: Sequence[Sequence[Any]]) -> Mixture:
    """Opens the sources of `data.mixture`; a spec without a split means `train`.

    Raises:
      UsageError: an entry that is no (SOURCE, weight), or what `open_source` refuses.
    """
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise UsageError(f"data.mixture has {pair!r}", "write (('SOURCE@SPLIT', weight), ...)")
    shares = shares_of([weight for _, weight in pairs])
    return Mixture([open_source(spec, default_split="train") for spec, _ in pairs], shares)


def common_shapes(mixture: Mixture, found: Sequence[Shapes]) -> Shapes:
    """What the rows of all sources look like, given those of each.

    Raises:
      UsageError: images of different sizes, or class numbers in one source and label vectors in another.
    """
    first, name = found[0], f"{mixture.parts[0].spec}@{mixture.parts[0].split}"
    for part, shapes in zip(mixture.parts, found, strict=True):
        if shapes.image != first.image:
            raise UsageError(
                f"data.preprocess_train gives images {list(first.image)} for {name} and {list(shapes.image)} "
                f"for {part.spec}@{part.split}",
                "add a resize or crop to it",
            )
        if shapes.label != first.label:
            kinds = {True: "label vectors", False: "one class number per image"}
            raise UsageError(
                f"data.mixture: {name} has {kinds[bool(first.label)]}, {part.spec}@{part.split} has "
                f"{kinds[bool(shapes.label)]}",
                "mix sources of one kind",
            )
    return first
