"""What the runs of a study found, read from their folders."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from etils import epath

from vit_jax import records, workdir
from vit_jax.early_stop import sign
from vit_jax.studies.plan import Experiment, Run


@dataclass(frozen=True)
class Found:
    """What a setting scored.

    Attributes:
      run: the setting.
      values: seed -> share, 0 to 1, of the runs that are through.
    """

    run: Run
    values: dict[int, float]

    @property
    def mean(self) -> float | None:
        """None without a run."""
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def sd(self) -> float | None:
        """Of the sample (n - 1); None with fewer than two runs."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None


def read_study(root: epath.Path, experiments: Sequence[Experiment]) -> dict[str, list[Found]]:
    """Experiment -> what its settings found, in their order."""
    return {
        experiment.name: read_experiment(root / experiment.name, experiment) for experiment in experiments
    }


def read_experiment(folder: epath.Path, experiment: Experiment) -> list[Found]:
    """What the settings that are shown found; a run that isn't through, or lacks the metric, counts as missing."""
    found = []
    for run in experiment.runs:
        if not run.shown:
            continue
        path, values = folder / run.name, {}
        seeds = [int(one.name) for one in path.iterdir() if one.name.isdecimal()] if path.is_dir() else []
        for seed in sorted(seeds):
            if ended(path / str(seed)) is None:
                continue
            value = score(path / str(seed), experiment)
            if value is not None:
                values[seed] = value
        found.append(Found(run, values))
    return found


def ended(path: epath.Path) -> dict[str, Any] | None:
    """The config of a run that is through; None of any other folder."""
    try:
        how = json.loads((path / "run.json").read_text())["starts"][-1]["end"]["how"]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
    return workdir.read_config(path) if how == "done" or how.startswith("done,") else None


def score(path: epath.Path, experiment: Experiment) -> float | None:
    """The metric of a run at the evaluation that counts; None if it has none. A later line for a step wins."""
    by_step: dict[int, dict[str, Any]] = {}
    for line in records.read_records(path, "metrics"):
        by_step.setdefault(line["step"], {}).update(line)
    chosen = experiment.chosen_by
    wanted = [experiment.metric, *([chosen] if chosen else [])]
    usable = [step for step, line in by_step.items() if all(_is_number(line.get(key)) for key in wanted)]
    if not usable:
        return None
    # The first of equals.
    best = max(sorted(usable), key=lambda s: sign(chosen, "") * by_step[s][chosen] if chosen else s)
    return by_step[best][experiment.metric]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
