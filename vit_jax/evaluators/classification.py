"""Accuracy and loss over a whole split: every example counts exactly once."""

from collections.abc import Callable, Iterable

import jax
import numpy as np

from vit_jax.evaluators.sums import add_up, ratio
from vit_jax.step import Batch, PyTree, TrainState

# Above so many classes no confusion matrix is kept: it would have K x K entries.
MAX_CONFUSION = 4096


class Classification:
    """Evaluates a split of any size on any mesh: padded rows are masked, accuracy is k / n exactly.

    Multi-hot labels count a hit when the top class is in the set; rows without any label count in the loss but
    not in the accuracy.

    Attributes:
      details: of the last run, arrays by name: class_accuracy float64 [K] (NaN without examples), class_count
        int64 [K], calibration float64 [3, 15] (examples, mean confidence, accuracy, by bin of the confidence), and
        confusion int64 [K, K] (label, prediction) where the step counts it.
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
        self.details: dict[str, np.ndarray] = {}

    def run(self, state: TrainState) -> dict[str, float]:
        """One pass with `state.params`.

        Returns:
          accuracy = correct / labelled, loss (mean over the split), correct, count; with more than 5 classes
          top5_accuracy; with one class per example class_accuracy (mean over the classes that have examples) and
          ece (expected calibration error of the softmax, 15 bins).

        Raises:
          ValueError: no example counted.
        """
        sums = add_up(state.params, self._batches(), self._eval_step, self._on_batch)
        labelled = float(sums["labelled"])
        results = {
            "accuracy": ratio(sums["correct"], labelled),
            "loss": float(sums["loss"] / sums["count"]),
            "correct": int(sums["correct"]),
            "count": int(sums["count"]),
        }
        if "class_count" not in sums:  # several labels an example: neither classes nor a calibration of one
            return results
        if len(sums["class_count"]) > 5:
            results["top5_accuracy"] = ratio(sums["correct_top5"], labelled)
        self.details = _details(sums)
        rows, confidence, accuracy = self.details["calibration"]
        gaps = np.where(rows > 0, rows * np.abs(confidence - accuracy), 0.0)
        results["class_accuracy"] = float(np.nanmean(self.details["class_accuracy"])) if labelled else np.nan
        results["ece"] = ratio(gaps.sum(), rows.sum())
        return results


def _details(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with np.errstate(invalid="ignore", divide="ignore"):  # classes and bins without examples are NaN
        rows, confidence, correct = sums["calibration"]
        found = {
            "class_accuracy": sums["class_correct"] / sums["class_count"],
            "class_count": sums["class_count"].astype(np.int64),
            "calibration": np.stack([rows, confidence / rows, correct / rows]),
        }
    if "confusion" in sums:
        found["confusion"] = sums["confusion"].astype(np.int64)
    return found
