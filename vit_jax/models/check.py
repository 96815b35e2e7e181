"""Refuses, in one sentence, models that can't be built and images that a model isn't made for."""

import math
import numbers

import jax.numpy as jnp
from flax import linen as nn

from vit_jax.errors import UsageError, known_names
from vit_jax.models import heads, posemb, positions
from vit_jax.models.attention import attention_function
from vit_jax.models.mlp import GELU

REMAT = ("none", "dots", "full")
DTYPES = ("float32", "bfloat16", "float16")
GENERATIONS = ("v1", "v2")
NORM_GROUPS = 32  # of every GroupNorm of the ResNets


def size_of(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of an image size given as one number or as two, of any integer type.

    Raises:
        UsageError: it is neither.
    """
    sides = image_size if isinstance(image_size, tuple | list) else (image_size, image_size)
    if len(sides) != 2 or not all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in sides):
        raise UsageError(
            f"image_size is {image_size!r}", "give one whole number of pixels, or (height, width)"
        )
    return int(sides[0]), int(sides[1])


def backbone_stride(backbone: tuple[int, ...] | None) -> int:
    """Pixels a side of the image for one of the backbone's feature map; 1 without a backbone.

    The root divides by 4, every stage after the first by 2.
    """
    return 1 if backbone is None else 4 * 2 ** max(len(backbone) - 1, 0)


def token_stride(model: nn.Module) -> int:
    """Pixels a side of the image for one token: the patch size times the stride of a hybrid's backbone."""
    return model.patch_size * backbone_stride(model.backbone)


def grid_of(
    image_size: int | tuple[int, int], stride: int, stride_name: str = "patch size"
) -> tuple[int, int]:
    """(rows, columns) of patches, each `stride` pixels a side.

    Raises:
        UsageError: a side of the image is not a positive multiple of the stride.
    """
    height, width = size_of(image_size)
    for side, length in (("height", height), ("width", width)):
        if length <= 0 or length % stride:
            nearest = max(round(length / stride), 1) * stride
            raise UsageError(
                f"image {side} {length} is not a multiple of the {stride_name} {stride}",
                f"resize or crop the images, for instance to {nearest}",
            )
    return height // stride, width // stride


def token_grid(model: nn.Module, image_size: int | tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) of patch tokens that a ViT, hybrid or not, makes of images of this size.

    Raises:
        UsageError: a side of the image is not a positive multiple of the total downsampling.
    """
    name = "patch size"
    if model.backbone is not None:
        stride = backbone_stride(model.backbone)
        name = f"total downsampling ({stride} of the backbone x patch size {model.patch_size})"
    return grid_of(image_size, token_stride(model), name)


def check_vit(model: nn.Module) -> None:
    """Checks every field of a Vision Transformer.

    Raises:
        UsageError: names the field, its value and what it should be.
    """
    for field in ("patch_size", "width", "depth", "mlp_dim", "num_heads", "channels"):
        _at_least(model, field, 1)
    for field in ("num_classes", "rep_size", "num_registers"):
        _at_least(model, field, 0)
    if model.width % model.num_heads:
        raise UsageError(
            f"width {model.width} is not divisible by {model.num_heads} heads",
            "choose num_heads so that width / num_heads is a whole number",
        )
    if model.backbone is not None:
        _units(model, "backbone", least=0)
        _group_norm_width(model, "backbone_width")
    token_grid(model, model.image_size)
    for field in ("dropout", "attn_dropout", "stoch_depth"):
        _rate(model, field)
    _one_of(model, "pool", heads.POOLS)
    _one_of(model, "posemb", posemb.KINDS)
    _one_of(model, "gelu", tuple(GELU))
    _one_of(model, "remat", REMAT)
    for field in (
        "posemb_cls", "qkv_bias", "qk_norm", "swiglu", "pre_norm", "patch_bias", "norm_after_pool", "mask_token",
        "axial",
    ):  # fmt: skip
        _true_or_false(model, field)
    if model.class_token is not None:
        _true_or_false(model, "class_token")
    if model.class_token is False and heads.pools_class_token(model.pool):
        raise UsageError(
            f"pool {model.pool!r} without a class token", "leave class_token out, or pool with gap or map"
        )
    if not (0 <= model.layer_scale < math.inf):
        raise UsageError(f"layer_scale is {model.layer_scale}", "give its initial value, or 0 for none")
    _positive(model, "ln_eps")
    for field in ("dtype", "softmax_dtype"):
        _dtype(model, field)
    if model.posemb == "sincos2d":
        posemb.sincos2d(1, 1, model.width)  # refuses widths it has no channels for
    _positions(model)
    if model.axial:
        _axial(model)
    attention_function(model.attention)


def _positions(model: nn.Module) -> None:
    """Where positions act must suit their kind."""
    if model.posemb_at is not None:
        _one_of(model, "posemb_at", positions.PLACES)
    in_layers = model.posemb_at in ("every", "shared")
    if in_layers and model.posemb not in positions.LEARNED:
        raise UsageError(
            f"posemb_at {model.posemb_at!r} with posemb {model.posemb!r}",
            f"only learned positions act in the layers: posemb of {', '.join(positions.LEARNED)}",
        )
    if model.posemb == "relative" and model.posemb_at == "stem":
        raise UsageError(
            "posemb_at 'stem' with relative positions, which act in the attention", "give every or shared"
        )
    if model.posemb == "learn2d" and model.width % 2:
        raise UsageError(
            f"posemb 'learn2d' of width {model.width}", "use an even width: half for x, half for y"
        )


def _axial(model: nn.Module) -> None:
    """Tokens must be a grid, and positions be there before the layers."""
    if model.has_class_token or model.num_registers:
        raise UsageError(
            "an axial model with a class token or registers, which stand in no row or column",
            "pool with gap or map, and leave class_token and num_registers out",
        )
    if positions.place_of(model.posemb, model.posemb_at) != "stem":
        raise UsageError(
            f"an axial model with posemb {model.posemb!r} in its layers", "leave posemb_at out, not relative"
        )


def check_resnet(model: nn.Module) -> None:
    """Checks every field of a ResNet.

    Raises:
        UsageError: names the field, its value and what it should be.
    """
    _at_least(model, "channels", 1)
    _at_least(model, "num_classes", 0)
    _units(model, "depths", least=1)
    _group_norm_width(model, "width_factor")
    _one_of(model, "generation", GENERATIONS)
    grid_of(model.image_size, 1)
    _dtype(model, "dtype")


def check_mixer(model: nn.Module) -> None:
    """Checks every field of an MLP-Mixer.

    Raises:
        UsageError: names the field, its value and what it should be.
    """
    for field in ("patch_size", "width", "depth", "tokens_mlp_dim", "channels_mlp_dim", "channels"):
        _at_least(model, field, 1)
    _at_least(model, "num_classes", 0)
    grid_of(model.image_size, model.patch_size)
    _rate(model, "stoch_depth")
    _dtype(model, "dtype")


def check_no_attention(model: nn.Module, capture_attention: bool) -> None:
    """Raises UsageError where attention is asked of a model that has none, or none among all tokens."""
    if capture_attention and getattr(model, "axial", False):
        raise UsageError(
            "capture_attention: an axial model attends along rows and columns, never among all tokens",
            "take another ViT or a hybrid",
        )
    if capture_attention:
        raise UsageError(
            f"capture_attention: a {type(model).__name__} has no attention", "take a ViT or a hybrid"
        )


def check_images(model: nn.Module, shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    """Checks a batch of images, [B, H, W, C] floating point, against any model.

    Raises:
        UsageError: names both sides: the images' shape or type, and the model's.
    """
    if len(shape) != 4 or shape[-1] != model.channels:
        raise UsageError(
            f"images of shape {tuple(shape)}",
            f"this model takes [batch, height, width, {model.channels}]",
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise UsageError(f"images of type {jnp.dtype(dtype).name}", "normalise them to floating point first")


def check_grid(shape: tuple[int, ...], grid: tuple[int, int], made_for: tuple[int, int], table: str) -> None:
    """Checks the grid of images [B, H, W, C] against the one that a model's `table` of parameters is made for.

    Raises:
        UsageError: names both grids.
    """
    if grid != made_for:
        raise UsageError(
            f"images of {shape[1]}x{shape[2]} make a grid of {grid[0]}x{grid[1]} patches, but the {table} "
            f"for {made_for[0]}x{made_for[1]}",
            "load or create the model with image_size= of the images",
        )


def _at_least(model: nn.Module, field: str, least: int) -> None:
    value = getattr(model, field)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{field} is {value!r}", f"it must be a whole number of at least {least}")


def _positive(model: nn.Module, field: str) -> None:
    value = getattr(model, field)
    if not 0 < value < math.inf:
        raise UsageError(f"{field} is {value!r}", "it must be a positive number")


def _rate(model: nn.Module, field: str) -> None:
    rate = getattr(model, field)
    if not 0 <= rate < 1:
        raise UsageError(f"{field} is {rate}", "choose a rate of at least 0 and below 1")


def _true_or_false(model: nn.Module, field: str) -> None:
    value = getattr(model, field)
    if not isinstance(value, bool):
        raise UsageError(f"{field} is {value!r}", "it must be true or false")


def _one_of(model: nn.Module, field: str, known: tuple[str, ...]) -> None:
    value = getattr(model, field)
    if value not in known:
        raise UsageError(f"unknown {field} {value!r}", known_names(str(value), known))


def _dtype(model: nn.Module, field: str) -> None:
    value = getattr(model, field)
    name = value if isinstance(value, str) else jnp.dtype(value).name
    if name not in DTYPES:
        raise UsageError(f"unknown {field} {name!r}", known_names(name, DTYPES))


def _units(model: nn.Module, field: str, least: int) -> None:
    """Units of each ResNet stage."""
    value = getattr(model, field)
    whole = isinstance(value, tuple) and all(isinstance(n, int) and n >= 1 for n in value)
    if not whole or len(value) < least:
        raise UsageError(
            f"{field} is {value!r}",
            "give a tuple with the number of units of each stage, such as (3, 4, 6, 3)",
        )


def _group_norm_width(model: nn.Module, field: str) -> None:
    """The narrowest layer, 64 times the factor, must split into the groups of GroupNorm."""
    factor = getattr(model, field)
    if not 0 < factor < math.inf or (64 * factor) % NORM_GROUPS:
        raise UsageError(
            f"{field} is {factor}",
            f"choose a multiple of {NORM_GROUPS / 64}: GroupNorm has {NORM_GROUPS} groups, the root 64 x "
            f"{field} channels",
        )
