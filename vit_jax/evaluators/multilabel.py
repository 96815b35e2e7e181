"""Evaluation of multi-label data such as ImageNet-21k: precision at 1 and mean average precision."""

import warnings
from collections.abc import Callable

import numpy as np

from vit_jax.data.source import Source
from vit_jax.evaluators.features import Batches, FeaturesStep, check_finite, stream
from vit_jax.step import TrainState


def precision_at_1(scores: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
    """Share of the rows [n, K] whose largest score is a label, of those with a label; and how many those are."""
    labelled = (labels > 0).any(axis=1)
    best = np.argmax(scores, axis=1)
    right = labels[np.arange(len(labels)), best] > 0
    count = int(labelled.sum())
    return (float(right[labelled].sum() / count) if count else float("nan")), count


def mean_average_precision(scores: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
    """Mean over the classes with a positive row of the average precision (scikit-learn's), and their number.

    Args:
      scores: [n, K]; only their order within a class counts.
      labels: [n, K], positive entries are labels; rows without any are negatives of every class.
    """
    from sklearn.metrics import average_precision_score  # slow to import

    positive = labels > 0
    classes = np.flatnonzero(positive.any(axis=0))
    if not len(classes):
        return float("nan"), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes where every row is positive
        found = [average_precision_score(positive[:, c], scores[:, c]) for c in classes]
    return float(np.mean(found)), len(classes)


class MultiLabel:
    """Needs the logits of the whole split in memory: 4 bytes x examples x classes on every process."""

    def __init__(
        self,
        source: Source,
        batches: Batches,
        logits_step: FeaturesStep,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Arguments as for `features.stream`; logits_step gives the logits as rows."""
        self._source, self._batches, self._step, self._on_batch = source, batches, logits_step, on_batch

    def run(self, state: TrainState) -> dict[str, float]:
        """precision_at_1 (of the labelled), map, map_classes, labelled, count."""
        parts = list(stream(self._batches, self._step, state.params, self._on_batch))
        for part in parts:
            check_finite(part, self._source)
        scores = np.concatenate([part.rows for part in parts])
        labels = np.concatenate([part.labels for part in parts])
        precision, labelled = precision_at_1(scores, labels)
        value, classes = mean_average_precision(scores, labels)
        return {
            "precision_at_1": precision, "map": value, "map_classes": classes, "labelled": labelled,
            "count": len(scores),
        }  # fmt: skip
