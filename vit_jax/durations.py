"""Durations of a run, given in steps, epochs, examples or a part of the whole, as optimizer steps."""

import math

from vit_jax.errors import UsageError


def to_steps(
    name: str,
    *,
    steps: int | None,
    epochs: float | None,
    examples: int | None,
    examples_per_epoch: int | None,
    global_batch: int,
    percent: float | None = None,
    total_steps: int | None = None,
    required: bool = True,
) -> int | None:
    """Optimizer steps of the duration `name`, of which one form may be given (the others are None).

    Whole batches that fit: examples / global_batch and epochs * examples_per_epoch / global_batch are
    rounded down over the whole duration (10 examples, batch 4, 2 epochs: 5 steps), and so is
    percent * total_steps. A duration above zero takes at least one step.

    Args:
      name: what the config keys begin with: "warmup" for `warmup_steps`, `warmup_epochs`, ...
      examples_per_epoch: size of the training split; None if unknown, which refuses epochs.
      global_batch: examples per optimizer step.
      percent: part of `total_steps`, in 0..1.
      required: whether one form must be given; otherwise the result may be None.

    Raises:
      UsageError: several forms given, none though required, or a value that is no duration.
    """
    forms = {"steps": steps, "epochs": epochs, "examples": examples, "percent": percent}
    given = {f"{name}_{form}": value for form, value in forms.items() if value is not None}
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are all set", "keep one and set the others to None")
    if not given:
        if required:
            raise UsageError(
                f"the duration {name!r} isn't set", f"set {name}_steps, {name}_epochs or {name}_examples"
            )
        return None
    ((key, value),) = given.items()
    if not (value >= 0 and math.isfinite(value)):
        raise UsageError(f"{key} is {value}", "give 0 or a positive number")
    if steps is not None:
        if steps != int(steps):
            raise UsageError(f"{key} is {steps}", "give a whole number")
        return int(steps)
    if percent is not None:
        if total_steps is None or percent > 1:
            raise UsageError(f"{key} is {percent}", "give a part in 0..1 of a known total")
        exact = percent * total_steps
    else:
        if global_batch < 1:
            raise UsageError(f"global_batch is {global_batch}", "give at least 1")
        if examples is None and examples_per_epoch is None:
            raise UsageError(f"{key} needs the size of the training data", f"give {name}_steps instead")
        exact = (epochs * examples_per_epoch if examples is None else examples) / global_batch
    # The margin keeps 0.29 * 100 = 28.999999999999996 at 29.
    return max(math.floor(exact * (1 + 1e-12)), 1) if exact else 0
