"""Timing candidates side by side: interleaved rounds, medians, paired ratios and their spread.

A figure alone depends on the machine and on what else runs there; the ratio of two candidates that took turns
depends on neither, to within the spread that is printed with it.
"""

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cost:
    """Seconds that one turn took: processor time of all threads and ended children, and wall-clock time."""

    cpu: float
    wall: float


def cpu_seconds() -> float:
    """Processor time of this process's threads and of its ended children, user and system."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def cost(function: Callable[[], object]) -> Cost:
    """What one call costs."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    function()
    return Cost(cpu_seconds() - cpu, time.perf_counter() - wall)


def rounds(candidates: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[Cost]]:
    """Lets every candidate take its turn, `repeats` times over; who begins changes from round to round."""
    names = list(candidates)
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for i in range(repeats):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            costs[name].append(cost(candidates[name]))
    return costs


def median(values: Sequence[float]) -> float:
    """The median."""
    return float(np.median(values))


def spread(values: Sequence[float]) -> float:
    """Half the distance between the quartiles, as a share of the median: the noise of one turn."""
    low, middle, high = np.quantile(np.asarray(values), (0.25, 0.5, 0.75))
    return float((high - low) / 2 / middle) if middle else 0.0


def table(rows: Sequence[Mapping[str, object]], columns: Mapping[str, str]) -> str:
    """Rows as aligned text, `columns` from key to heading; None and missing values show as "-"."""
    cells = [list(columns.values())]
    cells += [[_show(row[key]) for key in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = []
    for line in cells:
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def _show(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
