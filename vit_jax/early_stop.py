"""Early stopping: a run ends once a metric hasn't got better for so many evaluations.

What counts is every periodic evaluation (`eval.every_*`) of the run so far, so a run that was interrupted stops
where an unbroken one does: the values of the evaluations before its start are read from the run's metrics, and the
loop evaluates again at the step it starts from.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from vit_jax import distributed
from vit_jax.errors import UsageError, known_names
from vit_jax.records import read_records

MODES = ("max", "min")


class EarlyStop:
    """Remembers the evaluations of one metric.

    All processes call it alike; process 0 has the history and decides for all.
    """

    def __init__(self, metric: str, *, mode: str, patience: int, before: Mapping[int, float | None]) -> None:
        """before: step -> value of the evaluations before this start; None where it wasn't finite."""
        self._metric, self._sign, self._patience = metric, sign(metric, mode), patience
        self._values = dict(before)

    def reason(self, step: int, results: Mapping[str, float]) -> str:
        """Why the run stops here, after an evaluation; "": it goes on. Results without the metric don't count."""
        if self._metric not in results:
            return ""
        self._values[step] = results[self._metric]
        best, since = self._best()
        if not distributed.main_says(since >= self._patience):
            return ""
        found = "never finite" if best is None else f"best at step {best}: {self._values[best]:.6g}"
        return f"{self._metric} no better in {self._patience} evaluations, {found}"

    def _best(self) -> tuple[int | None, int]:
        """Step of the best value, the first of equals, and how many evaluations came after it."""
        best, since = None, 0
        for step in sorted(self._values):
            if self._beats(self._values[step], None if best is None else self._values[best]):
                best, since = step, 0
            else:
                since += 1
        return best, since

    def _beats(self, value: float | None, best: float | None) -> bool:
        if value is None or not math.isfinite(value):
            return False
        return best is None or self._sign * value > self._sign * best


def sign(metric: str, mode: str) -> int:
    """1 where a larger value of the metric is better, else -1; mode "" goes by its name: a loss is to fall."""
    if not mode:
        mode = "min" if metric.endswith("/loss") else "max"
    return 1 if mode == "max" else -1


def open_early_stop(
    config: ConfigDict, every: int | None, workdir: Path, start_step: int
) -> EarlyStop | None:
    """What `config.early_stop` asks for; None: nothing.

    Args:
      every: steps between two evaluations.
      start_step: evaluations from there on are made (again) by this start.
    """
    keys = config.early_stop
    if not keys.metric:
        return None
    # Final evaluations of a shorter total, off the beat, aren't made in an unbroken run.
    lines = read_records(workdir, "metrics") if distributed.is_main() else ()
    before = {s: v for s, v in evaluations(lines, keys.metric).items() if s < start_step and s % every == 0}
    return EarlyStop(keys.metric, mode=keys.mode, patience=keys.patience, before=before)


def evaluations(lines: Iterable[Mapping[str, Any]], metric: str) -> dict[int, float | None]:
    """Step -> value of a metric in a run's metrics; a later line for a step wins."""
    return {line["step"]: line[metric] for line in lines if metric in line}


def best_metric(config: ConfigDict) -> tuple[str, int]:
    """The metric that best/ is kept by ("": none), and its sign: that of early stopping unless one is named."""
    if config.checkpoint.best_metric or not config.early_stop.metric:
        return config.checkpoint.best_metric, 1
    return config.early_stop.metric, sign(config.early_stop.metric, config.early_stop.mode)


def check(config: ConfigDict, every: int | None, splits: Iterable[str]) -> None:
    """Refuses keys of `early_stop` that don't go together.

    Args:
      every: steps between two evaluations.
      splits: names of those that are evaluated.

    Raises:
      UsageError: an unknown metric or mode, no patience, or no evaluations to go by.
    """
    keys = config.early_stop
    if not keys.metric:
        return
    averages = ("",) if config.ema_decay is None else ("", "_ema")
    known = [f"eval/{s}{a}/{value}" for s in splits for a in averages for value in ("accuracy", "loss")]
    if keys.metric not in known:
        raise UsageError(
            f"early_stop.metric {keys.metric!r} isn't evaluated", known_names(keys.metric, known)
        )
    if keys.mode not in ("", *MODES):
        raise UsageError(f"early_stop.mode is {keys.mode!r}", "write max, min, or leave it empty")
    if every is None:
        raise UsageError(
            "early_stop.metric without periodic evaluations", "set eval.every_steps or eval.every_epochs"
        )
