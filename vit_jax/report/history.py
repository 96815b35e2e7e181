"""What a run logged, read for a page; a run that is still going, or was killed, is read as far as it goes."""

import json
from typing import Any

import numpy as np
from etils import epath

from vit_jax import records
from vit_jax.report.content import History


def read_history(run: epath.Path) -> History:
    """Metrics and starts of a run. A later line for a step wins."""
    damaged: list[str] = []
    values: dict[str, dict[int, float]] = {}
    try:
        for line in records.read_records(run, "metrics"):
            for key, value in line.items():
                if key != "step":
                    values.setdefault(key, {})[line["step"]] = np.nan if value is None else float(value)
    except (ValueError, KeyError, TypeError, OSError) as error:
        damaged.append(f"metrics can be read only as far as a damaged line: {error}")
    series = {}
    for key, by_step in values.items():
        steps = np.array(sorted(by_step), np.int64)
        series[key] = (steps, np.array([by_step[step] for step in steps.tolist()], np.float64))
    return History(series, _starts(run, damaged), damaged)


def _starts(run: epath.Path, damaged: list[str]) -> list[dict[str, Any]]:
    try:
        starts = json.loads((run / "run.json").read_text())["starts"]
        return [start for start in starts if isinstance(start, dict)]
    except FileNotFoundError:
        damaged.append("there is no run.json")
    except (ValueError, KeyError, TypeError, OSError) as error:
        damaged.append(f"run.json can't be read: {error}")
    return []
