"""What every source of examples offers: random access, one class map, and an estimate of its memory."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vit_jax.errors import UsageError, known_names

_log = logging.getLogger(__name__)
_SHOWN = 5  # names in a message


@dataclass(frozen=True, slots=True)
class Example:
    """One example as stored: nothing is decoded yet.

    image: encoded bytes, or uint8 [H, W, C].
    label: a class index, or a multi-hot float32 [classes].
    name: a path, or the place in the data set such as "digits/train/17".
    """

    image: bytes | np.ndarray
    label: int | np.ndarray
    name: str


class Source(ABC):
    """Examples by index. Safe to read from several threads, picklable for worker processes.

    spec: the data set as named by the user, without the split.
    split: the split expression.
    classes: class names; labels index them.
    """

    spec: str
    split: str
    classes: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Example:
        """The example at 0 <= index < len(self). BadImage when its file can't be read."""

    def name(self, index: int) -> str:
        """The name of an example; read with it where the source doesn't know it otherwise."""
        return self[index].name

    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes of memory which the source keeps for its lifetime, to within some percent."""

    def labels(self) -> np.ndarray:
        """All labels: int32 [n], or float32 [n, classes] when multi-hot.

        Reads every example where the source doesn't know them otherwise.
        """
        labels = [self[i].label for i in range(len(self))]
        return np.asarray(labels, np.float32 if labels and isinstance(labels[0], np.ndarray) else np.int32)


class Catalog(ABC):
    """The splits of one data set: opens them one by one."""

    splits: tuple[str, ...]

    def has(self, split: str) -> bool:
        """Whether `open` will find this split."""
        return split in self.splits

    def remedy(self) -> str:
        """What to write instead of a split which isn't there."""
        return f"it has {', '.join(self.splits)}"

    @abstractmethod
    def open(self, split: str, classes: Sequence[str] | None) -> Source:
        """A split as a source whose labels index `classes` (default: the split's own classes)."""


class SourceView(Source):
    """Ranges of other sources, end to end; keeps a few numbers per range, nothing per example."""

    def __init__(self, spec: str, split: str, ranges: Sequence[tuple[Source, int, int]]) -> None:
        self.spec, self.split, self.classes = spec, split, ranges[0][0].classes
        self._ranges = tuple(ranges)
        self._ends = np.cumsum([stop - start for _, start, stop in ranges])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        source, place = self._place(index)
        return source[place]

    def _place(self, index: int) -> tuple[Source, int]:
        part = int(np.searchsorted(self._ends, index, side="right"))
        source, _, stop = self._ranges[part]
        return source, stop - int(self._ends[part]) + index

    def name(self, index: int) -> str:
        source, place = self._place(index)
        return source.name(place)

    def memory_bytes(self) -> int:
        return sum(s.memory_bytes() for s in {id(s): s for s, _, _ in self._ranges}.values())

    def labels(self) -> np.ndarray:
        whole = {id(s): s.labels() for s, _, _ in self._ranges}
        return np.concatenate([whole[id(s)][start:stop] for s, start, stop in self._ranges])


class SourceSubset(Source):
    """Chosen examples of another source, in the order given."""

    def __init__(self, source: Source, places: np.ndarray) -> None:
        self.spec, self.split, self.classes = source.spec, source.split, source.classes
        self._source, self._places = source, np.asarray(places, np.int64)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._source[int(self._places[index])]

    def name(self, index: int) -> str:
        return self._source.name(int(self._places[index]))

    def memory_bytes(self) -> int:
        return self._source.memory_bytes() + self._places.nbytes

    def labels(self) -> np.ndarray:
        return self._source.labels()[self._places]


class ClassMap:
    """From a data set's own class indices to those of the run, by name.

    Raises:
      UsageError: the run's class map lacks one of `own`.
    """

    def __init__(self, own: Sequence[str], classes: Sequence[str] | None, where: str) -> None:
        self.classes = tuple(own if classes is None else classes)
        place = {name: i for i, name in enumerate(self.classes)}
        if len(place) < len(self.classes):
            raise UsageError(f"the class map of {where} names a class twice", "make class names unique")
        unknown = [name for name in own if name not in place]
        if unknown:
            raise UsageError(
                f"{where} has {shorten(unknown)}, which the class map ({len(place)} classes) lacks",
                f"{known_names(unknown[0], list(self.classes)[:20])}; "
                "the class map comes from the training split",
            )
        self._where = where
        self.table = np.asarray([place[name] for name in own], np.int32)
        self._identical = tuple(own) == self.classes

    def label(self, own: int) -> int:
        """The run's index of an own class index. UsageError when there is no such class."""
        if not 0 <= own < len(self.table):
            raise UsageError(
                f"{self._where} holds the label {own}, its classes are 0 to {len(self.table) - 1}",
                "the split seems to have no labels",
            )
        return int(self.table[own])

    def multi_hot(self, own: Sequence[int] | np.ndarray) -> np.ndarray:
        """Own class indices as multi-hot float32 [classes] of the run."""
        out = np.zeros(len(self.classes), np.float32)
        out[self.table[np.asarray(own, np.int64)]] = 1.0
        return out

    def warn_absent(self, own_counts: np.ndarray, where: str) -> None:
        """Logs one warning that lists the classes without an example; own_counts is [own classes]."""
        counts = np.zeros(len(self.classes), np.int64)
        counts[self.table] = own_counts
        absent = [self.classes[i] for i in np.flatnonzero(counts == 0)]
        if absent:
            _log.warning("%s has no example of %s", where, shorten(absent))


def shorten(names: Sequence[str]) -> str:
    """`class 'a'` or `classes 'a', 'b' and 3 more`, for messages."""
    shown = ", ".join(repr(n) for n in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"class{'' if len(names) == 1 else 'es'} {shown}{more}"
