"""What a run's log tells a stranger at its end, however it ended; kept in run.json too."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from etils import epath

from vit_jax import files, records, workdir
from vit_jax.job import Job
from vit_jax.loop import Outcome, peak_flops

_log = logging.getLogger(__name__)


def summarize(job: Job, outcome: Outcome, path: epath.Path, how: str, saved: int | None) -> dict[str, Any]:
    """The end of a start, as run.json keeps it.

    Args:
      how: done, preempted, interrupted or failed: with the reason.
      saved: newest step that is complete in checkpoints/; None: none.

    Returns:
      how; step and total_steps; steps, images, seconds by bucket, goodput (0..1), img_per_sec and mfu (over the
      training steps of this start; mfu None where it can't be told); best: metric -> its best value over the
      whole run, at which step; checkpoint: address of the newest one.
    """
    steps, seconds = outcome.step - outcome.start_step, outcome.seconds
    images = steps * job.config.global_batch
    rate = images / seconds["step"] if seconds.get("step") else 0.0
    peak = peak_flops(job)
    total = seconds.get("total", 0.0)
    return {
        "how": how,
        "step": outcome.step,
        "total_steps": job.total_steps,
        "steps": steps,
        "images": images,
        "seconds": seconds,
        "goodput": seconds["step"] / total if total else 0.0,
        "img_per_sec": rate,
        "mfu": rate * job.flops_per_image / peak if peak else None,
        "best": best_of(records.read_records(path, "metrics")),
        "checkpoint": None if saved is None else str(path / "checkpoints" / str(saved)),
    }


def best_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """`eval/<name>/accuracy` -> {value, step} of the best, the first of equals; a later line for a step wins."""
    by_metric: dict[str, dict[int, float]] = {}
    for line in lines:
        for key, value in line.items():
            if key.startswith("eval/") and key.endswith("/accuracy"):
                by_metric.setdefault(key, {})[line["step"]] = -math.inf if value is None else value
    best = {}
    for key, values in by_metric.items():
        step = max(sorted(values), key=values.__getitem__)
        if values[step] > -math.inf:
            best[key] = {"value": values[step], "step": step}
    return best


def report(job: Job, outcome: Outcome, path: epath.Path, how: str, saved: Callable[[], int | None]) -> None:
    """Logs the summary and keeps it in run.json; for process 0. Arguments as for `summarize`; saved says its step.

    A disk that is full or a store that is gone must not hide why the run ended.
    """
    try:
        end = summarize(job, outcome, path, how, saved())
        for line in lines(end):
            _log.info("%s", line)
        workdir.record_end(path, end)
    except Exception as error:
        _log.warning("the summary isn't complete: %s", files.line(error))


def lines(end: Mapping[str, Any]) -> list[str]:
    """The summary for a log."""
    mfu = "unknown" if end["mfu"] is None else f"{100 * end['mfu']:.1f} %"
    hours = "  ".join(f"{name} {value / 3600:.4f}" for name, value in end["seconds"].items())
    return [
        f"{end['how']} at step {end['step']} of {end['total_steps']}: "
        f"{end['steps']} steps, {end['images']} images in this start",
        f"hours: {hours}",
        f"goodput {100 * end['goodput']:.1f} %; in training steps {end['img_per_sec']:.1f} img/s, MFU {mfu}",
        *(f"best {name} {best['value']:.6g} at step {best['step']}" for name, best in end["best"].items()),
        f"checkpoint: {end['checkpoint'] or 'none yet'}",
    ]
