"""Few-shot linear evaluation: least squares in closed form on a few frozen features per class.

ViT (arXiv 2010.11929, section 4.1 and appendix D) and big_vision: features standardised with the statistics of
the chosen training images, a constant column of 100 (so that the bias is hardly penalised), targets -1 and +1,
weights w = argmin |X w - Y|^2 + l2 |w|^2, prediction = the largest score. l2 is 2^10 whatever the data; besides,
a sweep may choose it on training images that a draw leaves aside. Everything is computed in float64.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vit_jax.data.source import shorten
from vit_jax.errors import UsageError
from vit_jax.evaluators.classifiers import Standardize, accuracy
from vit_jax.evaluators.features import Features

_log = logging.getLogger(__name__)

BIAS = 100.0  # of the constant column


@dataclass(frozen=True)
class Ridge:
    """A linear classifier.

    Attributes:
      standardize: of the features.
      weights: float64 [D + 1, C]; the last row belongs to the constant column.
    """

    standardize: Standardize
    weights: np.ndarray

    def scores(self, features: np.ndarray) -> np.ndarray:
        """float64 [n, C] of features [n, D]."""
        return _with_bias(self.standardize(features)) @ self.weights


def draw(labels: np.ndarray, shots: int, seed: int, num_classes: int) -> np.ndarray:
    """int64: places of up to `shots` images of each class, class after class.

    One generator serves all classes, one permutation each; fewer shots are the first ones of more.

    Args:
      labels: int [N].
    """
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(labels == c))[:shots] for c in range(num_classes)]
    return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)


def fit(features: np.ndarray, labels: np.ndarray, num_classes: int, *, l2: float) -> Ridge:
    """See the module; arguments as for `fit_path`."""
    return fit_path(features, labels, num_classes, (l2,))[0]


def fit_path(features: np.ndarray, labels: np.ndarray, num_classes: int, l2s: Sequence[float]) -> list[Ridge]:
    """A classifier for each strength, from one eigendecomposition.

    Args:
      features: [N, D].
      labels: int [N] in 0 ... num_classes - 1; a class without images is never predicted for good reason.
      l2s: strengths, each above 0.
    """
    standardize = Standardize.of(features)
    x = _with_bias(standardize(features))
    y = np.full((len(labels), num_classes), -1.0)
    y[np.arange(len(labels)), labels] = 1.0
    # Of X'X (D + 1 squared) and XX' (N squared) the smaller one: both give the same weights.
    if x.shape[0] >= x.shape[1]:
        values, vectors = np.linalg.eigh(x.T @ x)
        left, right = vectors, vectors.T @ (x.T @ y)
    else:
        values, vectors = np.linalg.eigh(x @ x.T)
        left, right = x.T @ vectors, vectors.T @ y
    # Eigenvalues that are zero but for rounding may come out negative.
    values = np.maximum(values, 0.0)
    return [Ridge(standardize, left @ (right / (values + l2)[:, None])) for l2 in l2s]


def _with_bias(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.full((len(x), 1), BIAS)], axis=1)


@dataclass(frozen=True)
class FewShot:
    """The evaluation of one data set.

    Attributes:
      shots: images of each class, such as (1, 5, 10, 25).
      seeds: draws 0 ... seeds - 1 are reported.
      l2: the fixed strength.
      l2_sweep: strengths to choose from besides, by draws seeds ... 2 seeds - 1; (): none.
    """

    shots: tuple[int, ...]
    seeds: int
    l2: float
    l2_sweep: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError for numbers that mean nothing."""
        if not self.shots or min(self.shots) < 1:
            raise UsageError(f"fewshot.shots is {self.shots}", "give numbers of images, such as (1, 5, 10)")
        if self.seeds < 1:
            raise UsageError(f"fewshot.seeds is {self.seeds}", "give at least 1")
        if self.l2 <= 0 or any(l2 <= 0 for l2 in self.l2_sweep):
            raise UsageError(
                f"fewshot.l2 is {self.l2}, l2_sweep {self.l2_sweep}",
                "give strengths above 0, such as 2.0**10",
            )

    def wanted(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """int64, ascending: the places of all images that some draw takes, so that no others are computed."""
        draws = range(2 * self.seeds if self.l2_sweep else self.seeds)
        return np.unique(np.concatenate([draw(labels, max(self.shots), s, num_classes) for s in draws]))

    def measure(
        self, train: Features, test: Features, *, labels: np.ndarray, classes: Sequence[str]
    ) -> dict[str, float]:
        """Accuracy on test, mean and sample standard deviation over the draws.

        A number of shots that some class can't give is left out with a warning that names the class; classes
        without any training image are named too, and their test images count as wrong.

        Args:
          train: at least the images that `wanted` names.
          labels: int [N] of the whole training split, which `train.index` counts in.
          classes: C names.

        Returns:
          `<k>shot/accuracy`, `<k>shot/sd` (more than one draw), and with a sweep `<k>shot/swept/accuracy`,
          `.../sd` and `.../l2`.

        Raises:
          UsageError: no number of shots is possible; names the class that is shortest.
        """
        counts = np.bincount(labels, minlength=len(classes))
        present = np.flatnonzero(counts)
        if len(present) < len(classes):
            absent = [classes[c] for c in np.flatnonzero(counts == 0)]
            _log.warning("few-shot: no training image of %s: its test images count as wrong", shorten(absent))
        row_of = np.full(len(labels), -1)
        row_of[train.index] = np.arange(len(train.index))
        results: dict[str, float] = {}
        for shots in sorted(self.shots):
            short = [c for c in present if counts[c] < shots]
            if short:
                names = shorten([f"{classes[c]} ({counts[c]})" for c in short])
                _log.warning("few-shot: %d shots left out, too few training images of %s", shots, names)
                continue
            results |= self._measure(shots, train, test, labels, row_of, len(classes))
        if not results:
            least = min(present, key=lambda c: counts[c])
            raise UsageError(
                f"few-shot: class {classes[least]!r} has {counts[least]} training images, "
                f"fewer than any of fewshot.shots={self.shots}",
                "lower fewshot.shots or add images",
            )
        return results

    def _measure(
        self, shots: int, train: Features, test: Features, labels: np.ndarray, row_of: np.ndarray, k: int
    ) -> dict[str, float]:
        def rows(seed: int) -> np.ndarray:
            """Rows of `train` that the draw takes; those of unreadable images are missing."""
            found = row_of[draw(labels, shots, seed, k)]
            if np.any(found < 0):
                _log.warning(
                    "few-shot: %d of %d images drawn by seed %d couldn't be read",
                    np.sum(found < 0), len(found), seed,
                )  # fmt: skip
            return found[found >= 0]

        reported = [rows(seed) for seed in range(self.seeds)]
        fixed, swept = [], []
        others = range(self.seeds, 2 * self.seeds) if self.l2_sweep else ()
        l2 = self._choose(train, [rows(seed) for seed in others], k)
        for chosen in reported:
            l2s = (self.l2,) if l2 is None else (self.l2, l2)
            models = fit_path(train.rows[chosen], train.labels[chosen], k, l2s)
            fixed.append(accuracy(models[0], test.rows, test.labels))
            swept.append(accuracy(models[-1], test.rows, test.labels))
        results = _summary(f"{shots}shot/", fixed)
        if l2 is not None:
            results |= _summary(f"{shots}shot/swept/", swept) | {f"{shots}shot/swept/l2": l2}
        return results

    def _choose(self, train: Features, draws: list[np.ndarray], num_classes: int) -> float | None:
        """The strength that is best on the images which each draw leaves aside; None: no sweep, or no images."""
        if not self.l2_sweep:
            return None
        scores = np.zeros(len(self.l2_sweep))
        for chosen in draws:
            aside = np.setdiff1d(np.arange(len(train.rows)), chosen)
            if not len(aside):
                _log.warning("few-shot: no training images are left to choose l2 on")
                return None
            models = fit_path(train.rows[chosen], train.labels[chosen], num_classes, self.l2_sweep)
            scores += [accuracy(model, train.rows[aside], train.labels[aside]) for model in models]
        return float(self.l2_sweep[int(np.argmax(scores))])


def _summary(prefix: str, accuracies: list[float]) -> dict[str, float]:
    found = {f"{prefix}accuracy": float(np.mean(accuracies))}
    if len(accuracies) > 1:
        found[f"{prefix}sd"] = float(np.std(accuracies, ddof=1))
    return found
