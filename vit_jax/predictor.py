"""Class probabilities of images from a trained model, by the code that evaluation runs."""

import functools
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import sharding, step, trained, workdir
from vit_jax.data.pipeline import reader_threads
from vit_jax.data.source_folder import image_files
from vit_jax.errors import UsageError

Input = str | os.PathLike | np.ndarray

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Prediction(NamedTuple):
    """A class and how probable it is."""

    name: str
    index: int
    probability: float


@dataclass(frozen=True)
class Answer:
    """What became of one input.

    Attributes:
      name: its path as given, or "image 3" for an array.
      logits: [K] float32; None where there is a problem.
      problem: why it can't be used.
    """

    name: str
    logits: np.ndarray | None
    problem: str = ""


class Predictor:
    """Predicts the classes of images.

    Every image passes through the run's `data.preprocess_eval`, decoding included, as in evaluation; so does an
    array that has the model's size already. Images are computed in batches of one compiled shape, filled up
    with black, so what is said of an image doesn't depend on the others.

    Attributes:
      classes: K names by index; the index itself where the checkpoint has no name.
      batch_size: rows of the compiled batch.
      activation: "softmax", or "sigmoid" for runs with loss="sigmoid_xent", whose probabilities don't sum to 1.
    """

    def __init__(
        self,
        model: trained.Trained,
        *,
        classes: str | os.PathLike | Sequence[str] | None = None,
        num_threads: int | None = None,
    ) -> None:
        """See `from_checkpoint`."""
        self._trained = model
        self._threads = reader_threads(num_threads)
        self.batch_size = model.batch_size
        self.activation = "sigmoid" if model.loss == "sigmoid_xent" else "softmax"
        self.classes = _class_names(classes, model)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike,
        *,
        subtree: str | None = None,
        classes: str | os.PathLike | Sequence[str] | None = None,
        preprocess: str | None = None,
        batch_size: int | None = 32,
        num_threads: int | None = None,
        **fields: Any,
    ) -> "Predictor":
        """Reads a checkpoint; the model is compiled by the first prediction.

        Args:
          path: a run directory (RUN, its newest intact step; RUN@STEP; RUN@best), or weights of any supported
            layout, whose classes are numbers unless `classes` or their own config names them.
          subtree: which parameters, "params" or "ema"; None: the parameters.
          classes: K names, or a text file with one a line, instead of those of the run.
          preprocess: instead of the run's `data.preprocess_eval`.
          batch_size: images computed at once, rounded up to one per device. None: as many as the run's
            evaluation, whose logits are then met to the bit.
          num_threads: that read and decode; None: one per core.
          **fields: of the model, where bare weights can't tell them; see `vit_jax.load`.

        Raises:
          UsageError: no such checkpoint, or something else that doesn't suit it.
        """
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"the batch size is {batch_size}", "give at least 1")
        found = trained.read(
            os.fspath(path), subtree=subtree, preprocess=preprocess, batch_size=batch_size, fields=fields
        )
        return cls(found, classes=classes, num_threads=num_threads)

    @staticmethod
    def expand(paths: Sequence[str | os.PathLike]) -> list[str]:
        """The paths, each folder replaced by the images in it and below, sorted as bytes; hidden ones left out.

        Raises:
          UsageError: a folder without images, or a URL.
        """
        found: list[str] = []
        for path in _checked(paths):
            found += image_files(os.fspath(path)) if os.path.isdir(path) else [os.fspath(path)]
        return found

    def __call__(self, images: Sequence[Input]) -> np.ndarray:
        """Probabilities [n, K] float32; inputs and errors as for `logits`."""
        logits = self.logits(images)
        # Row by row: float64 copies of all rows at once would take several times their memory.
        return np.stack([self.probabilities(row) for row in logits]) if len(logits) else logits

    def logits(self, images: Sequence[Input]) -> np.ndarray:
        """Logits [n, K] float32.

        Args:
          images: paths of image files and uint8 arrays [H, W, 3], [H, W, 1] or [H, W], in any mixture; or one
            array [n, H, W, C].

        Raises:
          UsageError: an input that isn't an image, naming it; `stream` goes on instead.
        """
        rows = []
        for answer in self.stream(images):
            if answer.logits is None:
                raise UsageError(f"{answer.name}: {answer.problem}", "mend it or leave it out")
            rows.append(answer.logits)
        return np.stack(rows) if rows else np.zeros((0, len(self.classes)), np.float32)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities float32 of logits [..., K]: softmax over K, or sigmoid of each (see `activation`)."""
        x = np.asarray(logits, np.float64)
        with np.errstate(invalid="ignore"):  # an infinite logit gives NaN
            if self.activation == "sigmoid":
                return np.exp(-np.logaddexp(0, -x)).astype(np.float32)
            e = np.exp(x - x.max(axis=-1, keepdims=True))
            return (e / e.sum(axis=-1, keepdims=True)).astype(np.float32)

    def top(self, probabilities: np.ndarray, k: int = 5) -> list[list[Prediction]]:
        """The k most probable classes (all, if there are fewer) of each row [n, K], the most probable first.

        Of equals the lower index comes first; NaN comes last.

        Raises:
          UsageError: k below 1, or another shape.
        """
        if k < 1:
            raise UsageError(f"the number of classes to show is {k}", "give at least 1")
        rows = np.asarray(probabilities)
        if rows.ndim != 2 or rows.shape[1] != len(self.classes):
            raise UsageError(
                f"probabilities have the shape {list(rows.shape)}", f"give [n, {len(self.classes)}]"
            )
        order = np.argsort(-rows, axis=1, kind="stable")[:, :k]
        return [
            [Prediction(self.classes[i], int(i), float(row[i])) for i in best]
            for row, best in zip(rows, order, strict=True)
        ]

    def stream(self, images: Sequence[Input]) -> Iterator[Answer]:
        """An Answer for each input, in order, batch by batch; inputs that can't be used are answers too.

        Raises:
          UsageError: at once, for a URL or something that is neither path nor array.
        """
        return self._stream(_checked(images))

    def _stream(self, inputs: list[Input]) -> Iterator[Answer]:
        with ThreadPoolExecutor(self._threads) as pool:

            def read(first: int) -> list[Future]:
                part = enumerate(inputs[first : first + self.batch_size], first)
                return [pool.submit(self._trained.row, image, _name(image, i)) for i, image in part]

            ahead = read(0)
            for first in range(0, len(inputs), self.batch_size):
                futures, ahead = ahead, read(first + self.batch_size)  # read while the device computes
                rows = [future.result() for future in futures]
                logits = self._compute(rows) if any(isinstance(r, np.ndarray) for r in rows) else None
                for i, row in enumerate(rows):
                    name = _name(inputs[first + i], first + i)
                    if isinstance(row, str):
                        yield Answer(name, None, row)
                    else:
                        yield Answer(name, logits[i])

    def _compute(self, rows: list[np.ndarray | str]) -> np.ndarray:
        """Logits [batch_size, K] of up to as many rows; those of padding and problems mean nothing."""
        images = np.zeros((self.batch_size, *self._trained.facts.image_shape), np.uint8)
        for i, row in enumerate(rows):
            if isinstance(row, np.ndarray):
                images[i] = row
        batch = jax.device_put(images, sharding.batch_sharding(self._trained.mesh))
        return np.asarray(self._compiled(self._trained.params, batch))

    @functools.cached_property
    def _compiled(self) -> jax.stages.Compiled:
        found = self._trained
        function = functools.partial(step.predict_step, model=found.model, scale=found.facts)
        batch = jax.ShapeDtypeStruct(
            (self.batch_size, *found.facts.image_shape), jnp.uint8,
            sharding=sharding.batch_sharding(found.mesh),
        )  # fmt: skip
        jitted = jax.jit(function, out_shardings=sharding.replicated(found.mesh))
        return jitted.lower(found.params, batch).compile()


def _checked(images: Sequence[Input]) -> list[Input]:
    """The inputs as a list. Raises UsageError for what is no list, or holds what is neither path nor array."""
    alone = isinstance(images, str | os.PathLike) or (isinstance(images, np.ndarray) and images.ndim != 4)
    if alone:
        what = f"array {list(images.shape)}" if isinstance(images, np.ndarray) else repr(os.fspath(images))
        raise UsageError(f"one image, {what}, where a list is expected", "put it into a list")
    inputs = list(images)
    for i, image in enumerate(inputs):
        if not isinstance(image, Input):
            raise UsageError(
                f"input {i} is a {type(image).__name__}", "give paths and uint8 numpy arrays [H, W, C]"
            )
        if isinstance(image, str) and _URL.match(image) and not os.path.exists(image):
            raise UsageError(f"{image} is a URL, which isn't read", "download it first")
    return inputs


def _name(image: Input, index: int) -> str:
    return f"image {index}" if isinstance(image, np.ndarray) else os.fspath(image)


def _class_names(given: str | os.PathLike | Sequence[str] | None, model: trained.Trained) -> tuple[str, ...]:
    """K names: those given (a file, or a list), else the checkpoint's, else numbers."""
    count = model.facts.num_classes
    if given is None:
        names = model.classes or ()
        return (*names, *map(str, range(len(names), count)))
    where = "the list of classes"
    if isinstance(given, str | os.PathLike):
        where, names = os.fspath(given), workdir.read_class_file(given)
    else:
        names = tuple(given)
    if len(names) != count:
        raise UsageError(
            f"{where} names {len(names)} classes, the model has {count}", "give as many, in order"
        )
    return names
