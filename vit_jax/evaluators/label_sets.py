"""Accuracy against sets of right classes: ReaL, ImageNet-V2, -A, -R and ObjectNet are all of this kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vit_jax.data.source import Source
from vit_jax.evaluators.features import Batches, Features, FeaturesStep, check_finite, stream
from vit_jax.step import TrainState

_TOP = 5


@dataclass(frozen=True)
class Targets:
    """What counts as right.

    Attributes:
      sets: for each example of the source the indices of logits that are right; an empty set isn't scored.
      allowed: int [A], the logits that are compared; None: all.
    """

    sets: Sequence[Sequence[int]]
    allowed: np.ndarray | None = None


def hits(logits: np.ndarray, sets: Sequence[Sequence[int]], allowed: np.ndarray | None, k: int) -> int:
    """How many rows [n, K] have one of their right classes among the k largest logits that are allowed.

    Of equal logits the lower index comes first; a row with a NaN is wrong.
    """
    among = np.arange(logits.shape[1]) if allowed is None else np.sort(allowed)
    best = among[np.argsort(-logits[:, among], axis=1, kind="stable")[:, :k]]
    finite = ~np.isnan(logits).any(axis=1)
    return sum(
        bool(ok and not set(row.tolist()).isdisjoint(right))
        for row, right, ok in zip(best, sets, finite, strict=True)
    )


class LabelSets:
    """Top-1 and top-5 accuracy = hits / scored examples, exactly."""

    def __init__(
        self,
        source: Source,
        batches: Batches,
        logits_step: FeaturesStep,
        targets: Targets,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Arguments as for `features.stream`; logits_step gives the logits as rows."""
        self._source, self._batches, self._step = source, batches, logits_step
        self._targets, self._on_batch = targets, on_batch

    def run(self, state: TrainState) -> dict[str, float]:
        """One pass with `state.params`.

        Returns:
          accuracy = correct / count, top5_accuracy where more than 5 classes are compared, correct, count (of
          scored examples).

        Raises:
          ValueError: no example is scored.
        """
        correct = correct5 = count = 0
        allowed, sets = self._targets.allowed, self._targets.sets
        compared = 0
        for whole in stream(self._batches, self._step, state.params, self._on_batch):
            part = self._scored(whole)
            right = [sets[i] for i in part.index]
            compared = part.rows.shape[1] if allowed is None else len(allowed)
            correct += hits(part.rows, right, allowed, 1)
            correct5 += hits(part.rows, right, allowed, _TOP)
            count += len(part.index)
        if not count:
            raise ValueError(f"no example of {self._source.spec}@{self._source.split} is scored")
        results = {"accuracy": correct / count, "correct": correct, "count": count}
        return results | ({"top5_accuracy": correct5 / count} if compared > _TOP else {})

    def _scored(self, part: Features) -> Features:
        check_finite(part, self._source)
        keep = np.array([len(self._targets.sets[i]) > 0 for i in part.index], bool)
        return Features(part.rows[keep], part.labels[keep], part.index[keep])
