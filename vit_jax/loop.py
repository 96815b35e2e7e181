"""The one training loop, for pretraining and fine-tuning alike.

The order of a step is fixed, for these reasons:
  1. stop check      a preempted run saves what it has before it starts anything new;
  2. checkpoint      what is due *at* step i has seen i batches, whatever happens later in the step;
  3. evaluation      after the checkpoint, so that a crash while evaluating loses nothing;
  4. data            the wait for it is measured on its own;
  5. step            dispatched; the device works while the host goes on;
  6. log             of the step before, which is done by now: the device never waits for the log.
"""

import functools
import logging
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import jax

from vit_jax import distributed, early_stop, evaluation, flops
from vit_jax.checkpoint import Checkpoints
from vit_jax.data.dataset import Dataset
from vit_jax.errors import UsageError, known_names
from vit_jax.evaluation import Evaluators, Extra
from vit_jax.evaluators.features import NotFinite
from vit_jax.job import Job
from vit_jax.metrics import StepLog, shows_bars
from vit_jax.profile import Profile
from vit_jax.records import Records, open_records
from vit_jax.step import TrainState
from vit_jax.timing import Buckets, Throughput, Watchdog
from vit_jax.writers import JsonMetrics, TensorBoard, Writer, Writers

_log = logging.getLogger(__name__)


class Preempted(Exception):
    """The run was told to stop, on all processes at the same point."""


@dataclass
class Outcome:
    """How far a start of a run has come, and how it ended.

    Attributes:
      start_step: batches seen before this start.
      step: batches seen; at the end those of the newest checkpoint.
      preempted: stopped by a signal, saved, to be started again.
      stopped: why the run ended before its last step; "": it didn't.
      results: of the final evaluation, `eval/<name>/<metric>`.
      seconds: by bucket.
    """

    start_step: int
    step: int
    preempted: bool = False
    stopped: str = ""
    results: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def poll() -> None:
    """Raises Preempted, on all processes together, if a signal came to any of them."""
    if distributed.preempted():
        raise Preempted


def train(
    job: Job,
    dataset: Dataset,
    workdir: Path,
    checkpoints: Checkpoints,
    best: Checkpoints | None,
    state: TrainState,
    outcome: Outcome,
    buckets: Buckets,
    extra: Extra,
) -> None:
    """Trains from where `outcome` stands to the end of the job, evaluates, and saves its last step.

    Args:
      job, dataset: what to do, with what.
      workdir: of the run; metrics.jsonl, tensorboard/, profile/ and examples.jsonl go there.
      checkpoints: of the run.
      best: where the best state by `checkpoint.best_metric` or `early_stop.metric` is kept, if any.
      state: at `outcome.step`; donated.
      outcome: kept up to date, so that a run that fails can be told about too.
      buckets: of wall-clock time, begun with the process.
      extra: the data of evaluators besides val and test.

    Raises:
      RunFailed: NonFinite, DataError, CheckpointFailed; what was saved before stays.
    """
    config, start_step = job.config, outcome.start_step
    watchdog = Watchdog(config.watchdog_minutes)
    writer = _writer(job, workdir)
    examples = _examples_file(job, workdir)
    throughput = Throughput(job.flops_per_image, peak_flops(job))

    def on_batch() -> None:
        watchdog.pat()
        poll()

    with buckets.bucket("compile"):
        evaluators = evaluation.build(job, dataset, extra, on_batch=on_batch)
        train_step = job.lower_train_step().compile() if start_step < job.total_steps else None
        # Compiling takes one process longer than another, and a first collective doesn't wait for long.
        distributed.meet("compiled", config.distributed.init_timeout_seconds)
        checkpoints.prepare(state)

    ids = functools.partial(dataset.step_ids, config.seed, global_batch=config.global_batch)
    log = StepLog(
        writer,
        throughput,
        total_steps=job.total_steps,
        start_step=start_step,
        every_steps=job.log_every,
        images_per_step=config.global_batch,
        nonfinite_limit=config.nonfinite_limit,
        describe_batch=lambda batch: dataset.named_ids(ids(step=batch)),
        show_bar=distributed.is_main() and shows_bars(sys.stderr),
    )
    profile = Profile(workdir / "profile", config.profile.start_step, config.profile.num_steps)
    stopping = early_stop.open_early_stop(config, job.eval_every, workdir, start_step)
    best_metric, evaluated = (
        early_stop.best_metric(config),
        (),
    )  # evaluated: at the last step, before it ended
    saved_at = monotonic()
    batches = dataset.train_batches(
        seed=config.seed, global_batch=config.global_batch, start_step=start_step, sharding=job.batch_sharding
    )
    buckets.end_of_start()
    step, ended = start_step, False
    try:
        with batches:
            throughput.restart()
            while step < job.total_steps:
                watchdog.pat()
                poll()
                began = monotonic()
                if step > start_step and _due(
                    step, job.checkpoint_every, saved_at, config.checkpoint.every_minutes
                ):
                    log.flush()  # what a run restarted from here won't compute again
                    _flush(writer, examples)
                    with buckets.bucket("checkpoint"):
                        checkpoints.save(step, state)
                    saved_at = monotonic()
                # Also at start_step: the run before may have ended between the save and the evaluation.
                if step > 0 and (due := evaluators.due(step)):
                    log.flush()
                    with buckets.bucket("eval"):
                        results = _evaluate(evaluators, due, state, step, writer, watchdog)
                    _flush(writer, None)
                    with buckets.bucket("checkpoint"):
                        _keep_best(best, best_metric, results, step, state)
                    if stopping is not None and (reason := stopping.reason(step, results)):
                        outcome.stopped, outcome.results, evaluated = reason, results, due
                        break
                throughput.pause(monotonic() - began)

                profile.before_step(step)
                with buckets.bucket("data"):
                    batch = next(batches)
                with buckets.bucket("step"):
                    if examples is not None:
                        examples.append({"step": step} | ids(step=step))
                    with jax.transfer_guard("disallow"):
                        state, metrics = train_step(state, batch)
                    outcome.step = step = step + 1
                    log.push(step, metrics)
                profile.after_step(step, state)
                if step % job.log_every == 0:
                    checkpoints.check_errors()
            with buckets.bucket("step"):
                log.flush()

        watchdog.pat()
        if step > start_step:
            with buckets.bucket("checkpoint"):
                checkpoints.save(step, state)
        with buckets.bucket("eval"):
            names = [name for name in evaluators.by_name if name not in evaluated]
            if names:
                outcome.results |= _evaluate(evaluators, names, state, step, writer, watchdog)
        with buckets.bucket("checkpoint"):
            _keep_best(best, best_metric, outcome.results, step, state)
        ended = True
    except Preempted:
        _log.info("told to stop (SIGTERM): saving step %d", step)
        outcome.preempted = True
        log.flush()
        with buckets.bucket("checkpoint"):
            if checkpoints.latest_step() != step:
                checkpoints.save(step, state)
        ended = True
    finally:
        watchdog.stop()
        profile.stop()
        log.close()
        _flush(writer, examples)
        if not ended:  # a command may have other runs to come
            _close(writer, examples)
    with buckets.bucket("checkpoint"):
        checkpoints.wait()
        if best is not None:
            best.wait()
    outcome.seconds = buckets.seconds()
    writer.write(step, {f"time/{name}": value for name, value in outcome.seconds.items()} | {
        "time/goodput": buckets.goodput()
    })  # fmt: skip
    _close(writer, examples)


def check_best_metric(metric: str, dataset: Dataset, *, ema: bool) -> None:
    """Raises UsageError unless `metric` ("" is fine: nothing is kept apart) comes out of an evaluation."""
    averages = ("", "_ema") if ema else ("",)
    known = [f"eval/{name}{average}/accuracy" for name in dataset.evals for average in averages]
    if metric and metric not in known:
        raise UsageError(f"checkpoint.best_metric {metric!r} isn't evaluated", known_names(metric, known))


def peak_flops(job: Job) -> float | None:
    """FLOP/s of all devices; None where an MFU can't be told.

    `flops_per_image` counts a whole backward pass: with frozen parameters it would flatter the run.
    """
    peak = flops.peak_flops(jax.devices()[0].device_kind)
    return peak * jax.device_count() if peak and not job.groups.frozen else None


def _due(step: int, every_steps: int | None, saved_at: float, every_minutes: float | None) -> bool:
    """Whether a checkpoint is due at `step`; process 0's clock counts, so that all processes agree."""
    if every_steps and step % every_steps == 0:
        return True
    if every_minutes is None:
        return False
    return distributed.main_says((monotonic() - saved_at) / 60 >= every_minutes)


def _evaluate(
    evaluators: Evaluators,
    names: Iterable[str],
    state: TrainState,
    step: int,
    writer: Writer,
    watchdog: Watchdog,
) -> dict[str, float]:
    """Runs the named ones, on the average of the parameters too; writes and returns `eval/<name>/<metric>`."""
    runs = {name: (evaluators.by_name[name], state) for name in names}
    if state.ema:
        averaged = state.replace(params=state.ema)
        runs |= {f"{name}_ema": (evaluator, averaged) for name, (evaluator, _) in runs.items()}
    results = {}
    for name, (evaluator, evaluated) in runs.items():
        watchdog.pat()
        try:
            found = {f"eval/{name}/{metric}": value for metric, value in evaluator.run(evaluated).items()}
        except NotFinite as error:  # the run's own guard decides whether it goes on
            _log.warning("step %d: %s not evaluated: %s", step, name, error)
            continue
        _log.info("step %d  %s", step, "  ".join(f"{key} {value:.6g}" for key, value in found.items()))
        loss = found.get(f"eval/{name}/loss")
        if loss is not None and not math.isfinite(loss):
            _log.warning("step %d: the loss on %s isn't finite", step, name)
        results |= found
    writer.write(step, results)
    return results


def _flush(writer: Writer, examples: Records | None) -> None:
    writer.flush()
    if examples is not None:
        examples.flush()


def _close(writer: Writer, examples: Records | None) -> None:
    writer.close()
    if examples is not None:
        examples.close()


def _keep_best(
    best: Checkpoints | None, by: tuple[str, int], results: dict[str, float], step: int, state: TrainState
) -> None:
    metric, sign = by
    if best is not None and metric in results:  # not where evaluators of another interval ran alone
        best.save_best(step, state, sign * results[metric])


def _writer(job: Job, workdir: Path) -> Writer:
    """Process 0 writes; the others hold a writer to nowhere."""
    if not distributed.is_main():
        return Writers(())
    writers: list[Writer] = [JsonMetrics(open_records(workdir, "metrics"))]
    if job.config.tensorboard:
        writers.append(TensorBoard(workdir / "tensorboard"))
    return Writers(writers)


def _examples_file(job: Job, workdir: Path) -> Records | None:
    """Every process could write it: the ids of a step are a function of (seed, step)."""
    if job.config.log_example_ids and distributed.is_main():
        return open_records(workdir, "examples")
    return None
