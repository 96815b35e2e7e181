"""What the PyTorch layouts share: (out, in) matrices, OIHW kernels, and rows for class token and registers."""

import re
from typing import Any

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.formats.posemb import asked_grid, grid_of_rows
from vit_jax.formats.table import FLAT, LINEAR, LINEAR_OF_HEADS, SAME, Change
from vit_jax.formats.weights import Arrays

Leaves = tuple[tuple[str, str, Change], ...]
DENSE: Leaves = (("kernel", ".weight", LINEAR), ("bias", ".bias", SAME))
HEADS: Leaves = (("kernel", ".weight", LINEAR), ("bias", ".bias", FLAT))  # to [D, H, hd] and [H, hd]
MERGE: Leaves = (("kernel", ".weight", LINEAR_OF_HEADS), ("bias", ".bias", SAME))
NORM: Leaves = (("scale", ".weight", SAME), ("bias", ".bias", SAME))


def count_blocks(arrays: Arrays, pattern: str) -> int:
    """How many blocks there are; `pattern` has one group, the number of the block."""
    found = [int(m[1]) for name in arrays if (m := re.match(pattern, name))]
    return 1 + max(found, default=-1)


def read_positions(
    arrays: Arrays, names: tuple[str, str, str], hints: dict[str, Any], patch: int, origin: str
) -> tuple[Arrays, dict[str, Any]]:
    """The position table in our form, and the fields it shows.

    Rows of registers are added to the registers: the very sum that the model computes. A class row of zeros,
    which is how writers store a model without one, is left out.

    Args:
      names: of class token, registers and table.

    Raises:
      UsageError: a number of rows that fits no grid.
    """
    cls, registers, posemb = names
    number = arrays[registers].shape[1] if registers in arrays else 0
    found: dict[str, Any] = {"class_token": cls in arrays, "num_registers": number}
    if posemb not in arrays:
        if "image_size" not in hints:
            raise UsageError(f"{origin} has no position table", "give image_size= and posemb=")
        return arrays, {
            **found,
            "posemb": hints.get("posemb", "none"),
            "posemb_cls": False,
        }
    rows = arrays[posemb]
    counts = [0, int(found["class_token"]), int(found["class_token"]) + number]
    asked = asked_grid(hints.get("image_size"), patch)
    grid, prefix = grid_of_rows(
        rows.shape[1],
        prefix_counts=sorted(set(counts), reverse=True),
        asked=asked,
        class_row=hints.get("posemb_cls"),
        origin=origin,
    )
    arrays = dict(arrays)
    if number and prefix == counts[2]:
        first = prefix - number
        arrays[registers] = arrays[registers] + rows[:, first:prefix]
        rows, prefix = np.concatenate([rows[:, :first], rows[:, prefix:]], axis=1), first
    if prefix and not rows[:, :prefix].any():
        rows, prefix = rows[:, prefix:], 0
    arrays[posemb] = rows
    found |= {
        "posemb": "learn",
        "posemb_cls": bool(prefix),
        "image_size": (grid[0] * patch, grid[1] * patch),
    }
    return arrays, found
