"""Which dimension to scale, ViT (arXiv 2010.11929) appendix D.2: depth, width, MLP, patch size, or all.

The base has 8 layers of width 1024, MLPs of 2048 and patches of 32 pixels, with the JFT settings of Table 3
(pretrain_jft.py). The argument is what is scaled and KEY=VALUE pairs:

    scale    base (default), depth, width, mlp, patch, all
    by       factor, 2 by default: depth, width and MLP are multiplied by it, the patch's side is divided; with
             `all` each of the four. Results must be whole numbers, and the patch must divide 224.
             depth,by=8 has 64 layers
    data, train, val, classes   as in pretrain_jft.py

Expected, of curves without numbers: depth helps most, up to 64 layers, with less gain beyond 16; width helps least;
smaller patches help robustly, at no parameters. Heads and learning rate aren't known: here 64 wide, and 6e-4, that
of L/32. Hardware: not stated. Not reproduced: JFT-300M is private. Blocks are scanned and recomputed and parameters
split 16 ways, as for L: the number of chips must be a multiple of 16.

    python -m vit_jax.plan --config=configs/ablations/shape.py:depth,by=8 --topology=v5e:16x16
    python -m vit_jax.train --config=configs/ablations/shape.py:depth,by=8 --workdir=gs://bucket/deep
"""

from fractions import Fraction

from ml_collections import ConfigDict

from vit_jax.config import load, one_of, parse_argument
from vit_jax.errors import UsageError

_SCALES = ("base", "depth", "width", "mlp", "patch", "all")
_HEAD = 64
_DATA = {"data": "arrayrecord:jft300m", "train": "train", "val": "", "classes": "18291"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: SCALE,KEY=VALUE,... as above."""
    values = parse_argument(arg, {"scale": "base", "by": "2", **_DATA}, positional="scale")
    scale = one_of(values.pop("scale"), _SCALES, "config argument scale")
    by = values.pop("by")
    try:
        factor = Fraction(by)
        if factor <= 0:
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"config argument by is {by!r}", "give a positive number") from None

    def scaled(base: int, name: str, exponent: int = 1) -> int:
        exact = base * factor**exponent if scale in (name, "all") else Fraction(base)
        if exact.denominator != 1:
            raise UsageError(f"{name} {base} scaled by {by} is no whole number", "give another factor")
        return int(exact)

    depth, width = scaled(8, "depth"), scaled(1024, "width")
    mlp, patch = scaled(2048, "mlp"), scaled(32, "patch", -1)
    if width % _HEAD or 224 % patch:
        raise UsageError(
            f"width {width}, patch {patch} are no model for 224 pixels",
            f"heads are {_HEAD} wide; give another by",
        )
    config = load("pretrain_jft:L/32," + ",".join(f"{key}={value}" for key, value in values.items()))

    config.model.name = f"L/{patch}"
    config.model.depth = depth
    config.model.width = config.model.rep_size = width
    config.model.mlp_dim = mlp
    config.model.num_heads = width // _HEAD
    return config
