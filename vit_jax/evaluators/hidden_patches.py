"""How well a model predicts hidden patches, over a whole split: every example counts exactly once."""

from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np

from vit_jax.evaluators.sums import add_up, ratio
from vit_jax.step import Batch, PyTree, TrainState


class HiddenPatches:
    """Evaluates a split of any size on any mesh; what is hidden of an example depends on its place alone."""

    def __init__(
        self,
        batches: Callable[[], Iterable[Batch]],
        eval_step: Callable[[PyTree, Batch], dict[str, jax.Array]],
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Arguments as for `classification.Classification`; the step is that of task masked_patch."""
        self._batches = batches
        self._eval_step = eval_step
        self._on_batch = on_batch

    def run(self, state: TrainState) -> dict[str, float]:
        """One pass with `state.params`.

        Returns:
          accuracy = correct / answers: of colours of corrupted patches (or of their 16 cells); loss, the mean over
          the examples; correct, answers, and count: of examples.

        Raises:
          ValueError: no example counted.
        """
        sums = add_up(state.params, self._placed(), self._eval_step, self._on_batch)
        return {
            "accuracy": ratio(sums["correct"], sums["answers"]),
            "loss": float(sums["loss"] / sums["count"]),
            "correct": int(sums["correct"]),
            "answers": int(sums["answers"]),
            "count": int(sums["count"]),
        }

    def _placed(self) -> Iterator[Batch]:
        """Row r of a batch is example `first` + r of the split."""
        first = 0
        for batch in self._batches():
            yield {**batch, "first": np.int32(first)}
            first += batch["mask"].shape[0]
