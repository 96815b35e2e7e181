"""A task by fine-tuning: every trial is a run of its own in WORKDIR/runs/<task>/<trial>, by the training loop."""

import logging
import math
import shutil
from time import monotonic
from typing import Any

import jax

from vit_jax import distributed, files
from vit_jax.data.source_vtab import Splits
from vit_jax.data.vtab_tasks import Task
from vit_jax.errors import RunFailed
from vit_jax.loop import Preempted
from vit_jax.metrics import NonFinite
from vit_jax.vtab1k import trials
from vit_jax.vtab1k.plan import Notes, Plan
from vit_jax.vtab1k.results import Result, Store
from vit_jax.vtab1k.trials import Trial

_log = logging.getLogger(__name__)

RUNS = "runs"


def run_task(plan: Plan, store: Store, task: Task, splits: Splits, notes: Notes) -> None:
    """Runs what isn't through of a task: the grid, then the final runs in its best setting.

    Args:
      notes: gives what every result says of the data.

    Raises:
      Preempted: told to stop; saved.
      RunFailed and others: a run failed. What was through stays.
    """
    grid = trials.grid(plan.config)
    accuracies: dict[str, float | None] = {}
    for number, trial in enumerate(grid, 1):
        where = f"{task.name}: {number} of {len(grid)} settings"
        accuracies[trial.name] = _result(plan, store, task, splits, trial, where, notes, {})["accuracy"]
    chosen = trials.best(grid, accuracies)
    if grid and chosen is None:
        raise RunFailed(
            f"every setting of the grid diverged on {task.name} (lower sweep.lr, or set optim.clip_norm)"
        )
    finals = trials.finals(plan.config, chosen)
    for number, trial in enumerate(finals, 1):
        where = f"{task.name}: {number} of {len(finals)} final runs"
        _result(plan, store, task, splits, trial, where, notes, {"chosen_from": accuracies} if grid else {})


def _result(
    plan: Plan,
    store: Store,
    task: Task,
    splits: Splits,
    trial: Trial,
    where: str,
    notes: Notes,
    more: dict[str, Any],
) -> Result:
    """The result of a trial: the one on disk, or that of a run here, with `more` in it."""
    folder = plan.workdir / RUNS / task.name / trial.name
    if distributed.main_says(store.read(task.name, trial.name) is not None):
        found = store.read(task.name, trial.name)
    else:
        _log.info("vtab %s: %s", where, trial.name)
        found = _run(plan, task, splits, trial, folder, notes() | more)
        if distributed.is_main():
            store.write(task.name, trial.name, found)
    if not plan.config.vtab.keep_checkpoints and distributed.is_main():
        _drop(folder / "checkpoints")  # also what a command left that was killed in between
    return found


def _run(plan: Plan, task: Task, splits: Splits, trial: Trial, folder: Any, notes: dict[str, Any]) -> Result:
    config = trials.trial_config(plan.config, task, splits, plan.data_dir, trial)
    about = {**trials.about(trial, config), **notes}
    began = monotonic()
    try:
        outcome = plan.train(config, folder)
        if outcome.preempted:
            raise Preempted
        name = "val" if trial.kind == "select" else "test"
        found = {
            key: outcome.results[f"eval/{name}/{key}"] for key in ("accuracy", "correct", "count", "loss")
        }
        if not math.isfinite(found["loss"]):
            raise NonFinite(
                f"the loss on {name} of {task.name}, {trial.name} isn't finite "
                "(lower optim.lr, or set optim.clip_norm)"
            )
    except NonFinite as error:
        if trial.kind != "select":
            raise
        # A setting that diverges is a finding: it isn't tried again, and the others are compared.
        _log.warning("vtab %s, %s diverged: %s", task.name, trial.name, files.line(error))
        found = {"accuracy": None, "diverged": files.line(error)}
    finally:
        jax.clear_caches()  # or the programs of hundreds of runs stay in memory
    return {**about, **found, "seconds_of_last_start": round(monotonic() - began, 1)}


def _drop(folder: Any) -> None:
    """Removes the checkpoints of a run that is through; its logs stay."""
    if not folder.exists():
        return
    try:
        if files.is_remote(folder):
            folder.rmtree()
        else:
            shutil.rmtree(folder)
    except OSError as error:
        _log.warning("%s can't be removed: %s", folder, error.strerror)
