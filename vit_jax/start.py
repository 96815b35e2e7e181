"""Where a run starts: its own workdir, else `resume`, else `init`, else scratch."""

import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax import model_config, pretrained, runs
from vit_jax.checkpoint import Checkpoints
from vit_jax.formats.adapt import adapt, place
from vit_jax.formats.weights import Weights
from vit_jax.job import Job
from vit_jax.models.variants import name_of
from vit_jax.step import TrainState, start_average

_log = logging.getLogger(__name__)


def initial_state(
    job: Job,
    checkpoints: Checkpoints,
    weights: Weights | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[TrainState, int]:
    """The state to start from, sharded as the job says, and the batches that it has seen.

    Args:
      weights: of `config.init`, if they are read already.
      classes: names of the data's classes: a head for others is replaced.

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
    _warn_of_other_normalization(job, weights)
    if job.hides_patches:
        classes = ()  # a head for colours of patches: none that was learned before is for these
    elif job.config.init_head == "keep":
        classes = None
    adapted = adapt(
        weights,
        job.model,
        posemb_resize=job.config.init_posemb_resize or None,
        classes=classes,
    )
    params = place(adapted, job.abstract_state.params)  # may refuse: before any compile
    _log.info("parameters from %s (%s)", weights.origin, weights.layout)
    state = job.create_state()
    ema = jax.jit(start_average, out_shardings=job.state_shardings.ema)(params) if state.ema else ()
    return state.replace(params=params, ema=ema), 0


def _warn_of_other_normalization(job: Job, weights: Weights) -> None:
    """Weights that see images in another range than they were made for work, but worse, and nothing else tells."""
    wanted, given = (weights.mean, weights.std), (job.facts.mean, job.facts.std)
    if not all(np.allclose(a, b, atol=0.5) for a, b in zip(wanted, given, strict=True)):
        _log.warning(
            "%s wants images normalised by mean %s and std %s (of 0..255), data.preprocess_* do it by %s and %s",
            weights.origin, *map(_rounded, wanted + given),
        )  # fmt: skip


def _rounded(numbers: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{number:.4g}" for number in numbers) + ")"


def inferred_fields(weights: Weights) -> dict[str, Any]:
    """What weights tell of their model, for model_config.resolve."""
    return {**weights.fields, "name": name_of(weights.family, weights.fields)}


def read_init(config: ConfigDict) -> Weights:
    """The weights of `config.init`; what the config says of the model completes what they can't tell.

    Raises:
      UsageError: none there, of no known layout, or of another model than the config's.
    """
    return pretrained.read(
        config.init, hints=model_config.given_fields(config), subtree=config.init_subtree or None
    )
