"""Learning-rate schedules: functions of the optimizer step alone, so that a resumed run needs no state."""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from vit_jax.errors import UsageError, known_names

Schedule = Callable[[jax.typing.ArrayLike], jax.Array]
SCHEDULES = ("constant", "cosine", "linear", "polynomial", "rsqrt", "stair")


def make_schedule(
    name: str,
    *,
    peak: float,
    total_steps: int,
    warmup_steps: int,
    cooldown_steps: int = 0,
    linear_end: float = 0.0,
    power: float | None = None,
    timescale: float | None = None,
    shift: float = 0.0,
    boundaries: Sequence[int] = (),
    factors: Sequence[float] = (),
) -> Schedule:
    """Step (int, the first optimizer step being 0) -> learning rate, float32 scalar.

    The value is warm-up x decay x cool-down with warm-up min(1, step / warmup_steps), so that the first
    update of a warmed-up run is zero, and cool-down min(1, (total_steps - step) / cooldown_steps). Steps are
    optimizer steps, not micro-batches. Beyond total_steps the last value holds.

    Decay, with p going from 0 to 1 between warmup_steps and total_steps:
      constant: peak.
      cosine: peak (1 + cos(pi p)) / 2.
      linear, polynomial: linear_end + (peak - linear_end) (1 - p)^power; linear: power 1; ViT ends at 1e-5.
      rsqrt: peak / sqrt(1 + (step - warmup_steps + shift) / timescale); the part in step is 0 during warm-up
        (Scaling ViT, which adds a cool-down).
      stair: peak x factors[i] from step boundaries[i] on.

    Args:
      peak, linear_end: in the same unit; peak 1 gives the schedule relative to the peak.
      power: polynomial only. timescale, shift: rsqrt only, in steps. boundaries, factors: stair only.

    Raises:
      UsageError: unknown name, or a value that makes no schedule; names the config key.
    """
    if name not in SCHEDULES:
        raise UsageError(f"schedule {name!r} is unknown", known_names(name, SCHEDULES))
    _check_steps(total_steps, warmup_steps, cooldown_steps)
    if not (peak >= 0 and math.isfinite(peak)):
        raise UsageError(f"optim.lr is {peak}", "give a number of at least 0")
    if not (linear_end >= 0 and math.isfinite(linear_end)):
        raise UsageError(f"schedule_end_lr is {linear_end}", "give a number of at least 0")
    decay = _decay(
        name, peak, total_steps, warmup_steps, linear_end, power, timescale, shift, boundaries, factors
    )

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        s = jnp.asarray(step, jnp.float32)
        value = decay(s)
        if warmup_steps:
            value *= jnp.minimum(1.0, s / warmup_steps)
        if cooldown_steps:
            value *= jnp.clip((total_steps - s) / cooldown_steps, 0.0, 1.0)
        return value

    return schedule


def _check_steps(total_steps: int, warmup_steps: int, cooldown_steps: int) -> None:
    if total_steps < 1:
        raise UsageError(f"total_steps is {total_steps}", "give at least 1 step")
    for key, steps in (("warmup_steps", warmup_steps), ("cooldown_steps", cooldown_steps)):
        if steps < 0:
            raise UsageError(f"{key} is {steps}", "give 0 or a positive number of steps")
        if steps > total_steps:
            raise UsageError(
                f"{key} {steps} exceeds total_steps {total_steps}", "lower it, or make the run longer"
            )
    if warmup_steps + cooldown_steps > total_steps:
        raise UsageError(
            f"warmup_steps {warmup_steps} + cooldown_steps {cooldown_steps} exceed total_steps {total_steps}",
            "lower one of them",
        )


def _decay(
    name: str,
    peak: float,
    total_steps: int,
    warmup_steps: int,
    linear_end: float,
    power: float | None,
    timescale: float | None,
    shift: float,
    boundaries: Sequence[int],
    factors: Sequence[float],
) -> Schedule:
    """The decay alone, as a function of the step in float32."""

    def progress(s: jax.Array) -> jax.Array:
        return jnp.clip((s - warmup_steps) / max(total_steps - warmup_steps, 1), 0.0, 1.0)

    def remaining(s: jax.Array) -> jax.Array:  # rather than 1 - progress: exactly 0 at the end
        return jnp.clip((total_steps - s) / max(total_steps - warmup_steps, 1), 0.0, 1.0)

    if name == "constant":
        return lambda s: jnp.full_like(s, peak)
    if name == "cosine":
        return lambda s: peak * 0.5 * (1.0 + jnp.cos(math.pi * progress(s)))
    if name == "linear":
        return lambda s: linear_end + (peak - linear_end) * remaining(s)
    if name == "polynomial":
        if power is None or not power > 0:
            raise UsageError(f"schedule_power is {power}", "give a positive number")
        return lambda s: linear_end + (peak - linear_end) * remaining(s) ** power
    if name == "rsqrt":
        if timescale is None or not timescale > 0:
            raise UsageError(
                f"schedule_timescale_steps is {timescale}", "'rsqrt' needs a positive number of steps"
            )
        if shift < 0:
            raise UsageError(f"schedule 'rsqrt' has shift {shift}", "give 0 or a positive number of steps")
        return lambda s: peak / jnp.sqrt(1.0 + (jnp.maximum(s - warmup_steps, 0.0) + shift) / timescale)
    if len(boundaries) != len(factors) or list(boundaries) != sorted(set(boundaries)):
        raise UsageError(
            f"schedule 'stair' has boundaries {tuple(boundaries)} and factors {tuple(factors)}",
            "give rising boundaries in steps and one factor for each",
        )
    values = [peak, *(peak * factor for factor in factors)]

    def stair(s: jax.Array) -> jax.Array:
        value = jnp.full_like(s, peak)
        for start, after in zip(boundaries, values[1:], strict=True):
            value = jnp.where(s >= start, after, value)
        return value

    return stair
