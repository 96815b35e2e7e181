"""Where a run starts: its own workdir, else `resume`, else `init`, else scratch."""

import logging
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax import model_config, pretrained, runs
from vit_jax.checkpoint import Checkpoints
from vit_jax.errors import UsageError
from vit_jax.formats.adapt import adapt
from vit_jax.formats.weights import Weights
from vit_jax.job import Job
from vit_jax.paths import named_leaves
from vit_jax.step import TrainState, start_average

_log = logging.getLogger(__name__)


def initial_state(
    job: Job, checkpoints: Checkpoints, weights: Weights | None = None
) -> tuple[TrainState, int]:
    """The state to start from, sharded as the job says, and the batches that it has seen.

    Args:
      weights: of `config.init`, if they are read already.

    Raises:
      UsageError: nothing intact where something was asked for, or arrays of another model.
    """
    found = checkpoints.restore_latest(job.abstract_state)
    if found is not None:
        step, state = found
        _log.info("continuing from step %d of %s", step, checkpoints.folder)
        return state, step
    if job.config.resume:
        reader, step = runs.open_run(job.config.resume)
        step = reader.latest_step() if step is None else step
        state = reader.restore(step, job.abstract_state)
        _log.info("resuming from step %d of %s", step, reader.folder)
        return state, step
    if not job.config.init:
        return job.create_state(), 0
    if weights is None:
        weights = read_init(job.config)
    adapted = adapt(weights, job.model, posemb_resize=job.config.init_posemb_resize or None)
    params = place(adapted, job.abstract_state.params)  # may refuse: before any compile
    _log.info("parameters from %s (%s)", weights.origin, weights.layout)
    state = job.create_state()
    ema = jax.jit(start_average, out_shardings=job.state_shardings.ema)(params) if state.ema else ()
    return state.replace(params=params, ema=ema), 0


def read_init(config: ConfigDict) -> Weights:
    """The weights of `config.init`; what the config says of the model completes what they can't tell.

    Raises:
      UsageError: none there, of no known layout, or of another model than the config's.
    """
    return pretrained.read(
        config.init, hints=model_config.given_fields(config), subtree=config.init_subtree or None
    )


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
