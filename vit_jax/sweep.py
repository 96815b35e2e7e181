"""A grid of learning rates (and lengths) on a dev split, then the best one on the whole training set.

As the ViT paper tunes every fine-tuning run (arXiv 2010.11929, appendix B.1.1). Each trial is a run of its own in
WORKDIR/sweep, so a sweep that is stopped goes on where it was; `sweep.json` keeps what is known so far.
"""

import fnmatch
import itertools
import json
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from etils import epath
from ml_collections import ConfigDict

from vit_jax import cli, distributed, files
from vit_jax import config as config_lib
from vit_jax.data.dataset import full_spec
from vit_jax.errors import UsageError
from vit_jax.loop import Outcome
from vit_jax.workdir import differences

_log = logging.getLogger(__name__)

FILE = "sweep.json"
METRIC = "eval/val/accuracy"
# Config keys that change nothing that a trial finds.
MAY_DIFFER = ("checkpoint.*", "log_*", "profile.*", "tensorboard", "watchdog_minutes", "compile_cache", "mesh.*",
              "fsdp_min_size", "distributed.*", "data.num_*", "data.prefetch_*", "eval.*")  # fmt: skip


class Trial(NamedTuple):
    """One cell of the grid; steps None is the run's own length."""

    lr: float
    steps: int | None

    @property
    def name(self) -> str:
        """Of its folder: `lr=0.003` or `lr=0.003,steps=500`."""
        return f"lr={self.lr:g}" + (f",steps={self.steps}" if self.steps is not None else "")


def sweep(
    config: ConfigDict, workdir: epath.Path, train: Callable[[ConfigDict, epath.Path], Outcome]
) -> Outcome:
    """Runs the grid of `config.sweep`, then the final run in `workdir` itself.

    Args:
      train: trains a config in a folder, or goes on there.

    Returns:
      Of the final run, or of the one that was preempted.

    Raises:
      UsageError: a config without a grid.
    """
    trials, described = grid(config), config_lib.to_dict(config)
    accuracies = _known(workdir, described, trials)
    for number, trial in enumerate(trials, 1):
        if trial.name in accuracies:
            continue
        _log.info("sweep %d of %d: %s", number, len(trials), trial.name)
        outcome = _quietly(number > 1, train, trial_config(config, trial), workdir / "sweep" / trial.name)
        if outcome.preempted:
            return outcome
        accuracies[trial.name] = outcome.results[METRIC]
        _write(workdir, described, accuracies, None)
    # Of equals the smaller learning rate, the shorter run.
    best = max(sorted(trials), key=lambda trial: accuracies[trial.name])
    _write(workdir, described, accuracies, best)
    if distributed.is_main():
        for trial in trials:
            mark = "  <- best" if trial == best else ""
            print(f"sweep {trial.name} {METRIC}={accuracies[trial.name]:.6g}{mark}", flush=True)
    return _quietly(True, train, chosen(config, best), workdir)


def grid(config: ConfigDict) -> list[Trial]:
    """All trials.

    Raises:
      UsageError: no grid, no splits for it, or a number that can't be.
    """
    if not config.sweep.lr and not config.sweep.steps:
        raise UsageError(
            "--sweep without a grid", "set sweep.lr=(0.003, 0.01, ...), as configs/finetune.py does"
        )
    for key in ("train", "dev"):
        if not config.sweep[key]:
            raise UsageError(
                f"--sweep without sweep.{key}", "name a split, such as train[:98%] and train[98%:]"
            )
    if config.data.mixture:
        raise UsageError("--sweep with data.mixture", "name one source in data.train")
    if config.resume:
        raise UsageError("--sweep with resume", "start from init, or leave --sweep out")
    rates, steps = tuple(config.sweep.lr) or (config.optim.lr,), tuple(config.sweep.steps) or (None,)
    for key, values, least in (("lr", rates, 0.0), ("steps", steps, 0)):
        for value in values:
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float) or value <= least
            ):
                raise UsageError(f"sweep.{key} holds {value!r}", "give positive numbers")
    return [Trial(float(lr), n) for n, lr in itertools.product(steps, rates)]


def chosen(config: ConfigDict, trial: Trial) -> ConfigDict:
    """The config of the final run: all of data.train, with the rate and length of the trial."""
    final = config_lib.from_dict(config_lib.to_dict(config))
    final.optim.lr = trial.lr
    if trial.steps is not None:
        for unit in config_lib.DURATION_UNITS:
            final[f"total_{unit}"] = None
        final.total_steps = trial.steps
    return final


def trial_config(config: ConfigDict, trial: Trial) -> ConfigDict:
    """The config of a trial: a part of the training set, judged on the dev split and nothing else."""
    tuned = chosen(config, trial)
    tuned.data.train = full_spec(config.sweep.train, config.data.train)
    tuned.data.val = full_spec(config.sweep.dev, config.data.train)
    tuned.data.test = ""
    return tuned


def _quietly(started: bool, train: Callable[..., Outcome], *args: object) -> Outcome:
    """Once a run of the sweep has been, a refusal is a failure of the whole."""
    if not started:
        return train(*args)
    with cli.work():
        return train(*args)


def _known(workdir: epath.Path, config: dict[str, Any], trials: list[Trial]) -> dict[str, float]:
    """The accuracies of the trials that are through.

    Raises:
      UsageError: they are of another config, or the final run has been chosen from another grid.
    """
    path = workdir / FILE
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
        stored, accuracies, best = record["config"], dict(record[METRIC]), record["best"]
        if not all(isinstance(value, int | float) for value in accuracies.values()):
            raise ValueError("an accuracy is no number")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"can't read {path}: {error}", "remove it: the trials say again what they found"
        ) from None
    other = {
        key: pair
        for key, pair in differences(stored, config, config_lib.to_dict(config_lib.base_config())).items()
        if not key.startswith("sweep.") or key in ("sweep.train", "sweep.dev")
        if not any(fnmatch.fnmatchcase(key, pattern) for pattern in MAY_DIFFER)
    }
    if other:
        key, (old, new) = next(iter(other.items()))
        raise UsageError(
            f"{path} is of another config: {key} is {old!r} there, {new!r} here",
            "choose another --workdir, or give the config it was started with",
        )
    if (
        best is not None
        and (workdir / "config.json").exists()
        and best not in {trial.name for trial in trials}
    ):
        raise UsageError(
            f"the final run in {workdir} has {best}, which this grid lacks", "choose another --workdir"
        )
    return accuracies


def _write(
    workdir: epath.Path, config: dict[str, Any], accuracies: dict[str, float], best: Trial | None
) -> None:
    if not distributed.is_main():
        return
    content = {METRIC: accuracies, "best": best.name if best is not None else None, "config": config}
    files.make_folder(workdir)
    files.write_text(workdir / FILE, json.dumps(content, indent=1) + "\n")
