"""Position embeddings: one row of width D for each cell of the patch grid, in reading order."""

import numpy as np

from vit_jax.errors import UsageError

KINDS = ("learn", "learn2d", "relative", "sincos2d", "none")


def sincos2d(height: int, width: int, dim: int, temperature: float = 10_000.0) -> np.ndarray:
    """Fixed two-dimensional sine-cosine table of a height x width grid, [1, height * width, dim] float32.

    The MoCo-v3 form of "Better plain ViT baselines" (arXiv 2205.01580): a quarter of the channels each for
    sin x, cos x, sin y, cos y, with x the column and y the row, at dim/4 geometrically spaced frequencies.

    Raises:
        UsageError: `dim` is not a multiple of 4, or so small that there's no range of frequencies.
    """
    if dim % 4 or dim < 8:
        raise UsageError(
            f"sincos2d position embedding of width {dim}", "use a width that is a multiple of 4, at least 8"
        )
    # float64 here and one rounding at the end: the angles reach the size of the grid.
    frequencies = temperature ** -(np.arange(dim // 4) / (dim // 4 - 1))
    y, x = np.mgrid[:height, :width].reshape(2, -1, 1) * frequencies  # each [height * width, dim / 4]
    table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=-1)
    return table[None].astype(np.float32)
