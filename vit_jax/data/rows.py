"""One row of a batch: read, preprocessed, checked, and its problems turned into values.

`Rows` is the random-access view that grain's threads and processes work through; `Assemble` makes batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import grain
import numpy as np

from vit_jax.data.decode import BadImage
from vit_jax.data.draws import Order, Shuffled
from vit_jax.data.order import example_rng
from vit_jax.errors import RunFailed, UsageError

# Tells the shapes of images and labels before the first batch; more unreadable images in a row than this
# means that the source as a whole can't be read.
_PROBES = 100
# grain counts elements with machine integers; "for ever" stays well inside.
_ENDLESS = 1 << 61


class Source(Protocol):
    """Random access to examples, each with `image`, `label` and `name`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Preprocess(Protocol):
    """Host part of the preprocessing: source image -> uint8 [H, W, C], with random numbers if `random`."""

    random: bool

    def host(self, image: Any, rng: np.random.Generator | None, name: str) -> np.ndarray: ...


class DataError(RunFailed):
    """An example that can't be read during a run: says which, and what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} ({remedy})")
        self.what = what
        self.remedy = remedy


@dataclass(frozen=True)
class Row:
    """One finished row, or the reason why there is none.

    Problems travel as values, not as exceptions: they are raised at the step they belong to, and survive the
    way out of a worker process.
    """

    index: int
    image: np.ndarray | None = None
    label: np.ndarray | None = None
    problem: "Problem | None" = None  # neither image nor problem: padding


@dataclass(frozen=True)
class Problem:
    """Why a row has no image: it can't be read, or (`remedy` not empty) the user must change something."""

    name: str
    what: str
    remedy: str = ""
    cause: BaseException | None = None

    def __getstate__(self) -> dict:
        # Foreign exceptions need not survive pickling; from a worker process the text has to do.
        return {**self.__dict__, "cause": None}


@dataclass(frozen=True)
class Shapes:
    """What every row of a run must look like; found by reading one example, the same on every host."""

    image: tuple[int, ...]
    image_of: str
    label: tuple[int, ...]
    num_classes: int | None

    @property
    def label_dtype(self) -> type:
        return np.float32 if self.label else np.int32

    def check(self, name: str, image: np.ndarray, label: Any) -> Problem | None:
        if image.shape != self.image:
            return Problem(
                name,
                f"images differ in shape after preprocessing: {list(self.image)} ({self.image_of}) "
                f"and {list(image.shape)} ({name})",
                "add resize(...), or another op that fixes the size, to the preprocessing string",
            )
        if np.shape(label) != self.label:
            return Problem(
                name,
                f"labels differ in shape: {list(self.label)} ({self.image_of}) and "
                f"{list(np.shape(label))} ({name})",
                "give every example one class number, or every example a vector of the same length",
            )
        if self.num_classes is None:
            return None
        if self.label and self.label[-1] != self.num_classes:
            return Problem(
                name,
                f"{name} has a label vector of {self.label[-1]} entries, num_classes is {self.num_classes}",
                f"set num_classes={self.label[-1]}",
            )
        if not self.label and not 0 <= int(label) < self.num_classes:
            return Problem(
                name,
                f"{name} has label {int(label)}, outside 0 ... {self.num_classes - 1}",
                "set num_classes to the number of classes of the data",
            )
        return None


def probe(source: Source, preprocess: Preprocess, seed: int | None, num_classes: int | None) -> Shapes:
    """Reads examples from the first on until one is readable; `seed` is None in evaluation.

    Raises:
        UsageError: the source is empty, none of its first 100 images can be read, or preprocessing doesn't end
            in uint8 [H, W, C].
    """
    if len(source) == 0:
        raise UsageError("the data source is empty", "check the path and the split of the source")
    if seed is None and preprocess.random:
        raise UsageError("the evaluation preprocessing has random steps", "leave them to the training string")
    for i in range(min(len(source), _PROBES)):
        try:
            example = source[i]
            image = preprocess.host(
                example.image, None if seed is None else example_rng(seed, 0), example.name
            )
        except (BadImage, OSError) as error:
            last = error
            continue
        if image.dtype != np.uint8 or image.ndim != 3:
            raise UsageError(
                f"preprocessing gave {image.dtype} {list(image.shape)} for {example.name}",
                "the host part must end in a uint8 image [height, width, channels]",
            )
        return Shapes(image.shape, example.name, np.shape(example.label), num_classes)
    raise UsageError(
        f"none of the first {min(len(source), _PROBES)} images can be read; the last: {last}",
        "check the files",
    ) from last


def _why(error: Exception) -> str:
    return error.why if isinstance(error, BadImage) else str(error)


class Rows(grain.MapDataset):
    """Rows of the wanted steps as a random-access sequence; each element is made from its number alone.

    An element is a run of up to `chunk` rows of one batch: grain spends a fixed time on each element, with
    Python's lock held. With W workers grain gives worker w the elements w, w + W, w + 2W, ... They are
    numbered such that these are whole batches: batch k is made by worker k % W.
    """

    def __init__(
        self,
        source: Source,
        preprocess: Preprocess,
        shapes: Shapes,
        *,
        seed: int | None,
        global_batch: int,
        rows: np.ndarray,
        start_step: int,
        num_steps: int | None,
        num_workers: int,
        chunk: int,
        order: Order | None = None,
    ) -> None:
        super().__init__()
        rows = np.asarray(rows, np.int64)
        if rows.ndim != 1 or not rows.size or rows.min() < 0 or rows.max() >= global_batch:
            raise ValueError(f"rows must be row numbers below {global_batch}, got {rows}")
        self._source = source
        self._preprocess = preprocess
        self._shapes = shapes
        self._random = preprocess.random
        self._seed = seed  # None: evaluation, in the source's own order and without random numbers
        self._order = Shuffled(len(source)) if order is None else order
        self._global_batch = global_batch
        self._rows = rows
        self._start_step = start_step
        self._lanes = max(1, num_workers)
        self.chunk = chunk
        self.elements_per_batch = -(-len(rows) // chunk)
        per_round = self._lanes * self.elements_per_batch
        rounds = _ENDLESS // per_round if num_steps is None else -(-num_steps // self._lanes)
        self._length = rounds * per_round
        self._indices_of = lru_cache(maxsize=64)(self._compute_indices)

    def __getstate__(self) -> dict:
        state = self.__dict__.copy()
        del state["_indices_of"]
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._indices_of = lru_cache(maxsize=64)(self._compute_indices)

    def __len__(self) -> int:
        return self._length

    def _compute_indices(self, step: int) -> np.ndarray:
        """int64 [b]: example of each local row, -1 beyond the end of an evaluation."""
        position = step * self._global_batch + self._rows
        n = len(self._source)
        if self._seed is None:
            return np.where(position < n, position, -1)
        return self._order.indices(self._seed, position)

    def __getitem__(self, element: int | slice) -> Any:
        if isinstance(element, slice):
            return self.slice(element)
        per_lane, lane = divmod(element, self._lanes)
        batch, part = divmod(per_lane, self.elements_per_batch)
        step = self._start_step + batch * self._lanes + lane
        indices = self._indices_of(step)
        first = part * self.chunk
        rows = range(first, min(first + self.chunk, len(indices)))
        return [
            self._make(int(indices[row]), step * self._global_batch + int(self._rows[row])) for row in rows
        ]

    def _make(self, index: int, position: int) -> Row:
        if index < 0:
            return Row(-1)
        name = f"example {index}"
        try:
            example = self._source[index]
            name = example.name
            rng = example_rng(self._seed, position) if self._random else None
            image = self._preprocess.host(example.image, rng, name)
        except (BadImage, OSError) as error:
            # A source that can't open a file has no example to name yet, but the error knows.
            name = error.name if isinstance(error, BadImage) else error.filename or name
            return Row(index, problem=Problem(name, _why(error), cause=error))
        except UsageError as error:
            return Row(index, problem=Problem(name, error.what, error.remedy))
        problem = self._shapes.check(name, image, example.label)
        if problem is not None:
            return Row(index, problem=problem)
        return Row(index, image, np.asarray(example.label, self._shapes.label_dtype))


@dataclass(frozen=True)
class Problems:
    found: list[Problem]


class Assemble:
    """The elements of one batch -> host batch, each array allocated once and each image copied once."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes

    def __call__(self, elements: Sequence[list[Row]]) -> dict[str, Any]:
        rows = [row for element in elements for row in element]
        b, shapes = len(rows), self._shapes
        # A fresh allocation per batch: jax may keep using the memory after the transfer was asked for.
        image = np.empty((b, *shapes.image), np.uint8)
        label = np.zeros((b, *shapes.label), shapes.label_dtype)
        mask = np.zeros(b, np.float32)
        index = np.empty(b, np.int64)
        problems = []
        for i, row in enumerate(rows):
            index[i] = row.index
            if row.image is None:
                image[i] = 0
                if row.problem is not None:
                    problems.append(row.problem)
            else:
                image[i] = row.image
                label[i] = row.label
                mask[i] = 1.0
        # One opaque object: grain must not look into it.
        return {"image": image, "label": label, "mask": mask, "index": index, "problems": Problems(problems)}
