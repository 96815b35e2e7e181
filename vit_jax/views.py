"""What a Vision Transformer has learned and what it looks at, as numbers (arXiv 2010.11929, 4.5, D.7 and D.8).

Pure functions, arrays in and arrays out; those of attention take numpy and jax arrays alike.

Shapes: L layers, B images, H heads, N tokens: `prefix` of them are no patches (class token and registers, which
come first), the others are the h x w patches in reading order; P pixels a patch side, C channels, D width.
"""

from typing import Any, NamedTuple

import numpy as np

Array = Any  # numpy's or jax's; jax's may be traced

# As many as the paper shows.
FILTERS = 28


class Filters(NamedTuple):
    """Principal components, the one of most variance first.

    Attributes:
      images: float64 [k, P, P, C], of length 1 each; the entry of largest magnitude is positive.
      variance: float64 [k], the share of the variance that each explains, 0..1.
    """

    images: np.ndarray
    variance: np.ndarray


def embedding_filters(kernel: np.ndarray, count: int = FILTERS) -> Filters:
    """The first principal components of the D filters of a patch embedding (Figure 7, left).

    They form a basis of what the embedding keeps of a patch. A component's sign means nothing: the one is taken
    that makes its entry of largest magnitude positive, the first of equals.

    Args:
      kernel: [P, P, C, D].
      count: k at most; there are no more than D - 1 or P * P * C.
    """
    shape, width = kernel.shape[:-1], kernel.shape[-1]
    filters = np.asarray(kernel, np.float64).reshape(-1, width).T  # [D, P * P * C]
    _, lengths, rows = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)
    count = min(count, max(width - 1, 1), rows.shape[0])
    rows = rows[:count]
    power = lengths**2
    share = power[:count] / power.sum() if power.sum() else np.zeros(count)
    return Filters((rows * component_signs(rows)).reshape(count, *shape), share)


def component_signs(rows: np.ndarray) -> np.ndarray:
    """1 or -1 for each row [k, n], as [k, 1]: its product with the row has a positive entry of largest magnitude.

    Entries that differ by rounding alone are equals, the first of which counts: no machine may decide a sign.
    """
    magnitude = np.abs(rows)
    largest = (magnitude >= magnitude.max(axis=1, keepdims=True) * (1 - 1e-9)).argmax(axis=1)
    return np.where(np.take_along_axis(rows, largest[:, None], axis=1) < 0, -1.0, 1.0)


def position_similarity(table: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Cosine similarity of each patch's position embedding with all others' (Figure 7, centre).

    Args:
      table: [h * w, D], without the class token's row.
      grid: (h, w).

    Returns:
      float64 [h, w, h, w], -1..1: [y, x] is the map of patch (y, x). Rows of zeros are similar to nothing: 0.
    """
    rows = np.asarray(table, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return (rows @ rows.T).reshape(*grid, *grid)


def patch_distances(grid: tuple[int, int], stride: int) -> np.ndarray:
    """Pixels between the centres of any two patches, float64 [h * w, h * w]."""
    centres = stride * np.stack(np.mgrid[: grid[0], : grid[1]], axis=-1).reshape(
        -1, 2
    )  # (y, x) of each patch
    return np.linalg.norm(centres[:, None] - centres[None], axis=-1)


def mean_distance(attention: Array, grid: tuple[int, int], stride: int, *, renormalise: bool) -> Array:
    """Mean attention distance in pixels: how far from a patch the patches are that a head reads (Figure 7, right).

    The distance of a query to the other patches weighted by attention, mean over the queries; class token and
    registers are left out on both sides.

    Args:
      attention: [..., N, N], rows of queries that sum to 1.
      grid: (h, w), the last of the tokens.
      stride: pixels from patch to patch.
      renormalise: divide by what a query gives to patches; else attention to other tokens counts as no distance.

    Returns:
      [...], in the type of `attention`.
    """
    xp = attention.__array_namespace__()
    prefix = attention.shape[-1] - grid[0] * grid[1]
    patches = attention[..., prefix:, prefix:]
    distances = xp.asarray(patch_distances(grid, stride), dtype=attention.dtype)
    weighted = xp.einsum("...qk,qk->...q", patches, distances)
    if renormalise:
        weighted = weighted / patches.sum(axis=-1)
    return weighted.mean(axis=-1)


def mixing(mean_attention: np.ndarray) -> np.ndarray:
    """What a layer makes of the tokens, by attention and by the skip connection: [..., N, N], rows sum to 1.

    Args:
      mean_attention: [..., N, N], mean over the heads. One half of each token stays where it is.
    """
    with_skip = np.asarray(mean_attention, np.float64) + np.eye(mean_attention.shape[-1])
    return with_skip / with_skip.sum(axis=-1, keepdims=True)


def rollout(attention: np.ndarray) -> np.ndarray:
    """Attention rollout (Abnar and Zuidema, arXiv 2005.00928; D.8 of the ViT paper).

    Args:
      attention: [L, ..., H, N, N].

    Returns:
      float64 [L, ..., N, N]: row i of layer l tells how much of every input token is in token i after layer l.
    """
    joint = mixing(np.asarray(attention, np.float64).mean(axis=-3))
    for layer in range(1, len(joint)):
        joint[layer] = joint[layer] @ joint[layer - 1]
    return joint


def readout(num_tokens: int, prefix: int, *, class_token: bool) -> np.ndarray:
    """How the result reads the last layer's tokens, float64 [N]: the class token's row, or the patches' mean."""
    weights = np.zeros(num_tokens)
    if class_token:
        weights[0] = 1.0
    else:
        weights[prefix:] = 1.0 / (num_tokens - prefix)
    return weights


def attended(mean_attention: np.ndarray, read: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """How much of each patch is in the result (Figures 6 and 14): `read` times the last layer of `rollout`.

    One row is followed down the layers; no product of matrices is made.

    Args:
      mean_attention: [L, N, N], mean over the heads.
      read: [N], see `readout`.
      grid: (h, w).

    Returns:
      float64 [h, w]; class token and registers are left out, so it needn't sum to 1.
    """
    row = np.asarray(read, np.float64)
    for layer in range(len(mean_attention) - 1, -1, -1):
        row = row @ mixing(mean_attention[layer])
    return row[len(row) - grid[0] * grid[1] :].reshape(grid)
