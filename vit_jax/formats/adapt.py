"""From the weights of a file to the parameters of another model of the same shape.

Three things may differ, and each is said: the head, the representation layer before it, and the position table.
"""

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from vit_jax.formats import table
from vit_jax.formats.tables import fit_tables
from vit_jax.formats.weights import Arrays, Weights, shapes_of
from vit_jax.models.stack import stack_layers
from vit_jax.paths import named_leaves, nested

_log = logging.getLogger(__name__)


def adapt(
    weights: Weights,
    model: nn.Module,
    *,
    posemb_resize: str | None = None,
    classes: Sequence[str] | None = None,
) -> dict:
    """The parameters of `model`, nested and stacked as it is, from weights of the same encoder.

    Args:
      posemb_resize: how to resize the position table; None: as the weights' source does.
      classes: names of the model's classes: the head is kept for these alone. None: for as many.

    Raises:
      UsageError: anything else that differs, shown as a short table.
    """
    params = _cast(named_leaves(weights.params))
    wanted = shapes_of(model.clone(scan=False) if hasattr(model, "scan") else model)
    if weights.family == "vit":
        params = fit_tables(params, weights, model, posemb_resize or weights.resize)
    params = _head(params, weights, model, wanted, classes)
    if "mask_token" in wanted and "mask_token" not in params:
        _log.info("%s has no mask token: it begins with zeros", weights.origin)
        params["mask_token"] = np.zeros(wanted["mask_token"], np.float32)
    _compare(params, wanted, weights.origin)
    tree = nested(params)
    return stack_layers(tree) if getattr(model, "scan", False) else tree


def place(params: dict[str, Any], target: Any, origin: str = "the checkpoint") -> Any:
    """Puts numpy parameters on the devices as `target` (ShapeDtypeStructs with shardings) says.

    Raises:
      UsageError: other names or shapes, shown as a short table.
    """
    have, want = named_leaves(params), named_leaves(target)
    _compare(have, {name: leaf.shape for name, leaf in want.items()}, origin)

    def put(name: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        value = np.asarray(have[name], leaf.dtype)
        return jax.make_array_from_callback(value.shape, leaf.sharding, lambda index: value[index])

    return jax.tree.unflatten(jax.tree.structure(target), [put(name, leaf) for name, leaf in want.items()])


def _cast(params: Arrays) -> Arrays:
    return {name: np.asarray(array, np.float32) for name, array in params.items()}


def _head(
    params: Arrays,
    weights: Weights,
    model: nn.Module,
    wanted: dict[str, tuple[int, ...]],
    classes: Sequence[str] | None,
) -> Arrays:
    params = dict(params)
    dropped = [name for name in params if name.startswith("pre_logits/") and name not in wanted]
    for name in dropped:
        del params[name]
    if dropped:
        _log.info("representation layer of %s dropped", weights.origin)
    if not model.num_classes:
        return {name: array for name, array in params.items() if not name.startswith("head/")}
    reason = _why_another_head(weights, model, classes)
    if dropped and reason is None:
        reason = "it was made for the layer that is dropped"
    if reason is None:
        if classes is not None:
            _log.info("head of %s kept: it is for the same classes", weights.origin)
        return params
    _log.info("head of %s replaced by zeros: %s", weights.origin, reason)
    bias = np.full(wanted["head/bias"], model.head_bias_init, np.float32)
    return {**params, "head/kernel": np.zeros(wanted["head/kernel"], np.float32), "head/bias": bias}


def _why_another_head(weights: Weights, model: nn.Module, classes: Sequence[str] | None) -> str | None:
    have, want = weights.fields["num_classes"], model.num_classes
    if not have:
        return "there is none"
    if have != want:
        return f"{have} classes there, {want} here"
    if classes is None:
        return None
    if weights.classes is None:
        return f"as many classes ({have}), but not known to be the same"
    if tuple(classes) != weights.classes:
        other = next((a, b) for a, b in itertools.zip_longest(weights.classes, classes) if a != b)
        return f"other classes, such as {other[0]!r} there and {other[1]!r} here"
    return None


def _compare(params: Arrays, wanted: dict[str, tuple[int, ...]], origin: str) -> None:
    problems = [
        f"{name} {list(shape)}: not in {origin}" for name, shape in wanted.items() if name not in params
    ]
    for name, array in params.items():
        if name not in wanted:
            problems.append(f"{name} {list(array.shape)}: not in the model")
        elif array.shape != wanted[name]:
            problems.append(f"{name}: {list(array.shape)} in {origin}, {list(wanted[name])} in the model")
    if problems:
        raise table.mismatch(origin, problems)
