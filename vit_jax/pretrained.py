"""Weights of any supported format, or of a run, as a model and its parameters."""

import dataclasses
import logging
import operator
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax import formats, runs
from vit_jax.errors import UsageError
from vit_jax.formats import fetch
from vit_jax.formats.adapt import adapt
from vit_jax.formats.resize import check_mode
from vit_jax.formats.weights import Weights
from vit_jax.models.check import size_of

_log = logging.getLogger(__name__)


def load(
    path: str,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    dtype: Any = None,
    param_dtype: Any = None,
    posemb_resize: str | None = None,
    subtree: str | None = None,
    **fields: Any,
) -> tuple[nn.Module, dict[str, Any]]:
    """The model and the parameters of published weights, or of a run.

    Args:
      path: a file, a folder or a run directory; `FILE:SUBTREE`, `RUN@STEP`, `RUN@best`; local, `hf://owner/repo`,
        or any storage that fsspec knows (`gs://...`).
      num_classes: another number than the file's puts a head of zeros there, which is logged; 0 takes it off.
      image_size: another one than the file's resizes the position table, which is logged.
      dtype: of the computation, and of the parameters unless `param_dtype` says otherwise; None: float32.
      posemb_resize: zoom | bicubic | bicubic_antialias | bilinear; None: as the weights' source does.
      subtree: "params" or "ema" of a training state, or a prefix of a file; None: the parameters.
      **fields: model fields. The file's own unless it can't tell them (`num_heads` and `pool` of timm files, a
        fixed `posemb`); `rep_size=0` drops the representation layer, `posemb_cls` moves the class token's row.

    Returns:
      The model, unrolled, and its parameters, nested dicts of jax arrays.

    Raises:
      UsageError: no such weights, an unknown layout, or anything that doesn't fit the model; says what.
    """
    hints = {name: value for name, value in fields.items() if value is not None}
    if image_size is not None:
        hints["image_size"] = size_of(image_size)
    if posemb_resize is not None:
        check_mode(posemb_resize)
    kind = _floating(param_dtype if param_dtype is not None else dtype)
    weights = read(path, hints=hints, subtree=subtree)
    changes = dict(hints)
    if num_classes is not None:
        changes["num_classes"] = operator.index(num_classes)
    if dtype is not None:
        changes["dtype"] = _floating(dtype).name
    model = weights.model(**changes)
    params = adapt(weights, model, posemb_resize=posemb_resize)
    return model, jax.tree.map(lambda array: jnp.asarray(array, kind), params)


def _floating(dtype: Any) -> jnp.dtype:
    """The type of that name; None is float32.

    Raises:
      UsageError: no floating-point type.
    """
    try:
        found = jnp.dtype(jnp.float32 if dtype is None else dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise UsageError(f"dtype is {dtype!r}", "give a floating-point type such as 'float32' or 'bfloat16'")
    return found


def adapted(weights: Weights, changes: dict[str, Any], *, posemb_resize: str | None = None) -> Weights:
    """The same weights for a model with some fields changed: another head, image size or class row."""
    model = weights.model(**changes)
    params = adapt(weights, model, posemb_resize=posemb_resize)
    known = len(weights.classes or ()) <= model.num_classes == weights.fields["num_classes"]
    fields = {**weights.fields, **changes, "image_size": model.image_size}
    return dataclasses.replace(
        weights, fields=fields, params=params, classes=weights.classes if known else None
    )


def read(path: str, *, hints: dict[str, Any] | None = None, subtree: str | None = None) -> Weights:
    """The weights behind `path`, with notes of what else there is in the log; see `load`.

    Args:
      hints: model fields, for what the file can't tell.
    """
    weights = _read(str(path), hints or {}, subtree)
    for note in weights.notes:
        _log.info("%s", note)
    return weights


def _read(spec: str, hints: dict[str, Any], subtree: str | None) -> Weights:
    if subtree is not None and not isinstance(subtree, str):
        raise UsageError(f"subtree is {subtree!r}", "give its name")
    file, colon, inside = spec.rpartition(".npz:")
    if colon:
        if subtree is not None and subtree != inside:
            raise UsageError(f"{spec!r} and subtree={subtree!r} both choose a part", "give one of them")
        spec, subtree = file + ".npz", inside
    if runs.is_run(spec):
        return runs.read_run(spec, subtree, hints)
    return formats.read(fetch.local(spec), hints, subtree)
