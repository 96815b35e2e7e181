"""Top-1 accuracy and loss over a whole split: every example counts exactly once."""

from collections.abc import Callable, Iterable

import jax

from vit_jax.step import Batch, PyTree, TrainState


class Classification:
    """Evaluates a split of any size on any mesh: padded rows are masked, accuracy is k / n exactly.

    Multi-hot labels count a hit when the top class is in the set; rows without any label count in the loss but
    not in the accuracy.
    """

    def __init__(
        self,
        batches: Callable[[], Iterable[Batch]],
        eval_step: Callable[[PyTree, Batch], dict[str, jax.Array]],
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Makes an evaluator.

        Args:
          batches: gives a fresh pass over the split, batches on the devices, as many on every process.
          eval_step: see vit_jax.step.eval_step, compiled.
          on_batch: called before every batch; may raise to break off, e.g. on preemption.
        """
        self._batches = batches
        self._eval_step = eval_step
        self._on_batch = on_batch

    def run(self, state: TrainState) -> dict[str, float]:
        """One pass with `state.params`.

        Returns:
          accuracy = correct / labelled, loss (mean over the split), correct, count.

        Raises:
          ValueError: no example counted.
        """
        sums: dict[str, float] = {"correct": 0.0, "labelled": 0.0, "loss": 0.0, "count": 0.0}
        pending = None  # results of the former batch are fetched while this one is computed
        for batch in self._batches():
            self._on_batch()
            result = self._eval_step(state.params, batch)
            if pending is not None:
                _add(sums, pending)
            pending = result
        if pending is not None:
            _add(sums, pending)
        if sums["count"] == 0:
            raise ValueError("no example of the split could be read")
        accuracy = sums["correct"] / sums["labelled"] if sums["labelled"] else float("nan")
        return {
            "accuracy": accuracy,
            "loss": sums["loss"] / sums["count"],
            "correct": int(sums["correct"]),
            "count": int(sums["count"]),
        }


def _add(sums: dict[str, float], result: dict[str, jax.Array]) -> None:
    for name, value in jax.device_get(result).items():
        sums[name] += float(value)
