"""Floating-point operations of the models by formula, and what devices can do at most: the two halves of MFU.

The compiler's own count is no substitute: it counts the body of a scan over layers once.
"""

import math
import re

from flax import linen as nn

from vit_jax.models.check import size_of
from vit_jax.models.heads import pools_class_token
from vit_jax.models.mixer import Mixer
from vit_jax.models.resnet import EXPANSION, ROOT_WIDTH, ResNet
from vit_jax.models.vit import ViT

# Backward costs two products for each one of the forward pass. Recomputation (remat) isn't useful work.
TRAIN_PER_FORWARD = 3

# Dense bfloat16 peak FLOP/s of one jax device, by `device.device_kind`; vendors' data sheets. A device is a
# chip, save for v2, v3 and TPU7x, where it is one of two cores or halves.
PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    (r"TPU v2", 22.5e12),
    (r"TPU v3", 61.5e12),
    (r"TPU v4", 275e12),
    (r"TPU v5 ?(lite|e)", 197e12),
    (r"TPU v5p?", 459e12),
    (r"TPU v6 ?(lite|e)", 918e12),
    (r"TPU7x", 1153.5e12),
    (r"(NVIDIA )?A100\b.*", 312e12),
    (r"(NVIDIA )?H100 PCIe.*", 756e12),
    (r"(NVIDIA )?H100 NVL.*", 835e12),
    (r"(NVIDIA )?H100\b.*", 989e12),
    (r"(NVIDIA )?H200 NVL.*", 835e12),
    (r"(NVIDIA )?H200\b.*", 989e12),
)


def forward_flops(model: nn.Module) -> int:
    """Matrix-product and convolution FLOPs (2 per multiply-add) of one image's forward pass at `image_size`.

    Without norms, activations and the standardisation of kernels, which doesn't grow with the batch.

    Args:
      model: a ViT, hybrid or not, a ResNet or a Mixer.
    """
    if isinstance(model, ViT):
        return vit_forward_flops(
            image_size=size_of(model.image_size),
            class_token=model.has_class_token,
            relative=model.posemb == "relative",
            **{name: getattr(model, name) for name in _VIT_FIELDS},
        )
    if isinstance(model, ResNet):
        total, (_, _, channels) = _convolutions(
            (*size_of(model.image_size), model.channels), model.depths, model.width_factor
        )
        return total + 2 * channels * model.num_classes
    if isinstance(model, Mixer):
        patches = math.prod(model.grid)
        embed = 2 * patches * model.patch_size**2 * model.channels * model.width
        mlps = 4 * patches * model.width * (model.tokens_mlp_dim + model.channels_mlp_dim)
        return embed + model.depth * mlps + 2 * model.width * model.num_classes
    raise TypeError(f"no count for {type(model).__name__}")


_VIT_FIELDS = (
    "patch_size",
    "channels",
    "width",
    "depth",
    "mlp_dim",
    "num_classes",
    "pool",
    "rep_size",
    "num_registers",
    "swiglu",
    "backbone",
    "backbone_width",
    "axial",
)


def vit_forward_flops(
    *,
    image_size: tuple[int, int],
    patch_size: int | tuple[int, int],
    channels: int,
    width: int,
    depth: int,
    mlp_dim: int,
    num_classes: int,
    pool: str,
    rep_size: int,
    class_token: bool | None = None,
    num_registers: int = 0,
    swiglu: bool = False,
    backbone: tuple[int, ...] | None = None,
    backbone_width: float = 1.0,
    relative: bool = False,
    axial: bool = False,
) -> int:
    """`forward_flops` of a ViT with these fields, which mean what the model's do.

    The number of heads doesn't matter. A patch may also be given as (height, width).
    `relative` stands for relative positions.
    """
    down, across = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    total, features = 0, (*image_size, channels)
    if backbone is not None:
        total, features = _convolutions(features, backbone, backbone_width)
    height, width_in, depth_in = features
    rows, columns = height // down, width_in // across
    patches = rows * columns
    if class_token is None:
        class_token = pools_class_token(pool)
    tokens = class_token + num_registers + patches
    embed = 2 * patches * down * across * depth_in * width
    projections = 8 * tokens * width**2  # query, key, value, out
    attention = 4 * tokens**2 * width  # scores and weighted sum
    if relative:
        attention += 2 * patches * (2 * patches - 1) * width  # queries times the keys of all offsets
    mlp = (6 if swiglu else 4) * tokens * width * mlp_dim
    layer = projections + attention + mlp
    if axial:  # two of all but the attention, which is along rows, then along columns
        layer = 2 * (projections + mlp) + 4 * tokens * (columns + rows) * width
    total += embed + depth * layer
    if pool == "map":  # query and out for the probe alone, which reads the patches
        total += 4 * width**2 + 4 * patches * width**2 + 4 * patches * width + 4 * width * mlp_dim
    read = patches if pool == "none" else 1
    pooled = 2 * width if pool == "tok_gap" else width
    return total + 2 * read * (pooled * rep_size + (rep_size or pooled) * num_classes)


def _convolutions(
    image: tuple[int, int, int], depths: tuple[int, ...], width_factor: float
) -> tuple[int, tuple[int, int, int]]:
    """FLOPs of a ResNet's root and stages on [H, W, C], of either generation, and the shape of what comes out.

    A border counts as if the window lay inside, as in published figures.
    """
    height, width, channels = image
    features = round(ROOT_WIDTH * width_factor)

    def halved(n: int) -> int:
        return -(-n // 2)

    height, width = halved(height), halved(width)
    total = 2 * height * width * 7 * 7 * channels * features
    height, width, channels = halved(height), halved(width), features  # the max-pooling
    for stage, units in enumerate(depths):
        hidden, out = features * 2**stage, EXPANSION * features * 2**stage
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            area, channels_in = height * width, channels
            if stride == 2:
                height, width = halved(height), halved(width)
            products = area * channels_in * hidden  # conv1 reads at the old resolution
            products += height * width * (3 * 3 * hidden * hidden + hidden * out)
            if stride == 2 or channels_in != out:
                products += height * width * channels_in * out  # the shortcut's projection
            total += 2 * products
            channels = out
    return total, (height, width, channels)


def peak_flops(device_kind: str) -> float | None:
    """Dense bfloat16 peak FLOP/s of one device, or None if unknown (MFU is then unknown too)."""
    return next((peak for kind, peak in PEAK_FLOPS if re.fullmatch(kind, device_kind)), None)
