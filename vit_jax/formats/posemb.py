"""Rows of a learned position table: what their number means, and rows that one layout has and another lacks.

Arrays are flat: {"posemb": [1, N, D], "cls_token": [1, 1, D], ...}.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.formats.weights import Arrays
from vit_jax.models.check import size_of
from vit_jax.models.posemb import sincos2d


def grid_of_rows(
    rows: int,
    *,
    prefix_counts: Sequence[int],
    asked: tuple[int, int] | None,
    class_row: bool | None,
    origin: str,
) -> tuple[tuple[int, int], int]:
    """(rows, columns) of the patch grid, and how many rows stand before it.

    The first count of `prefix_counts` that fits is taken: the grid of the size that the caller asks for, if it has
    exactly as many cells, or else a square one.

    Args:
      rows: of the table.
      prefix_counts: numbers of rows that may stand before the patches', the layout's usual one first.
      asked: the grid of the image size that the caller asks for, if any.
      class_row: what the caller says of the class token's row; settles what the numbers leave open.

    Raises:
      UsageError: no reading fits, or the asked grid fits in an unusual way and a square one in a third.
    """
    readings = [((side, side), k) for k in prefix_counts if (side := _side(rows - k))]
    if asked is not None and asked[0] != asked[1]:
        fitting = [(asked, k) for k in prefix_counts if rows - k == math.prod(asked)]
        readings = fitting + [(grid, k) for grid, k in readings if k not in {k for _, k in fitting}]
    if len(readings) > 1 and class_row is not None:
        readings = [(grid, k) for grid, k in readings if (k > 0) == class_row] or readings
    usual = [(grid, k) for grid, k in readings if k == prefix_counts[0]]
    if usual:
        return usual[0]
    if len(readings) == 1:
        return readings[0]
    what = f"the position table of {origin} has {rows} rows"
    if readings:
        listed = " or ".join(f"{h}x{w} patches and {k} before them" for (h, w), k in readings)
        raise UsageError(f"{what}, which could be {listed}", "give posemb_cls= to say which")
    allowed = " or ".join(map(str, prefix_counts))
    raise UsageError(
        f"{what}: less {allowed} for class token and registers, no square grid of patches",
        "give image_size=(height, width) if the model is for non-square images",
    )


def _side(count: int) -> int:
    """The side of a square of so many patches; 0 if there's none."""
    side = math.isqrt(max(count, 0))
    return side if side * side == count else 0


def asked_grid(image_size: int | tuple[int, int] | None, downsampling: int) -> tuple[int, int] | None:
    """The grid of an image size; None where none is given or it isn't divisible, which is refused later."""
    if image_size is None:
        return None
    height, width = size_of(image_size)
    if height % downsampling or width % downsampling:
        return None
    return height // downsampling, width // downsampling


def learned_table(params: Arrays, fields: dict[str, Any]) -> Arrays:
    """A fixed position embedding as the learned table that holds the same numbers."""
    if fields["posemb"] != "sincos2d":
        return params
    height, width = size_of(fields["image_size"])
    patch = fields["patch_size"]
    return {**params, "posemb": sincos2d(height // patch, width // patch, fields["width"])}


def fold_class_row(params: Arrays) -> Arrays:
    """Adds the class token's position row to the token itself: the very sum that the model computes."""
    row, rest = params["posemb"][:, :1], params["posemb"][:, 1:]
    return {**params, "cls_token": params["cls_token"] + row, "posemb": rest}


def add_zero_rows(params: Arrays, count: int, *, after: int = 0) -> Arrays:
    """Rows of zeros for tokens that have none here: adding zero is adding nothing."""
    rows = params["posemb"]
    zeros = np.zeros_like(rows[:, :1]).repeat(count, axis=1)
    return {**params, "posemb": np.concatenate([rows[:, :after], zeros, rows[:, after:]], axis=1)}
