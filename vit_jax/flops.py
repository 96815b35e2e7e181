"""Floating-point operations of a ViT by formula, and what devices can do at most: the two halves of MFU.

The compiler's own count is no substitute: it counts the body of a scan over layers once.
"""

import re

# Backward costs two products for each one of the forward pass. Recomputation (remat) isn't useful work.
TRAIN_PER_FORWARD = 3

# Dense bfloat16 peak FLOP/s of one jax device, by `device.device_kind`; vendors' data sheets. A device is a
# chip, save for v2 and v3, where it is one of two cores.
PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    (r"TPU v2", 22.5e12),
    (r"TPU v3", 61.5e12),
    (r"TPU v4", 275e12),
    (r"TPU v5 ?(lite|e)", 197e12),
    (r"TPU v5p?", 459e12),
    (r"TPU v6 ?(lite|e)", 918e12),
    (r"(NVIDIA )?A100\b.*", 312e12),
    (r"(NVIDIA )?H100 PCIe.*", 756e12),
    (r"(NVIDIA )?H100 NVL.*", 835e12),
    (r"(NVIDIA )?H100\b.*", 989e12),
    (r"(NVIDIA )?H200 NVL.*", 835e12),
    (r"(NVIDIA )?H200\b.*", 989e12),
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
) -> int:
    """Matrix-product FLOPs (2 per multiply-add) of one image's forward pass, without norms and activations.

    The number of heads doesn't matter. `pool` as in the model: "tok" and "tok_gap" add a class token, "map"
    an attention head with one probe, "none" classifies every token.
    """
    down, across = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    patches = (image_size[0] // down) * (image_size[1] // across)
    tokens = patches + (pool in ("tok", "tok_gap"))
    embed = 2 * patches * down * across * channels * width
    projections = 8 * tokens * width**2  # query, key, value, out
    attention = 4 * tokens**2 * width  # scores and weighted sum
    mlp = 4 * tokens * width * mlp_dim
    total = embed + depth * (projections + attention + mlp)
    if pool == "map":  # query and out for the probe alone
        total += 4 * width**2 + 4 * tokens * width**2 + 4 * tokens * width + 4 * width * mlp_dim
    rows = tokens if pool == "none" else 1
    return total + 2 * rows * (width * rep_size + (rep_size or width) * num_classes)


def peak_flops(device_kind: str) -> float | None:
    """Dense bfloat16 peak FLOP/s of one device, or None if unknown (MFU is then unknown too)."""
    return next((peak for kind, peak in PEAK_FLOPS if re.fullmatch(kind, device_kind)), None)
