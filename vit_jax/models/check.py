"""Refuses, in one sentence, models that can't be built and images that a model isn't made for."""

import jax.numpy as jnp
from flax import linen as nn

from vit_jax.errors import UsageError, known_names
from vit_jax.models import heads, posemb
from vit_jax.models.attention import attention_function
from vit_jax.models.mlp import GELU

REMAT = ("none", "dots", "full")
DTYPES = ("float32", "bfloat16", "float16")


def size_of(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of an image size given as one number or as two."""
    if isinstance(image_size, int):
        return image_size, image_size
    height, width = image_size
    return height, width


def grid_of(image_size: int | tuple[int, int], patch_size: int) -> tuple[int, int]:
    """(rows, columns) of patches.

    Raises:
        UsageError: a side of the image is not a positive multiple of the patch size.
    """
    height, width = size_of(image_size)
    for side, length in (("height", height), ("width", width)):
        if length <= 0 or length % patch_size:
            nearest = max(round(length / patch_size), 1) * patch_size
            raise UsageError(
                f"image {side} {length} is not a multiple of the patch size {patch_size}",
                f"resize or crop the images, for instance to {nearest}",
            )
    return height // patch_size, width // patch_size


def check_model(model: nn.Module) -> None:
    """Checks every field of a model.

    Raises:
        UsageError: names the field, its value and what it should be.
    """
    for field in ("patch_size", "width", "depth", "mlp_dim", "num_heads", "channels"):
        _at_least(model, field, 1)
    for field in ("num_classes", "rep_size"):
        _at_least(model, field, 0)
    if model.width % model.num_heads:
        raise UsageError(
            f"width {model.width} is not divisible by {model.num_heads} heads",
            "choose num_heads so that width / num_heads is a whole number",
        )
    grid_of(model.image_size, model.patch_size)
    for field in ("dropout", "attn_dropout", "stoch_depth"):
        rate = getattr(model, field)
        if not 0 <= rate < 1:
            raise UsageError(f"{field} is {rate}", "choose a rate of at least 0 and below 1")
    _one_of(model, "pool", heads.POOLS)
    _one_of(model, "posemb", posemb.KINDS)
    _one_of(model, "gelu", tuple(GELU))
    _one_of(model, "remat", REMAT)
    for field in ("dtype", "softmax_dtype"):
        value = getattr(model, field)
        name = value if isinstance(value, str) else jnp.dtype(value).name
        if name not in DTYPES:
            raise UsageError(f"unknown {field} {name!r}", known_names(name, DTYPES))
    if model.posemb == "sincos2d":
        posemb.sincos2d(1, 1, model.width)  # refuses widths it has no channels for
    attention_function(model.attention)


def check_images(model: nn.Module, shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    """Checks a batch of images, [B, H, W, C] floating point, against the model.

    Raises:
        UsageError: names both sides: the images' shape, size, grid or type, and the model's.
    """
    if len(shape) != 4 or shape[-1] != model.channels:
        raise UsageError(
            f"images of shape {tuple(shape)}",
            f"this model takes [batch, height, width, {model.channels}]",
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise UsageError(f"images of type {jnp.dtype(dtype).name}", "normalise them to floating point first")
    grid = grid_of(shape[1:3], model.patch_size)
    table = grid_of(model.image_size, model.patch_size)
    if model.posemb == "learn" and grid != table:
        raise UsageError(
            f"images of {shape[1]}x{shape[2]} make a grid of {grid[0]}x{grid[1]} patches, but the position "
            f"table is for {table[0]}x{table[1]}",
            "load or create the model with image_size= of the images",
        )


def _at_least(model: nn.Module, field: str, least: int) -> None:
    value = getattr(model, field)
    if not isinstance(value, int) or value < least:
        raise UsageError(f"{field} is {value!r}", f"it must be a whole number of at least {least}")


def _one_of(model: nn.Module, field: str, known: tuple[str, ...]) -> None:
    value = getattr(model, field)
    if value not in known:
        raise UsageError(f"unknown {field} {value!r}", known_names(str(value), known))
