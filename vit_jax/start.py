"""Where a run starts: its own workdir, else `resume`, else `init`, else scratch."""

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vit_jax.checkpoint import Checkpoints, Reader
from vit_jax.errors import UsageError
from vit_jax.job import Job
from vit_jax.paths import named_leaves
from vit_jax.step import TrainState, start_average

_log = logging.getLogger(__name__)


def initial_state(job: Job, checkpoints: Checkpoints) -> tuple[TrainState, int]:
    """The state to start from, sharded as the job says, and the batches that it has seen.

    Raises:
      UsageError: nothing intact where something was asked for, or arrays of another model.
    """
    found = checkpoints.restore_latest(job.abstract_state)
    if found is not None:
        step, state = found
        _log.info("continuing from step %d of %s", step, checkpoints.folder)
        return state, step
    if job.config.resume:
        reader, step = open_run(job.config.resume)
        step = reader.latest_step() if step is None else step
        state = reader.restore(step, job.abstract_state)
        _log.info("resuming from step %d of %s", step, reader.folder)
        return state, step
    if not job.config.init:
        return job.create_state(), 0
    params = _read_params(job.config.init, job.abstract_state.params)  # may refuse: before any compile
    _log.info("parameters from %s", job.config.init)
    state = job.create_state()
    ema = jax.jit(start_average, out_shardings=job.state_shardings.ema)(params) if state.ema else ()
    return state.replace(params=params, ema=ema), 0


def open_run(spec: str) -> tuple[Reader, int | None]:
    """Opens the checkpoints of `RUN`, `RUN@STEP` or `RUN@best` for reading.

    Returns:
      The reader, and the step asked for; None for `RUN`, the newest intact one.

    Raises:
      UsageError: no such run, or no such step.
    """
    run, at, which = spec.rpartition("@") if "@" in spec else (spec, "", "")
    if not run or not Path(run).is_dir():
        kind = "reading published weights isn't supported yet" if Path(run).is_file() else "no such folder"
        raise UsageError(f"{run!r} is no run directory: {kind}", "give the --workdir of a run that has saved")
    reader = Reader(Path(run) / ("best" if which == "best" else "checkpoints"))
    steps = reader.steps()
    if not steps:
        raise UsageError(f"no checkpoint in {reader.folder}", "give the --workdir of a run that has saved")
    if not at or which == "best":
        return reader, None
    if not which.isdecimal() or int(which) not in steps:
        listed = ", ".join(map(str, steps))
        raise UsageError(f"no step {which!r} in {reader.folder}", f"steps: {listed}; or @best")
    return reader, int(which)


def read_params(spec: str) -> tuple[int, dict[str, Any]]:
    """Step and parameters (nested dict of numpy arrays) of `RUN`, `RUN@STEP` or `RUN@best`."""
    reader, step = open_run(spec)
    return reader.restore_arrays(step, subtree="params")


def place(params: dict[str, Any], target: Any) -> Any:
    """Puts numpy parameters on the devices as `target` (ShapeDtypeStructs with shardings) says.

    Raises:
      UsageError: other names or shapes; shows the difference.
    """
    have, want = named_leaves(params), named_leaves(target)
    lines = [f"  {name}: missing" for name in want if name not in have]
    lines += [f"  {name} {list(have[name].shape)}: not in the model" for name in have if name not in want]
    lines += [
        f"  {name}: {list(have[name].shape)}, the model has {list(want[name].shape)}"
        for name in want
        if name in have and have[name].shape != want[name].shape
    ]
    if lines:
        difference = "\n".join(
            lines[:20] + ([f"  ... and {len(lines) - 20} more"] if len(lines) > 20 else [])
        )
        what = f"the checkpoint's parameters aren't this model's: {len(lines)} differ"
        raise UsageError(what, "set the config's model to the checkpoint's", difference)

    def put(name: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        value = np.asarray(have[name], leaf.dtype)
        return jax.make_array_from_callback(value.shape, leaf.sharding, lambda index: value[index])

    leaves = [put(name, leaf) for name, leaf in want.items()]
    return jax.tree.unflatten(jax.tree.structure(target), leaves)


def _read_params(spec: str, target: Any) -> Any:
    return place(read_params(spec)[1], target)
