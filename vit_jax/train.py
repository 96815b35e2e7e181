"""Trains a ViT: from scratch, from another run, or on from where this run stopped.

    python -m vit_jax.train --config=configs/quickstart.py --workdir=runs/quickstart

The same command starts a run and continues it after a crash, a kill or a preemption (exit code 42: saved, start
it again). Overrides: --config.KEY=VALUE with the keys of configs/base.py.
"""

import logging
import sys
from collections.abc import Sequence

import jax
from etils import epath
from ml_collections import ConfigDict

from vit_jax import (
    cli,
    distributed,
    early_stop,
    evaluation,
    files,
    loop,
    model_config,
    optim,
    param_groups,
    sharding,
    start,
    summary,
    sweep,
    workdir,
)
from vit_jax import (
    config as config_lib,
)
from vit_jax import (
    job as job_lib,
)
from vit_jax.checkpoint import Checkpoints, free_disk_warning
from vit_jax.data.dataset import Dataset, open_dataset
from vit_jax.errors import UsageError
from vit_jax.formats.weights import Weights
from vit_jax.models.variants import variant_fields
from vit_jax.tasks.masked_patch import MaskedPatch
from vit_jax.timing import Buckets

_log = logging.getLogger("vit_jax.train")  # by name: run as a command, __name__ is __main__

# Keys that may differ from the stored config when a run goes on: they change where, how fast and how chattily it
# runs, not what it computes.
MAY_CHANGE_ON_RESUME = (
    "mesh.*", "fsdp_min_size", "distributed.*", "checkpoint.*", "eval.*", "features.*", "fewshot.*", "linear.*",
    "knn.*", "imagenet.*", "early_stop.*", "log_*", "profile.*", "tensorboard",
    "watchdog_minutes", "compile_cache", "allow_*", "resume", "init", "init_*", "sweep.*",
    "data.train_examples", "data.num_threads", "data.num_workers", "data.prefetch_*",
)  # fmt: skip
# Another total changes the schedule of the steps to come, so it needs a word.
TOTAL = "total_*"


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code: 0 done, 42 preempted and saved.

    Raises:
      UsageError: refused before any work.
      RunFailed and others: failed later.
    """
    parser = cli.Parser("python -m vit_jax.train", __doc__)
    parser.add_argument("--workdir", required=True, help="folder of the run; created, or continued")
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="the grid of config.sweep on its dev split, then the best on all of train",
    )
    parsed = cli.parse(parser, argv)
    if not parsed.flags.workdir:
        raise UsageError("--workdir is empty", "give a folder for the run")
    config, path = parsed.config, files.run_folder(parsed.flags.workdir)
    if config.compile_cache:
        use_compile_cache(config.compile_cache)
    distributed.initialize(
        init_timeout_s=config.distributed.init_timeout_seconds,
        heartbeat_timeout_s=config.distributed.heartbeat_seconds,
        shutdown_timeout_s=config.distributed.heartbeat_seconds,
    )
    command = ["python", "-m", "vit_jax.train", *argv]
    if parsed.flags.sweep:
        outcome = sweep.sweep(config, path, lambda *run: train(*run, command))
    else:
        outcome = train(config, path, command)
    distributed.shutdown()
    return distributed.EXIT_PREEMPTED if outcome.preempted else distributed.EXIT_OK


def use_compile_cache(folder: str) -> None:
    """Keeps compiled programs in a folder, of this machine or of an object store."""
    jax.config.update("jax_compilation_cache_dir", folder)
    if files.is_remote(folder):
        files.need_package(folder)
        # XLA's own caches (autotuning, kernels) know local files only.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def train(config: ConfigDict, path: epath.Path, command: Sequence[str]) -> loop.Outcome:
    """Trains in a folder from wherever its run is, to the end or to a preemption; says so on stdout.

    Args:
      config: complete; what it leaves open of the model is settled in place.
      command: for the record of the run.

    Raises:
      UsageError: refused before any work.
      RunFailed and others: failed later.
    """
    buckets = Buckets()
    dataset = open_dataset(config.data, seed=config.seed, num_classes=config.num_classes)
    _warn_of_another_size(config, len(dataset.train))
    weights = _resolve_model(config, dataset, path)
    job = job_lib.build(config, dataset.facts())
    loop.check_best_metric(config.checkpoint.best_metric, dataset, ema=config.ema_decay is not None)
    early_stop.check(config, job.eval_every, dataset.evals)
    extra = _open_extra(job, dataset)
    opened = workdir.open_workdir(
        path,
        config_lib.to_dict(config),
        may_change=MAY_CHANGE_ON_RESUME + ((TOTAL,) if config.allow_total_change else ()),
        hints={TOTAL: "set allow_total_change=true to go on with another total"},
        command=command,
        defaults=config_lib.to_dict(config_lib.base_config()),
    )
    workdir.write_classes(path, dataset.classes)
    checkpoints = Checkpoints(
        path / "checkpoints", keep=config.checkpoint.keep, keep_every_steps=config.checkpoint.keep_every_steps
    )
    best = (
        Checkpoints(path / "best", keep=1, keep_every_steps=None)
        if early_stop.best_metric(config)[0]
        else None
    )
    state, step = start.initial_state(job, checkpoints, weights, dataset.classes)

    dataset.check_memory(config.global_batch)
    with cli.work():
        _describe(job, dataset, path)
        _warn_of_another_total(job, opened, step)
        if step >= job.total_steps:
            _log.info("already finished at step %d", step)
        outcome = loop.Outcome(start_step=step, step=step)
        distributed.continues_from(checkpoints.latest_step)
        how = "failed"
        try:
            loop.train(job, dataset, path, checkpoints, best, state, outcome, buckets, extra)
            checkpoints.close()
            if best is not None:
                best.close()
            how = "preempted" if outcome.preempted else "done"
            if outcome.stopped and not outcome.preempted:
                how = f"done, stopped early ({outcome.stopped})"
        except KeyboardInterrupt:
            how = "interrupted"
            raise
        except Exception as error:
            how = f"failed ({files.line(error)})"
            raise
        finally:
            outcome.seconds = outcome.seconds or buckets.seconds()
            if distributed.is_main():
                summary.report(job, outcome, path, how, checkpoints.latest_step)
    _say(outcome)
    return outcome


def _warn_of_another_size(config: ConfigDict, found: int) -> None:
    expected = config.data.train_examples
    if expected is not None and expected != found:
        _log.warning(
            "%s has %d images, data.train_examples says %d: epochs are counted by what is there",
            config.data.train or "data.mixture", found, expected,
        )  # fmt: skip


def _open_extra(job: job_lib.Job, dataset: Dataset) -> evaluation.Extra:
    """The data of evaluators on other sets than the run's own."""
    config, classes = job.config, dataset.classes
    if config.imagenet.classes:
        classes = workdir.read_class_file(config.imagenet.classes)
    own = (config.data.train, config.data.test)
    return evaluation.open_extra(job, own=own, classes=classes)


def _resolve_model(config: ConfigDict, dataset: Dataset, path: epath.Path) -> Weights | None:
    """Settles what the config leaves open of the model; the weights to start from, if that took reading them.

    A run that goes on has settled it before: its init file may be gone by now.
    """
    weights, inferred = None, {}
    if (path / "config.json").exists():
        inferred = workdir.read_config(path)["model"]
    elif config.init:
        weights = start.read_init(config)
        inferred = start.inferred_fields(weights)
    model_config.resolve(config, dataset.facts(), inferred)
    return weights


def _describe(job: job_lib.Job, dataset: Dataset, path: epath.Path) -> None:
    """What a stranger wants to know from the log of a run before its first step."""
    params = job.abstract_state.params
    count = sum(x.size for x in jax.tree.leaves(params))
    device = jax.devices()[0]
    mesh = " x ".join(f"{axis} {size}" for axis, size in job.mesh.shape.items())
    _log.info("devices: %d x %s, %d processes; mesh %s", jax.device_count(), device.device_kind,
              jax.process_count(), mesh)  # fmt: skip
    _log.info("model: %s, %.2f M parameters, %d classes, images %s", _model_text(job.config), count / 1e6,
              job.facts.num_classes, "x".join(map(str, job.facts.image_shape)))  # fmt: skip
    if isinstance(job.task, MaskedPatch):
        _log.info("task: %s", job.task.describe(job.config.masked_patch.target))
    _log.info("data: %s", dataset.describe(job.config.global_batch))
    _log.info("length: %d steps of %d examples = %.2f epochs", job.total_steps, job.config.global_batch,
              job.total_steps * job.config.global_batch / job.facts.num_examples)  # fmt: skip
    if summary := param_groups.groups_summary(params, job.groups):
        _log.info("%s", summary)
    if job.config.optim.wd:
        trained, _ = param_groups.split(params, job.groups.frozen)
        _log.info("%s", optim.decay_summary(trained, job.config.optim.wd_mask, job.config.optim.wd_mults))
    if job.config.ema_decay is not None:
        _log.info("average of the parameters: decay %g, evaluated as eval/<name>_ema", job.config.ema_decay)
    if job.mesh.size > 1:
        _log.info("parameters on the mesh:\n%s", sharding.sharding_table(params, job.state_shardings.params))
    state_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(job.abstract_state))
    free_disk_warning(path, state_bytes)


def _model_text(config: ConfigDict) -> str:
    """The model's name, and what the config makes different of it."""
    named = variant_fields(config.model.name)
    other = [
        f"{key} {config.model[key]}" for key, value in named.items() if config.model[key] not in (None, value)
    ]
    return config.model.name + (f" with {', '.join(other)}" if other else "")


def _warn_of_another_total(job: job_lib.Job, opened: workdir.Workdir, step: int) -> None:
    changed = {key: pair for key, pair in opened.changed.items() if key.startswith("total_")}
    if not changed or opened.stored is None:
        return
    stored: ConfigDict = config_lib.from_dict(opened.stored)
    before = job_lib.schedule_of(stored, job.facts)[0]
    _log.warning(
        "%s: the learning rate at step %d becomes %.6g instead of %.6g",
        ", ".join(f"{key} was {old}, is {new}" for key, (old, new) in changed.items()),
        step, float(job.schedule(step)), float(before(step)),
    )  # fmt: skip


def _say(outcome: loop.Outcome) -> None:
    """The last line of stdout."""
    if not distributed.is_main():
        return
    if outcome.preempted:
        print(f"preempted step={outcome.step}: saved; the same command continues", flush=True)
        return
    shown = [
        f"{key}={value:.6g}" for key, value in outcome.results.items() if key.endswith(("/accuracy", "/loss"))
    ]
    early = [f"(stopped early: {outcome.stopped})"] if outcome.stopped else []
    print(" ".join([f"done step={outcome.step}", *shown, *early]), flush=True)


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
