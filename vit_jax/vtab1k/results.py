"""What trials have found, on disk, and the scores that follow: medians, group means, the mean of the 19 tasks.

    WORKDIR/results/<task>/<trial>.json   written whole as a trial ends; what is there is never run again
    WORKDIR/summary.json                  {<task>: accuracy, ..., natural, specialized, structured, mean, missing}

Accuracies are shares, 0 to 1. A mean over tasks of which one is missing is null.
"""

import fcntl
import json
import os
import socket
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etils import epath

from vit_jax import files
from vit_jax.data.vtab_tasks import GROUPS, TASKS
from vit_jax.errors import UsageError
from vit_jax.workdir import plain

FOLDER = "results"
SUMMARY = "summary.json"

Result = dict[str, Any]


@dataclass(frozen=True)
class Score:
    """A task's score.

    Attributes:
      accuracy: the median of its final runs, 0 to 1.
      runs: their accuracies by seed.
      finals: their results.
    """

    accuracy: float
    runs: tuple[float, ...]
    finals: tuple[Result, ...]

    @property
    def sd(self) -> float | None:
        """Standard deviation of the runs; None of a single one."""
        return statistics.stdev(self.runs) if len(self.runs) > 1 else None


class Store:
    """The results of a workdir; several commands may write to it, each to tasks of its own."""

    def __init__(self, workdir: epath.Path) -> None:
        self.workdir = workdir

    def path(self, task: str, trial: str) -> epath.Path:
        return self.workdir / FOLDER / task / f"{trial}.json"

    def read(self, task: str, trial: str) -> Result | None:
        """The result of a trial; None: it isn't through.

        Raises:
          UsageError: a file that isn't what was written; names it.
        """
        path = self.path(task, trial)
        if not path.exists():
            return None
        try:
            result = json.loads(path.read_text())
            accuracy = result["accuracy"]
            if result["task"] != task or result["trial"] != trial:
                raise ValueError(f"it is of {result['task']}, {result['trial']}")
            if accuracy is None and result["kind"] == "select":
                return result
            if isinstance(accuracy, bool) or not 0 <= accuracy <= 1:
                raise ValueError(f"its accuracy is {accuracy!r}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"can't use {path}: {files.line(error)}", "remove it: the trial is run again"
            ) from None
        return result

    def write(self, task: str, trial: str, result: Result) -> None:
        """Puts a result in its place, whole or not at all."""
        path = self.path(task, trial)
        files.make_folder(path.parent)
        write_whole(path, json.dumps(plain({"task": task, "trial": trial, **result}), indent=1) + "\n")

    def score(self, task: str, trials: list[str]) -> Score | None:
        """The score of a task by its final trials; None while one isn't through."""
        found = [self.read(task, trial) for trial in trials]
        if not found or any(result is None for result in found):
            return None
        runs = tuple(float(result["accuracy"]) for result in found)
        return Score(statistics.median(runs), runs, tuple(found))

    def done(self, task: str, trials: list[str]) -> int:
        """How many of the trials are through."""
        return sum(self.path(task, trial).exists() for trial in trials)


def summarize(accuracies: Mapping[str, float]) -> dict[str, Any]:
    """The content of summary.json from the accuracies of the tasks that are through.

    The mean is that of the 19 tasks, not of the three groups.
    """
    known = {name: float(accuracies[name]) for name in TASKS if name in accuracies}

    def mean(names: list[str]) -> float | None:
        return statistics.fmean(known[n] for n in names) if all(n in known for n in names) else None

    groups = {g: mean([name for name, task in TASKS.items() if task.group == g]) for g in GROUPS}
    missing = [name for name in TASKS if name not in known]
    return {**known, **groups, "mean": mean(list(TASKS)), "missing": missing}


def write_whole(path: epath.Path, text: str) -> None:
    """Writes a file that several processes may write at once: a reader sees the whole of one of them."""
    if files.is_remote(path):
        path.write_text(text)
        return
    temporary = path.parent / f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp"
    try:
        temporary.write_text(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class Turn:
    """A block that one command at a time is in, so that no older summary replaces a newer one."""

    def __init__(self, workdir: epath.Path) -> None:
        self._path, self._fd = workdir / ".summary.lock", None

    def __enter__(self) -> None:
        if files.is_remote(self._path):
            return
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError:  # storage without locks
            return

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
