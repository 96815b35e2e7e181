"""Task after task: what is through is left alone, what fails is named, and the rest goes on.

Several commands may share a workdir, on machines that share its storage: each takes tasks that no other is at.
"""

import functools
import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from vit_jax import cli, distributed, files, workdir
from vit_jax.data.source import shorten
from vit_jax.data.source_vtab import Splits
from vit_jax.data.sources import open_source
from vit_jax.data.vtab_tasks import Task
from vit_jax.errors import UsageError
from vit_jax.loop import Preempted, poll
from vit_jax.vtab1k import finetune, trials
from vit_jax.vtab1k.check import Check
from vit_jax.vtab1k.plan import Notes, Plan
from vit_jax.vtab1k.results import Store

_log = logging.getLogger(__name__)

LOCKS = "locks"

RunTask = Callable[[Store, Task, Splits, Notes], None]


@dataclass
class Ended:
    """How a command ended.

    Attributes:
      preempted: told to stop; the same command goes on.
      elsewhere: tasks that another command is at.
    """

    preempted: bool = False
    elsewhere: list[str] = field(default_factory=list)


def run(
    plan: Plan,
    checks: Sequence[Check],
    run_task: RunTask,
    *,
    on_progress: Callable[[], Any],
    failed: dict[str, str],
    debug: bool = False,
) -> Ended:
    """Runs the tasks of `checks`, those first that no other command is at.

    Args:
      checks: of the data of the tasks that are wanted; those that can't be read are counted as failed.
      run_task: (store, task, splits, what gives notes about the data): runs what isn't through of one.
      on_progress: called when a task is through.
      failed: gets task -> why of those that fail.
      debug: show tracebacks.
    """
    store, ended = Store(plan.workdir), Ended()
    final = [trial.name for trial in trials.finals(plan.config, None)]
    left = []
    for check in checks:
        if check.splits is None and store.done(check.task.name, final) < len(final):
            failed[check.task.name] = check.problem
        elif check.splits is not None:
            left.append(check)
    try:
        while left:
            busy = []
            for check in left:
                if not _take(plan, store, check, run_task, failed, debug):
                    busy.append(check)
                    continue
                on_progress()
            if len(busy) == len(left):
                break
            left = busy
    except Preempted:
        ended.preempted = True
    ended.elsewhere = [check.task.name for check in left] if left and not ended.preempted else []
    return ended


def _take(
    plan: Plan, store: Store, check: Check, run_task: RunTask, failed: dict[str, str], debug: bool
) -> bool:
    """Runs a task unless another command is at it: then False."""
    poll()
    task, splits = check.task, check.splits
    lock = None
    try:
        lock = _lock(plan, task) if distributed.is_main() else None
        if not distributed.main_says(lock is not None):
            return False
        if check.differences:
            _log.warning("%s isn't VTAB's data: %s", task.name, "; ".join(check.differences))
        run_task(store, task, splits, functools.cache(lambda: notes(plan, check)))
    except Preempted:
        raise
    except Exception as error:  # of data, model, numbers, memory or disk: the other tasks are unharmed
        if jax.process_count() > 1:
            raise  # the others may not have failed, and wait for this one: all end, and start again
        if debug:
            traceback.print_exc()
        failed[task.name] = cli.explain(error).strip().splitlines()[0]
        _log.warning("%s failed, the other tasks go on: %s", task.name, failed[task.name])
    finally:
        del lock  # given back
    return True


def _lock(plan: Plan, task: Task) -> workdir.Lock | None:
    folder = plan.workdir / LOCKS / task.name
    try:
        files.make_folder(folder)
        return workdir.Lock(folder)
    except UsageError as error:
        _log.info("%s is left to another command: %s", task.name, error.what)
        return None


def notes(plan: Plan, check: Check) -> dict[str, Any]:
    """What every result of a task says of its data. Reads the 1000 training examples.

    Raises:
      UsageError: a label that the task hasn't got; names the example.
      BadImage: an example that can't be read.
    """
    task, splits = check.task, check.splits
    source = open_source(trials.spec(task, plan.data_dir, splits.tv), default_split=splits.t)
    counts = np.bincount(source.labels(), minlength=task.num_classes)
    absent = [source.classes[i] for i in np.flatnonzero(counts == 0)]
    if absent:
        _log.warning(
            "%s: %d of %d classes have no image among the %d to train on: %s",
            task.name, len(absent), task.num_classes, len(source), shorten(absent),
        )  # fmt: skip
    return {
        "data": check.place,
        "examples": check.counts,
        "train_examples": len(source),
        "test_examples": check.test_count,
        "normalization": plan.normalization,
        "absent_classes": absent,
        "differences": list(check.differences),
        "checkpoint": plan.config.init,
    }


def finetuner(plan: Plan) -> RunTask:
    """`run_task` by fine-tuning."""
    return lambda store, task, splits, about: finetune.run_task(plan, store, task, splits, about)
