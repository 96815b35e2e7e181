"""Position tables of weights for a model with another class row or another grid, wherever in the model they are.

Arrays are flat: {"posemb": [1, N, D], "encoder/block_0/posemb_x": [1, w, D/2], ...}, unstacked.
"""

import logging
import re

import numpy as np
from flax import linen as nn

from vit_jax.errors import UsageError
from vit_jax.formats.posemb import add_zero_rows, fold_class_row
from vit_jax.formats.resize import resize, resize_line
from vit_jax.formats.weights import Arrays, Weights
from vit_jax.models.check import size_of
from vit_jax.models.positions import LEARNED, place_of

_log = logging.getLogger(__name__)

# One for all layers or one in each: (where, of what).
_TABLE = re.compile(r"(encoder/block_\d+/)?(posemb|posemb_x|posemb_y)")


def fit_tables(params: Arrays, weights: Weights, model: nn.Module, mode: str) -> Arrays:
    """The position tables with the class row and the grid of the model, each resized separately along its axes.

    Args:
      mode: a name of formats.resize.MODES.

    Raises:
      UsageError: relative positions of another grid, a table that isn't the weights' grid, or a class row that
        only some layers could do without.
    """
    if model.posemb not in LEARNED or weights.fields.get("posemb", "learn") != model.posemb:
        return params
    tables = [name for name in params if _TABLE.fullmatch(name)]
    if model.posemb == "learn" and tables and "cls_token" in params:
        params = _class_rows(params, tables, weights, model)
    old, new = weights.model().grid, model.grid
    if old == new or not (tables or model.posemb == "relative"):
        return params
    grids = f"{old[0]}x{old[1]}", f"{new[0]}x{new[1]}"
    (height, width), (was_height, was_width) = (
        size_of(model.image_size),
        size_of(weights.fields["image_size"]),
    )
    if model.posemb == "relative":
        raise UsageError(
            f"relative positions of {weights.origin} count places in the reading order of a {grids[0]} grid: "
            f"no rule makes them fit {grids[1]}",
            f"give images of {was_height}x{was_width}, or train with posemb learn or learn2d",
        )
    start = int(model.posemb == "learn" and model.posemb_cls and "cls_token" in params)
    resized = {}
    for name in tables:
        rows, kind = params[name], _TABLE.fullmatch(name)[2]
        if kind == "posemb":
            if rows.shape[1] - start != old[0] * old[1]:
                raise UsageError(
                    f"the position table of {weights.origin} isn't {old[0]}x{old[1]}", "give image_size="
                )
            fitting = resize(rows[:, start:], old, new, mode)
            resized[name] = np.concatenate([rows[:, :start], fitting], axis=1)
        else:
            resized[name] = resize_line(rows, new[kind == "posemb_x"], mode)
    _log.warning(
        "position table%s of %s resized from %s to %s (%s): images of %dx%d px, the weights were made at %dx%d",
        "" if len(tables) == 1 else "s", weights.origin, *grids, mode, height, width, was_height, was_width,
    )  # fmt: skip
    return {**params, **resized}


def _class_rows(params: Arrays, tables: list[str], weights: Weights, model: nn.Module) -> Arrays:
    """Moves the class token's row into the token, or adds rows of zeros, where the model wants the other."""
    had_row, wants_row = weights.fields["posemb_cls"], model.posemb_cls
    if had_row and not wants_row:
        if place_of(model.posemb, model.posemb_at) != "stem":
            raise UsageError(
                f"{weights.origin} adds a position to the class token in every layer", "leave posemb_cls out"
            )
        _log.info("the class token's position row of %s is folded into the token", weights.origin)
        return fold_class_row(params)
    if wants_row and not had_row:
        rows = {name: add_zero_rows({"posemb": params[name]}, 1)["posemb"] for name in tables}
        return {**params, **rows}
    return params
