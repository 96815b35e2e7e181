"""The table of model names: `B/16` is a variant (B) and a patch size (16).

Pure Python, so that names can be listed and checked without loading jax.
"""

import fnmatch
import re
from typing import NamedTuple

from vit_jax.errors import UsageError, known_names


class Variant(NamedTuple):
    """One row of the table of Vision Transformers."""

    depth: int
    width: int
    mlp_dim: int
    num_heads: int
    usual_patches: tuple[int, ...]  # what `list_models` shows; any other patch size works as well


# B, L, H: ViT (arXiv 2010.11929), table 1. s, g, G: Scaling ViT (arXiv 2106.04560). Ti, S: as in the
# published vision_transformer code. M, So400m, g-opt, G-opt, e and the tiny mu for tests: as in big_vision.
# Case matters: s and S, g and G are different models.
VARIANTS: dict[str, Variant] = {
    "mu": Variant(1, 32, 128, 2, (16,)),
    "s": Variant(6, 256, 1024, 8, (16, 28)),
    "Ti": Variant(12, 192, 768, 3, (16,)),
    "S": Variant(12, 384, 1536, 6, (8, 16, 32)),
    "M": Variant(12, 512, 2048, 8, (16, 32)),
    "B": Variant(12, 768, 3072, 12, (8, 16, 32)),
    "L": Variant(24, 1024, 4096, 16, (14, 16, 32)),
    "So400m": Variant(27, 1152, 4304, 16, (14, 16)),
    "H": Variant(32, 1280, 5120, 16, (14,)),
    "g": Variant(40, 1408, 6144, 16, (14,)),
    "g-opt": Variant(40, 1536, 6144, 16, (14,)),
    "G": Variant(48, 1664, 8192, 16, (14,)),
    "G-opt": Variant(48, 1536, 8192, 16, (14,)),
    "e": Variant(56, 1792, 15360, 16, (14,)),
}

_NAME = re.compile(r"(?P<variant>[A-Za-z0-9-]+)/(?P<patch>[1-9][0-9]*)")


def list_models(pattern: str = "*") -> list[str]:
    """Model names that match a shell-style pattern such as `"B/*"`; case matters.

    Every variant is listed with its usual patch sizes; `create_model` takes any other patch size too.
    """
    names = [f"{name}/{patch}" for name, variant in VARIANTS.items() for patch in variant.usual_patches]
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def variant_fields(name: str) -> dict[str, int]:
    """The shape of the named model: `patch_size`, `depth`, `width`, `mlp_dim`, `num_heads`.

    Raises:
        UsageError: no such variant, or no patch size in the name; the remedy lists the known variants.
    """
    match = _NAME.fullmatch(name)
    if match is None or match["variant"] not in VARIANTS:
        nearest = known_names(name, list_models())
        nearest = nearest + " " if nearest.startswith("did you mean") else ""
        raise UsageError(
            f"unknown model {name!r}",
            f"{nearest}a name is VARIANT/PATCH, such as B/16, with a variant of: {', '.join(VARIANTS)}",
        )
    variant = VARIANTS[match["variant"]]
    return {
        "patch_size": int(match["patch"]),
        "depth": variant.depth,
        "width": variant.width,
        "mlp_dim": variant.mlp_dim,
        "num_heads": variant.num_heads,
    }
