"""What every reader returns and every writer takes: a model's fields and its parameters, in our names."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from vit_jax.errors import UsageError
from vit_jax.models import create_model
from vit_jax.models.check import size_of
from vit_jax.models.variants import ANY_NAME, VARIANTS
from vit_jax.paths import named_leaves

Arrays = dict[str, np.ndarray]

# Fields that loading may change, see formats/adapt.py; all others must agree with what a file shows.
REPLACEABLE = ("num_classes", "image_size", "rep_size", "posemb_cls")


@dataclass(frozen=True)
class Weights:
    """Published or exported weights.

    Attributes:
      layout: the name of the format: npz, big_vision, bit, timm, hf, run.
      origin: the file or folder they come from, for messages.
      family: vit | resnet | mixer.
      fields: of `create_model`, with `num_classes` (0: no head) and `image_size` (height, width).
      params: nested dict of numpy arrays in our names, unstacked; the types of the file.
      resize: how this source resizes its position table, a name of `formats.resize.MODES`.
      mean, std: per channel, in uint8 units: the model's input is (image - mean) / std.
      classes: class names where the source has them.
      loss, preprocess: what a run was trained with and how it evaluates images; None of bare weights.
      step: of a run; None of bare weights.
      notes: what was found or left aside, a line each, for the log.
    """

    layout: str
    origin: str
    family: str
    fields: dict[str, Any]
    params: dict[str, Any]
    resize: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] | None = None
    loss: str | None = None
    preprocess: str | None = None
    step: int | None = None
    notes: tuple[str, ...] = field(default=())

    def model(self, **changes: Any) -> nn.Module:
        """The model of these weights, with some fields changed."""
        return model_of(self.family, {**self.fields, **changes})


def model_of(family: str, fields: dict[str, Any]) -> nn.Module:
    """A model of the family from its fields alone."""
    return create_model(ANY_NAME[family], **fields)


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Path -> shape of every parameter of a model; nothing is computed."""
    height, width = size_of(model.image_size)
    image = jax.ShapeDtypeStruct((1, height, width, model.channels), jnp.float32)
    variables = jax.eval_shape(lambda x: model.init(jax.random.key(0), x), image)
    return {name: leaf.shape for name, leaf in named_leaves(variables["params"]).items()}


def complete(hints: dict[str, Any], found: dict[str, Any], origin: str) -> dict[str, Any]:
    """The fields that a file shows, completed by those the caller gives.

    Raises:
      UsageError: the two disagree on a field that loading can't change; names it and both values.
    """
    for name, value in hints.items():
        if name in found and found[name] != value and name not in REPLACEABLE:
            raise UsageError(
                f"{name} is {value!r}, but {origin} has {found[name]!r}",
                f"leave {name} and the model's name out to take the file's, or give other weights",
            )
    return {**hints, **found}


def heads_of(width: int, depth: int, mlp_dim: int, hints: dict[str, Any], origin: str) -> int:
    """Number of heads, which PyTorch layouts don't show: the caller's, else that of the variant of this shape.

    Raises:
      UsageError: no variant has that shape, and the caller says nothing.
    """
    if "num_heads" in hints:
        return hints["num_heads"]
    known = {
        v.num_heads for v in VARIANTS.values() if (v.width, v.depth, v.mlp_dim) == (width, depth, mlp_dim)
    }
    if len(known) != 1:
        raise UsageError(
            f"{origin} doesn't tell its number of heads (width {width}, depth {depth}, MLP {mlp_dim})",
            "give num_heads=",
        )
    return known.pop()
