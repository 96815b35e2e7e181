"""One pass over a split: what an evaluation step counts, added up."""

from collections.abc import Callable, Iterable

import jax
import numpy as np

from vit_jax.step import Batch, PyTree


def add_up(
    params: PyTree,
    batches: Iterable[Batch],
    eval_step: Callable[[PyTree, Batch], dict[str, jax.Array]],
    on_batch: Callable[[], None],
) -> dict[str, np.ndarray]:
    """Sums float64 over all batches; `on_batch` is called before every one of them.

    Raises:
      ValueError: no example counted.
    """
    sums: dict[str, np.ndarray] = {}
    pending = None  # results of the former batch are fetched while this one is computed
    for batch in batches:
        on_batch()
        result = eval_step(params, batch)
        if pending is not None:
            _add(sums, pending)
        pending = result
    if pending is not None:
        _add(sums, pending)
    if not sums or sums["count"] == 0:
        raise ValueError("no example of the split could be read")
    return sums


def ratio(part: float, whole: float) -> float:
    """part / whole; NaN of nothing."""
    return float(part / whole) if whole else float("nan")


def _add(sums: dict[str, np.ndarray], result: dict[str, jax.Array]) -> None:
    for name, value in jax.device_get(result).items():
        sums[name] = sums.get(name, 0.0) + np.asarray(value, np.float64)
