"""Axial attention (ViT paper, arXiv 2010.11929, appendix D.6): tokens attend along their row or column of the grid.

Shapes: B batch, h x w grid, N = h w tokens in reading order, D width.
"""

import jax

LINES = ("row", "column")


def to_lines(x: jax.Array, grid: tuple[int, int], line: str) -> jax.Array:
    """[B, N, D] -> the tokens of each row [B h, w, D], or of each column [B w, h, D]."""
    h, w = grid
    x = x.reshape(-1, h, w, x.shape[-1])
    x = x if line == "row" else x.swapaxes(1, 2)
    return x.reshape(-1, x.shape[2], x.shape[3])


def from_lines(x: jax.Array, grid: tuple[int, int], line: str) -> jax.Array:
    """The inverse: back to [B, N, D]."""
    h, w = grid
    x = x.reshape(-1, h, w, x.shape[-1]) if line == "row" else x.reshape(-1, w, h, x.shape[-1]).swapaxes(1, 2)
    return x.reshape(-1, h * w, x.shape[-1])
