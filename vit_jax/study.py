"""The ViT paper's questions at small scale: trains a list of small runs, then writes a table and figures.

    python -m vit_jax.study --workdir=runs/tiny --data=tiny-imagenet          # what is missing, then the report
    python -m vit_jax.study --workdir=runs/tiny --data=tiny-imagenet --list   # the runs; which are through
    python -m vit_jax.study --workdir=runs/tiny --report                      # of what is through, trains nothing

FOLDER of --data has train/CLASS/ and validation/CLASS/ images. Each run is one of vit_jax.train, of a config in
configs/tiny/, in WORKDIR/<experiment>/<run>/<seed>; the first seeds of all come first. The same command goes on
after any stop; what is through isn't trained again. What fails is named, the rest goes on, and the exit code is 1.
The report: WORKDIR/report.md, results.json and figures/<experiment>.png.
"""

import argparse
import json
import logging
import shlex
import sys
from collections.abc import Sequence

from etils import epath
from ml_collections import ConfigDict

from vit_jax import cli, distributed, files, train
from vit_jax import config as config_lib
from vit_jax.errors import RunFailed, UsageError, known_names
from vit_jax.loop import Outcome
from vit_jax.studies import results, runner, table, tiny
from vit_jax.studies.plan import Cell, Experiment, cells, config_of

_log = logging.getLogger("vit_jax.study")  # by name: run as a command, __name__ is __main__


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code: 0 done, 42 preempted and saved.

    Raises:
      UsageError: refused before any work.
      RunFailed: some runs failed; the others are through.
    """
    flags, words = cli.parse_words(_parser(), argv)
    if words:
        raise UsageError(f"unexpected {words[0]!r}", "options are --name=value")
    if not flags.workdir:
        raise UsageError("--workdir is missing", f"see {_parser().prog} --help")
    for name in ("seeds", "steps"):
        if getattr(flags, name) is not None and getattr(flags, name) < 1:
            raise UsageError(f"--{name}={getattr(flags, name)}", "give at least 1")
    root, experiments = files.run_folder(flags.workdir), _experiments(flags.experiment)
    command = ["python", "-m", "vit_jax.study", *argv]
    if flags.report:
        _write_report(root, experiments, command)
        return distributed.EXIT_OK
    if not flags.data:
        raise UsageError("--data is missing", "give a folder with train/CLASS/ and validation/CLASS/ images")
    todo = [
        (cell, config_of(cell, folder=flags.data, workdir=root, steps=flags.steps))
        for cell in cells(experiments, flags.seeds)
    ]
    if flags.list:
        for cell, config in todo:
            print(f"{'through' if runner.is_through(root / cell.name, config) else 'to do'}\t{cell.name}")
        return distributed.EXIT_OK
    return _run(todo, root, experiments, command, flags)


def _parser() -> cli.Parser:
    parser = cli.Parser("python -m vit_jax.study", __doc__)
    parser.add_argument("--workdir", help="folder of the study; created, or continued")
    parser.add_argument("--data", default="", metavar="FOLDER", help="images to train and evaluate on")
    names = ", ".join(experiment.name for experiment in tiny.STUDY)
    parser.add_argument("--experiment", default="", metavar="A,B", help=f"these alone: {names}")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each setting, as each has by default")
    parser.add_argument("--steps", type=int, metavar="N", help="of every run, for a trial of the whole")
    parser.add_argument("--list", action="store_true", help="print the runs and train nothing")
    parser.add_argument("--report", action="store_true", help="write the report and train nothing")
    return parser


def _experiments(words: str) -> list[Experiment]:
    names = [word.strip() for word in words.split(",") if word.strip()]
    known = [experiment.name for experiment in tiny.STUDY]
    for name in names:
        if name not in known:
            raise UsageError(f"unknown experiment {name!r}", known_names(name, known))
    return [experiment for experiment in tiny.STUDY if experiment.name in names or not names]


def _run(
    todo: list[tuple[Cell, ConfigDict]],
    root: epath.Path,
    experiments: list[Experiment],
    command: list[str],
    flags: argparse.Namespace,
) -> int:
    settings = config_lib.base_config().distributed
    train.use_compile_cache(str(root / "compile_cache"))  # seeds of a setting, and restarts, share programs
    distributed.initialize(
        init_timeout_s=settings.init_timeout_seconds,
        heartbeat_timeout_s=settings.heartbeat_seconds,
        shutdown_timeout_s=settings.heartbeat_seconds,
    )

    def train_one(config: ConfigDict, path: epath.Path) -> Outcome:
        return train.train(config, path, command)

    failed: dict[str, str] = {}
    preempted = runner.run(todo, root, train_one, failed, debug=flags.debug)
    with cli.work():
        if distributed.is_main():
            _write_report(root, experiments, command)
        distributed.shutdown()
    if preempted:
        print("preempted: saved; the same command continues", flush=True)
        return distributed.EXIT_PREEMPTED
    if failed:
        details = "\n".join(f"{name}: {why}" for name, why in failed.items())
        raise RunFailed(f"not through: {', '.join(failed)} (the same command tries them again)\n{details}")
    return distributed.EXIT_OK


def _write_report(root: epath.Path, experiments: list[Experiment], command: list[str]) -> None:
    """Prints the table too."""
    # Here, for commands load no matplotlib before they draw.
    from vit_jax.figures import png
    from vit_jax.studies.figures import draw

    if not root.is_dir():
        raise UsageError(f"{root} does not exist", "give the --workdir of a study")
    found = results.read_study(root, experiments)
    files.make_folder(root / "figures")
    for experiment in experiments:
        if any(one.values for one in found[experiment.name]):
            figure = draw(experiment, found[experiment.name])
            (root / "figures" / f"{experiment.name}.png").write_bytes(png(figure))
    files.write_text(root / "results.json", json.dumps(table.plain(experiments, found), indent=1) + "\n")
    text = table.markdown(experiments, found, shlex.join(command))
    files.write_text(root / "report.md", text)
    print(text, flush=True)
    _log.info("written: %s", root / "report.md")


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
