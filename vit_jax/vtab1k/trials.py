"""What is run for a task: a grid that is compared on V, then the final runs on T and V, tested on E."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.data.source_vtab import KIND, Splits
from vit_jax.data.vtab_tasks import Task
from vit_jax.errors import UsageError, known_names

METHODS = ("finetune", "linear")


class Trial(NamedTuple):
    """One training run. steps None: the config's own length."""

    kind: str  # select | final
    lr: float
    steps: int | None
    seed: int

    @property
    def name(self) -> str:
        """Of its folder and its result: `select-lr=0.01,steps=2500`, `final-seed=0`."""
        if self.kind == "final":
            return f"final-seed={self.seed}"
        return f"select-lr={self.lr:g}" + (f",steps={self.steps}" if self.steps is not None else "")


def check(config: ConfigDict) -> None:
    """Refuses a config that makes no trials.

    Raises:
      UsageError: names the key.
    """
    method = config.vtab.method
    if method not in METHODS:
        raise UsageError(f"vtab.method is {method!r}", known_names(method, METHODS))
    if method == "linear" and config.vtab.seeds != 1:
        raise UsageError(
            f"vtab.seeds is {config.vtab.seeds} for a linear probe", "set it to 1: nothing in it is drawn"
        )
    if config.resume:
        raise UsageError("vtab with resume", "give the weights as --checkpoint")
    for key in ("train", "val", "test"):
        if config.data[key]:
            raise UsageError(
                f"data.{key} is {config.data[key]!r}", "leave it empty: every task has its own data"
            )
    for key, values, least in (("lr", config.sweep.lr, 0.0), ("steps", config.sweep.steps, 0)):
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= least:
                raise UsageError(f"sweep.{key} holds {value!r}", "give positive numbers")


def grid(config: ConfigDict) -> list[Trial]:
    """The trials that are compared on V; none where there is only one setting."""
    rates = tuple(config.sweep.lr) or (config.optim.lr,)
    steps = tuple(config.sweep.steps) or (None,)
    if len(rates) * len(steps) == 1 and not (config.sweep.lr or config.sweep.steps):
        return []
    return [Trial("select", float(lr), n, config.seed) for n, lr in itertools.product(steps, rates)]


def best(trials: Sequence[Trial], accuracies: dict[str, float | None]) -> Trial | None:
    """The trial of the best accuracy on V; of equals the smaller rate, then the shorter run. None: all diverged."""
    kept = [trial for trial in trials if accuracies[trial.name] is not None]
    order = sorted(kept, key=lambda trial: (trial.lr, trial.steps or 0))
    return max(order, key=lambda trial: accuracies[trial.name], default=None)


def finals(config: ConfigDict, chosen: Trial | None) -> list[Trial]:
    """The runs whose median counts, in the setting of `chosen`; None: in the config's own."""
    lr, steps = (config.optim.lr, None) if chosen is None else (chosen.lr, chosen.steps)
    return [Trial("final", lr, steps, config.seed + k) for k in range(config.vtab.seeds)]


def trial_config(config: ConfigDict, task: Task, splits: Splits, data_dir: str, trial: Trial) -> ConfigDict:
    """The config of the run: on T with V as its judge, or on both with E."""
    run = config_lib.from_dict(config_lib.to_dict(config))
    defaults = config_lib.base_config()
    run.sweep, run.vtab = defaults.sweep, defaults.vtab  # they change nothing in a run
    run.seed, run.optim.lr = trial.seed, trial.lr
    if trial.steps is not None:
        for unit in config_lib.DURATION_UNITS:
            run[f"total_{unit}"] = None
        run.total_steps = trial.steps
    final = trial.kind == "final"
    run.data.train = spec(task, data_dir, splits.tv if final else splits.t)
    run.data.val = "" if final else spec(task, data_dir, splits.v)
    run.data.test = spec(task, data_dir, splits.e) if final else ""
    run.num_classes = task.num_classes
    return run


def spec(task: Task, data_dir: str, split: str) -> str:
    """A split of a task as a source."""
    return f"{KIND}:{task.name}" + (f":{data_dir}" if data_dir else "") + f"@{split}"


def about(trial: Trial, run: ConfigDict) -> dict[str, Any]:
    """What a result says of its trial."""
    return {
        "trial": trial.name,
        "kind": trial.kind,
        "seed": trial.seed,
        "lr": trial.lr,
        "schedule": run.schedule,
        **{f"total_{unit}": run[f"total_{unit}"] for unit in config_lib.DURATION_UNITS},
        "global_batch": run.global_batch,
        "train": run.data.train,
        "tested_on": run.data.val or run.data.test,
        "preprocess": run.data.preprocess_eval,
    }
