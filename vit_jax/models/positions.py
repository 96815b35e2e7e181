"""Learned positions: their tables, where the tables live, and what they add to tokens or to attention logits.

The ablation of the ViT paper (arXiv 2010.11929, Table 8): one-dimensional, two-dimensional or relative; before the
first layer, in every layer, or shared by all layers.
Shapes: B batch, N patches, T all tokens, D width, H heads, hd = D / H.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

LEARNED = ("learn", "learn2d", "relative")  # the kinds that have a table, made for one grid
PLACES = ("stem", "every", "shared")


class Layout(NamedTuple):
    """What a table is made for.

    Attributes:
        kind: one of LEARNED.
        grid: (rows, columns) of patches.
        prefix: number of tokens before the patches: class token, registers.
        class_row: whether a "learn" table has a first row for the class token.
    """

    kind: str
    grid: tuple[int, int]
    prefix: int
    class_row: bool


class Positions(NamedTuple):
    """What one layer does with positions; at most one of the two is there.

    Attributes:
        added: [1, T, D], added to the layer's input.
        relative: [2 N - 1, H, hd], keys of the offsets: row N - 1 - (p_q - p_k), with p a patch's place in reading
            order, for the logit that query q adds for key k.
    """

    added: jax.Array | None = None
    relative: jax.Array | None = None


def place_of(kind: str, at: str | None) -> str:
    """The place of the tables: as given, or else "every" for relative positions and "stem" for all others."""
    return at or ("every" if kind == "relative" else "stem")


def table(module: nn.Module, layout: Layout, width: int) -> jax.Array:
    """Parameters of `module` as rows of the patches in reading order, [1, N, D]; one more, first, with class_row.

    "learn": `posemb` [1, N, D]. "learn2d": `posemb_x` [1, columns, D/2] and `posemb_y` [1, rows, D/2]; a patch has
    the one of its column, then the one of its row. The class token has no cell, so no position.
    """
    rows, columns = layout.grid
    init = nn.initializers.normal(0.02)
    if layout.kind == "learn":
        return module.param("posemb", init, (1, rows * columns + layout.class_row, width))
    x = module.param("posemb_x", init, (1, columns, width // 2))
    y = module.param("posemb_y", init, (1, rows, width // 2))
    return grid_table(x, y)


def grid_table(x: jax.Array, y: jax.Array) -> jax.Array:
    """Tables of the columns [1, w, D/2] and of the rows [1, h, D/2] -> [1, h w, D] in reading order."""
    half, w, h = x.shape[-1], x.shape[1], y.shape[1]
    both = jnp.concatenate(
        [jnp.broadcast_to(x, (h, w, half)), jnp.broadcast_to(y.swapaxes(0, 1), (h, w, half))], axis=-1
    )
    return both.reshape(1, h * w, 2 * half)


def layer_table(module: nn.Module, layout: Layout, width: int, num_heads: int) -> Positions:
    """Positions of a layer, or of all: parameters of `module`, as above or `posemb_relative` [2 N - 1, H, hd]."""
    rows, columns = layout.grid
    if layout.kind == "relative":
        shape = (2 * rows * columns - 1, num_heads, width // num_heads)
        return Positions(relative=module.param("posemb_relative", nn.initializers.normal(0.02), shape))
    found = table(module, layout, width)
    # Tokens that have no row get nothing: registers, and the class token without class_row.
    zeros = jnp.zeros((1, layout.prefix - layout.class_row, width), found.dtype)
    first = int(layout.class_row)
    return Positions(added=jnp.concatenate([found[:, :first], zeros, found[:, first:]], axis=1))


def relative_logits(q: jax.Array, relative: jax.Array, prefix: int, softmax_dtype: jnp.dtype) -> jax.Array:
    """What relative positions add to the attention logits, [B, H, T, T] in softmax_dtype.

    Class token and registers have no place in the reading order: pairs with one of them get 0. Hence the keys of
    the last layer have no gradient where the head reads the class token alone.

    Args:
        q: queries of all tokens, [B, T, H, hd], scaled as those of the content.
        relative: [2 N - 1, H, hd], see Positions.
        prefix: number of tokens before the patches.
    """
    q = q[:, prefix:]
    B, N, H, _ = q.shape
    by_offset = jnp.einsum(
        "bnhd,ohd->bhno", q, relative.astype(q.dtype), preferred_element_type=softmax_dtype
    )
    # Row n needs columns N-1-n ... 2N-2-n. With one column more, reading on from N-1 by rows that are one shorter
    # moves each row one further to the left.
    padded = jnp.pad(by_offset, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(B, H, 2 * N * N)
    shifted = padded[:, :, N - 1 : N - 1 + N * (2 * N - 1)].reshape(B, H, N, 2 * N - 1)
    return jnp.pad(shifted[..., :N], ((0, 0), (0, 0), (prefix, 0), (prefix, 0)))
