"""VTAB-1k: 19 tasks of 1000 training images each, one table.

    python -m vit_jax.vtab --check-data
    python -m vit_jax.vtab --config=configs/vtab.py --checkpoint=B_16.npz --workdir=runs/vtab
    python -m vit_jax.vtab --config=configs/vtab.py:linear --checkpoint=runs/i21k --workdir=runs/probe --task=dtd

Data: DIR/TASK/{train,val,test}/CLASS/* of --data-dir (train: the 800 images of the task, val: the 200, test: all
that is tested on; or an ArrayRecord folder with these three splits), else what tensorflow-datasets has prepared as
ArrayRecord in $TFDS_DATA_DIR. Trials are runs in WORKDIR/runs, results WORKDIR/results/<task>/<trial>.json; what is
through is never run again: the same command goes on after any stop. Commands with the same workdir share the work.
What fails is named on stderr, the rest goes on, and the exit code is 1.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from vit_jax import cli, distributed, files, train
from vit_jax.data.vtab_tasks import TASKS, Task
from vit_jax.errors import RunFailed, UsageError, known_names
from vit_jax.loop import Outcome
from vit_jax.vtab1k import folder, runner, table, writing
from vit_jax.vtab1k import plan as plan_lib
from vit_jax.vtab1k.check import Check, check
from vit_jax.vtab1k.linear import Prober

_log = logging.getLogger("vit_jax.vtab")  # by name: run as a command, __name__ is __main__


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code: 0 done, 1 data missing (with --check-data), 42 preempted.

    Raises:
      UsageError: refused before any work.
      RunFailed: some tasks failed, or have no data; the others are through.
    """
    parsed = cli.parse(_parser(), argv, config_required=False)
    flags = parsed.flags
    tasks = _tasks(flags.task)
    if flags.check_data:
        return _check_data(tasks, flags.data_dir)
    for name in ("config", "checkpoint", "workdir"):
        if not getattr(flags, name):
            raise UsageError(f"--{name} is missing", f"see {_parser().prog} --help")
    return _run(parsed.config, flags, tasks, ["python", "-m", "vit_jax.vtab", *argv])


def _parser() -> cli.Parser:
    parser = cli.Parser("python -m vit_jax.vtab", __doc__)
    parser.add_argument(
        "--checkpoint", help="weights of any supported layout, or a run: RUN, RUN@STEP, RUN@best"
    )
    parser.add_argument("--subtree", choices=("params", "ema"), help="of a run or a training state")
    parser.add_argument("--workdir", help="folder of the table; created, or continued")
    parser.add_argument("--data-dir", default="", metavar="DIR", help="folder with a folder for each task")
    parser.add_argument("--task", default="", metavar="A,B", help="these tasks alone: " + ", ".join(TASKS))
    parser.add_argument(
        "--check-data", action="store_true", help="a line per task: found, counted, or how to get it"
    )
    return parser


def _tasks(words: str) -> list[Task]:
    names = [word.strip() for word in words.split(",") if word.strip()]
    for name in names:
        if name not in TASKS:
            raise UsageError(f"unknown task {name!r}", known_names(name, TASKS))
    return [task for name, task in TASKS.items() if name in names or not names]


def _check_data(tasks: list[Task], data_dir: str) -> int:
    """Prints a line per task."""
    found = [check(task, data_dir) for task in tasks]
    for one in found:
        print(one.line(), flush=True)
    return distributed.EXIT_OK if all(one.ready for one in found) else distributed.EXIT_FAILED


def _run(config: ConfigDict, flags: Any, tasks: list[Task], command: list[str]) -> int:
    workdir = files.run_folder(flags.workdir)
    if config.compile_cache:
        train.use_compile_cache(config.compile_cache)
    distributed.initialize(
        init_timeout_s=config.distributed.init_timeout_seconds,
        heartbeat_timeout_s=config.distributed.heartbeat_seconds,
        shutdown_timeout_s=config.distributed.heartbeat_seconds,
    )
    weights = plan_lib.settle(config, flags.checkpoint, flags.subtree)
    checks = {task.name: check(task, flags.data_dir) for task in TASKS.values()}
    wanted = [checks[task.name] for task in tasks]
    usable = [one.task for one in wanted if one.splits is not None]
    if not usable:
        lines = "\n".join(one.line() for one in wanted)
        raise UsageError(
            f"the data of none of the {len(tasks)} tasks can be read",
            "--check-data says how to get it",
            lines,
        )
    resolved = plan_lib.preflight(config, weights, usable[0])

    def train_one(run: ConfigDict, path: epath.Path) -> Outcome:
        return train.train(run, path, command)

    plan = plan_lib.Plan(config, workdir, flags.data_dir, weights, train_one)
    folder.open_folder(workdir, config, flags.data_dir)
    with cli.work():
        return _work(plan, resolved, checks, wanted, _protocol(flags.config, command), flags.debug)


def _work(
    plan: plan_lib.Plan,
    resolved: ConfigDict,
    checks: dict[str, Check],
    wanted: list[Check],
    protocol: str,
    debug: bool,
) -> int:
    _log.info("images are normalised by %s (published scores differ by this)", plan.normalization)
    for one in wanted:
        if one.splits is None:
            _log.warning("%s is left out: %s; %s", one.task.name, one.problem, one.remedy)
    failed: dict[str, str] = {}

    def show() -> table.Content | None:
        if not distributed.is_main():
            return None
        return writing.update(plan, protocol, checks, failed)

    linear = plan.config.vtab.method == "linear"
    run_task = Prober(plan, resolved).run_task if linear else runner.finetuner(plan)
    ended = runner.run(plan, wanted, run_task, on_progress=show, failed=failed, debug=debug)
    content = show()
    if content is not None:
        print(table.terminal(content), end="", flush=True)
    for name in ended.elsewhere:
        _log.info("%s: another command is at it", name)
    if ended.preempted:
        print("preempted: saved; the same command continues", flush=True)
    distributed.shutdown()
    if ended.preempted:
        return distributed.EXIT_PREEMPTED
    if failed:
        details = "\n".join(f"{name}: {why}" for name, why in failed.items())
        raise RunFailed(f"not through: {', '.join(failed)} (the same command tries them again)\n{details}")
    return distributed.EXIT_OK


def _protocol(config: str, command: Sequence[str]) -> str:
    """The config and its overrides, as the command names them."""
    return " ".join([config, *(word for word in command if word.startswith("--config."))])


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
