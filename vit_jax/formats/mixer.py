"""The .npz layout of MLP-Mixer in vision_transformer."""

from typing import Any

from vit_jax.errors import UsageError
from vit_jax.formats import table
from vit_jax.formats.posemb import asked_grid
from vit_jax.formats.table import SAME, pair
from vit_jax.formats.weights import Arrays, Weights, complete, model_of, shapes_of
from vit_jax.paths import nested

_DENSE = (("kernel", "/kernel", SAME), ("bias", "/bias", SAME))
_NORM = (("scale", "/scale", SAME), ("bias", "/bias", SAME))

ROWS = [
    *pair("patch_embed", "stem", _DENSE),
    *pair("block_{i}/norm1", "MixerBlock_{i}/LayerNorm_0", _NORM),
    *pair("block_{i}/token_mlp/fc1", "MixerBlock_{i}/token_mixing/Dense_0", _DENSE),
    *pair("block_{i}/token_mlp/fc2", "MixerBlock_{i}/token_mixing/Dense_1", _DENSE),
    *pair("block_{i}/norm2", "MixerBlock_{i}/LayerNorm_1", _NORM),
    *pair("block_{i}/channel_mlp/fc1", "MixerBlock_{i}/channel_mixing/Dense_0", _DENSE),
    *pair("block_{i}/channel_mlp/fc2", "MixerBlock_{i}/channel_mixing/Dense_1", _DENSE),
    *pair("norm", "pre_head_layer_norm", _NORM),
    *pair("head", "head", _DENSE),
]


def matches(arrays: Arrays) -> bool:
    """Whether arrays (without a prefix) have this layout."""
    return any(name.startswith("MixerBlock_") for name in arrays)


def read(arrays: Arrays, hints: dict[str, Any], origin: str) -> Weights:
    """Arrays without a prefix -> weights of a Mixer, whose token MLPs fix the number of patches.

    Raises:
      UsageError: names or shapes that aren't those of one model, or a non-square grid without `image_size`.
    """
    for name in ("stem/kernel", "MixerBlock_0/token_mixing/Dense_0/kernel",
                 "MixerBlock_0/channel_mixing/Dense_0/kernel"):  # fmt: skip
        if name not in arrays:
            raise UsageError(f"{origin} is no complete Mixer: {name} is missing", "give the whole file")
    patch, _, channels, width = arrays["stem/kernel"].shape
    patches, tokens_mlp_dim = arrays["MixerBlock_0/token_mixing/Dense_0/kernel"].shape
    asked = asked_grid(hints.get("image_size"), patch)
    side = round(patches**0.5)
    grid = asked if asked is not None and asked[0] * asked[1] == patches else (side, side)
    if grid[0] * grid[1] != patches:
        raise UsageError(
            f"{origin} mixes {patches} patches, no square grid", "give image_size=(height, width)"
        )
    found = {
        "patch_size": patch,
        "channels": channels,
        "width": width,
        "depth": sum(name.endswith("/LayerNorm_0/scale") for name in arrays),
        "tokens_mlp_dim": tokens_mlp_dim,
        "channels_mlp_dim": arrays["MixerBlock_0/channel_mixing/Dense_0/kernel"].shape[1],
        "num_classes": arrays["head/kernel"].shape[1] if "head/kernel" in arrays else 0,
        "image_size": (grid[0] * patch, grid[1] * patch),
    }
    fields = complete(hints, found, origin)
    params = table.read(arrays, shapes_of(model_of("mixer", fields)), ROWS, origin=origin)
    half = (127.5,) * channels
    return Weights("npz", origin, "mixer", fields, nested(params), "zoom", half, half)
