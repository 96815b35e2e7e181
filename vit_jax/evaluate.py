"""Evaluates a checkpoint: a run on its own split or on other data, or any weights as a config says; one JSON line.

    python -m vit_jax.evaluate --checkpoint=runs/quickstart
    python -m vit_jax.evaluate --checkpoint=runs/quickstart@best --data='digits@test[:100]'
    python -m vit_jax.evaluate --checkpoint=B_16.npz --config=configs/fewshot.py:data=folder:flowers
    python -m vit_jax.evaluate --checkpoint=runs/quickstart --report   # and an HTML page: RUN/report.html

A run of task masked_patch is evaluated on hidden patches, or with --config by its encoder's features. Otherwise the
config's data.val and data.test are classified; `features` has few-shot, linear and nearest-neighbour evaluation,
`imagenet` ReaL, V2, A, R and ObjectNet. What fails is named on stderr, the rest is printed, and the exit code is 1.
SIGTERM ends it after the batch with exit code 42; features that --cache holds by then aren't computed again.
"""

import copy
import json
import logging
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from vit_jax import cli, distributed, evaluation, files, runs, trained, workdir
from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax.data import sources
from vit_jax.data.dataset import EVAL_SPLITS, DataFacts, EvalData, full_spec, open_eval_data
from vit_jax.data.preprocess import with_range_of
from vit_jax.errors import RunFailed, UsageError
from vit_jax.formats.adapt import adapt, place
from vit_jax.formats.weights import Weights
from vit_jax.loop import Preempted, poll
from vit_jax.report import writing
from vit_jax.report.evaluated import Evaluated
from vit_jax.step import TrainState

_log = logging.getLogger("vit_jax.evaluate")  # by name: run as a command, __name__ is __main__

# Groups of a given config that say what is evaluated, and where; the rest is the checkpoint's.
_GIVEN = ("data", "eval", "features", "fewshot", "linear", "knn", "imagenet", "mesh", "distributed")


@dataclass(frozen=True)
class Prepared:
    """Everything open and checked."""

    job: job_lib.EvalJob
    data: EvalData
    extra: evaluation.Extra
    params: Any
    step: int | None  # None: bare weights


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code.

    Raises:
      UsageError: refused before any work.
      RunFailed: some evaluators failed; the results of the others are printed.
    """
    parsed = cli.parse(_parser(), argv, config_required=False)
    flags = parsed.flags
    details = Path(flags.details) if flags.details else None
    if details is not None and (details.suffix not in _WRITERS or not details.absolute().parent.is_dir()):
        raise UsageError(f"--details={details}", "give a file ending in .json or .npz in an existing folder")
    page = None if flags.report is None else writing.target(flags.report, flags.checkpoint)
    settings = (parsed.config or trained.stored_config(flags.checkpoint)).distributed
    distributed.initialize(
        init_timeout_s=settings.init_timeout_seconds,
        heartbeat_timeout_s=settings.heartbeat_seconds,
        shutdown_timeout_s=settings.heartbeat_seconds,
    )
    weights, config = trained.open_checkpoint(
        flags.checkpoint, subtree=flags.subtree, fields=cli.model_fields(flags.field)
    )
    own_config = copy.deepcopy(config)
    prepared = _prepare(flags, weights, config, parsed.config)
    try:
        with cli.work():
            results, arrays, failed = _run(prepared, details=details is not None or page is not None)
    except Preempted:
        return _stopped(prepared.job.config.features.cache)
    if distributed.is_main():
        if details is not None:
            _write(details, arrays)
        print(json.dumps(workdir.plain({"checkpoint": flags.checkpoint, "step": prepared.step} | results)),
              flush=True)  # fmt: skip
    if page is not None:
        found = Evaluated(
            checkpoint=flags.checkpoint, step=prepared.step, job=prepared.job, params=prepared.params,
            data=prepared.data, others=prepared.extra.test_splits, config=own_config,
            own_data=(flags.data, flags.preprocess, parsed.config) == (None, None, None),
            results=results, details=arrays, failed=tuple(failed), command=tuple(argv),
        )  # fmt: skip
        failed += _report(page, found, debug=flags.debug)
    distributed.shutdown()
    if failed:
        raise RunFailed("; ".join(failed))
    return distributed.EXIT_OK


def _stopped(cache: str) -> int:
    """Says what a signal left behind; the exit code."""
    kept = f"features of what was through are kept in {cache}" if cache else "nothing is kept"
    _log.warning("stopped by a signal before the results were there: %s; the same command starts again", kept)
    distributed.shutdown()
    return distributed.EXIT_PREEMPTED


def _parser() -> cli.Parser:
    parser = cli.Parser("python -m vit_jax.evaluate", __doc__)
    parser.add_argument(
        "--checkpoint", required=True, help="RUN, RUN@STEP, RUN@best, or a file or folder of weights"
    )
    parser.add_argument("--data", help="SOURCE[@SPLIT] to evaluate on; default: the run's own val and test")
    parser.add_argument("--preprocess", help="default: the config's or the checkpoint's data.preprocess_eval")
    parser.add_argument("--subtree", help="params | ema, or a part of a file; default: the parameters")
    parser.add_argument("--classes", metavar="FILE", help="class names of weights that have none, one a line")
    parser.add_argument(
        "--details", metavar="FILE",
        help="also write arrays there, .json or .npz: accuracy and count by class, calibration, confusions",
    )  # fmt: skip
    parser.add_argument(
        "--cache", metavar="DIR", help="keep features there; default: the config's features.cache"
    )
    parser.add_argument(
        "--report", nargs="?", const="", metavar="FILE.html",
        help="also write a page about the checkpoint and these results; default: RUN/report.html",
    )  # fmt: skip
    cli.add_fields(parser)
    return parser


def _prepare(flags: Any, weights: Weights, config: ConfigDict, given: ConfigDict | None) -> Prepared:
    own = (config.data.train, config.data.test or config.data.val)
    text = _settle(config, flags, given)
    program = trained.check_preprocess(text, weights, config)
    config.data.preprocess_eval = text
    if weights.layout != runs.LAYOUT:
        trained.fit_mesh(config, jax.devices())
    names = _logit_names(flags.classes or config.imagenet.classes, weights)
    # On data of its own a run is asked what it learned; a config of evaluators takes its encoder for features.
    if given is None and trained.stored_config(flags.checkpoint).task == "masked_patch":
        return _prepare_hidden_patches(flags, config)
    data = _open_data(names, weights, config)
    mean, std = program.normalize
    facts = data.facts() if data.evals else DataFacts(
        0, data.num_classes, (*config.model.image_size, config.model.channels), (),
        tuple(map(float, mean)), tuple(map(float, std)),
    )  # fmt: skip
    job = job_lib.build_eval(config, facts)
    extra = evaluation.open_extra(job, own=own, classes=names)
    if not data.evals and not extra:
        raise UsageError(
            "nothing to evaluate on", "give --data=SOURCE[@SPLIT], or a config with features.data"
        )
    params = place(adapt(weights, job.model), job.abstract_params)
    return Prepared(job, data, extra, params, weights.step)


def _prepare_hidden_patches(flags: Any, config: ConfigDict) -> Prepared:
    """For a run of masked patch prediction, with the mask token and the head that its weights are read without."""
    step, params, names = runs.read_stored(flags.checkpoint, flags.subtree)
    config.task = "masked_patch"
    if flags.data is not None:  # whatever its classes are
        names = sources.open_source(flags.data, default_split="test").classes
    data = open_eval_data(config.data, classes=tuple(names), num_classes=None)
    if not data.evals:
        raise UsageError("nothing to evaluate on", "give --data=SOURCE[@SPLIT]")
    job = job_lib.build_eval(config, data.facts())
    extra = evaluation.open_extra(job, own=("", ""), classes=None)
    return Prepared(job, data, extra, place(params, job.abstract_params, flags.checkpoint), step)


def _settle(config: ConfigDict, flags: Any, given: ConfigDict | None) -> str:
    """Makes the checkpoint's config say what is evaluated: as the given one and the flags do, the flags first.

    Returns:
      The preprocessing. Images of other data than a run's own are squashed to the model's size where the run's own
      preprocessing takes them as they come.
    """
    preprocess = config.data.preprocess_eval
    if flags.data is not None or given is not None:
        preprocess = trained.squashed(preprocess, config)
    if given is None:  # the run's own split; what its training evaluated besides isn't asked for again
        defaults = config_lib.base_config()
        config.features, config.imagenet = defaults.features, defaults.imagenet
    else:
        for name in _GIVEN:
            config[name] = given[name]
        if given.data.preprocess_eval:
            preprocess = with_range_of(preprocess, given.data.preprocess_eval)
    if flags.data is not None:
        config.data.val, config.data.test = "", flags.data
    if flags.preprocess is not None:
        preprocess = with_range_of(preprocess, flags.preprocess)
    if flags.cache is not None:
        config.features.cache = flags.cache
    return preprocess


def _logit_names(path: str, weights: Weights) -> tuple[str, ...] | None:
    """The classifier's class names by logit: of a file, else the checkpoint's; None: not known."""
    if not path:
        return weights.classes
    names = workdir.read_class_file(path)
    if len(names) != weights.fields["num_classes"]:
        raise UsageError(
            f"{path} names {len(names)} classes, the model has {weights.fields['num_classes']}",
            "give as many, in order",
        )
    return names


def _open_data(names: Sequence[str] | None, weights: Weights, config: ConfigDict) -> EvalData:
    """data.val and data.test with the classifier's class map."""
    num_classes = weights.fields["num_classes"]
    spec = next((config.data[name] for name in EVAL_SPLITS if config.data[name]), None)
    if spec is not None and not num_classes:
        raise UsageError(
            f"{weights.origin} has no classes: it gives features", "evaluate these with features.data"
        )
    if spec is not None and names is None:
        spec = full_spec(spec, config.data.train)
        names = sources.open_source(spec, default_split="test").classes
        if len(names) != num_classes:
            raise UsageError(
                f"{weights.origin} has {num_classes} classes without names, the data has {len(names)}",
                "give --classes=FILE with their names, one a line",
            )
        _log.warning("%s has no class names: they are taken to be the data's, in its order", weights.origin)
    return open_eval_data(config.data, classes=tuple(names or ()), num_classes=num_classes)


def _run(prepared: Prepared, *, details: bool) -> tuple[dict[str, Any], dict[str, np.ndarray], list[str]]:
    """Results, arrays, and a line for each evaluator that failed."""
    evaluators = evaluation.build(
        prepared.job, prepared.data, prepared.extra, final_only=True, details=details, on_batch=poll
    ).by_name
    state = _state(prepared.params, prepared.step or 0)
    results: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    failed = []
    for name, evaluator in evaluators.items():
        try:
            found = evaluator.run(state)
        except (UsageError, RunFailed, ValueError) as error:
            if len(evaluators) == 1:
                raise
            _log.warning("%s not evaluated: %s", name, error)
            failed.append(f"{name}: {error}")
            continue
        results |= {f"eval/{name}/{metric}": value for metric, value in found.items()}
        arrays |= {f"{name}/{key}": value for key, value in getattr(evaluator, "details", {}).items()}
    return results, arrays, failed


def _report(path: epath.Path, found: Evaluated, *, debug: bool) -> list[str]:
    """Writes the page; a line if that failed. The results are out already and stay what they are."""
    try:
        writing.write(path, found)
    except Exception as error:  # data, memory, drawing, the disk: none of them takes the results back
        if debug:
            traceback.print_exc()
        return [f"the report {path} isn't written: {files.line(error)}"]
    if distributed.is_main():
        _log.info("report: %s", path)
    return []


def _state(params: object, step: int) -> TrainState:
    """A state with nothing but parameters, for the evaluators."""
    zero = jax.numpy.zeros((), jax.numpy.int32)
    return TrainState(step=zero + step, params=params, opt_state=(), skipped=zero, skipped_in_a_row=zero)


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    try:
        _WRITERS[path.suffix](path, arrays)
    except OSError as error:
        _log.warning("%s can't be written: %s", path, error.strerror)


def _write_json(path: Path, arrays: dict[str, np.ndarray]) -> None:
    path.write_text(json.dumps(workdir.plain({k: v.tolist() for k, v in arrays.items()})) + "\n")


def _write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(path, **arrays)


_WRITERS = {".json": _write_json, ".npz": _write_npz}


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
