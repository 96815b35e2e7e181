"""Resizing a position table to another grid, by the rule of whoever made the weights.

Each rule is separable and linear: one matrix for the rows of the grid and one for its columns, in float64.
"""

from collections.abc import Callable

import numpy as np

from vit_jax.errors import UsageError, known_names


def resize(table: np.ndarray, old: tuple[int, int], new: tuple[int, int], mode: str) -> np.ndarray:
    """[1, h w, D] of grid `old` -> [1, H W, D] of grid `new`, in the type of the table.

    Args:
      mode: a name of MODES:
        zoom: bilinear with aligned corners; vision_transformer and big_vision.
        bicubic: a = -0.75, half-pixel centres, no antialias; torch, Hugging Face, DINO.
        bicubic_antialias: a = -0.5, half-pixel centres, widened when shrinking; timm.
        bilinear: half-pixel centres, no antialias; timm's reader of .npz files.

    Raises:
      UsageError: unknown mode.
    """
    check_mode(mode)
    if old == new:
        return table
    grid = table.reshape(*old, table.shape[-1]).astype(np.float64)
    rows, columns = (MODES[mode](a, b) for a, b in zip(old, new, strict=True))
    out = np.einsum("Hh,Ww,hwd->HWd", rows, columns, grid, optimize=True)
    return out.reshape(1, -1, table.shape[-1]).astype(table.dtype)


def resize_line(table: np.ndarray, new: int, mode: str) -> np.ndarray:
    """[1, n, D] -> [1, new, D]: one axis of a grid, by the same rules as `resize`."""
    check_mode(mode)
    if table.shape[1] == new:
        return table
    return np.einsum("Nn,znd->zNd", MODES[mode](table.shape[1], new), table.astype(np.float64)).astype(
        table.dtype
    )


def check_mode(mode: str) -> None:
    """Raises UsageError unless it is a name of MODES."""
    if mode not in MODES:
        raise UsageError(f"unknown posemb_resize {mode!r}", known_names(str(mode), MODES))


def _aligned_corners(old: int, new: int) -> np.ndarray:
    """[new, old]: sample i lies at i (old - 1) / (new - 1)."""
    return _interpolate(np.linspace(0.0, old - 1.0, new), old, _tent, reach=1)


def _half_pixel(old: int, new: int) -> np.ndarray:
    """Where the centres of the new cells lie among those of the old ones."""
    return (np.arange(new) + 0.5) * (old / new) - 0.5


def _bilinear(old: int, new: int) -> np.ndarray:
    return _interpolate(_half_pixel(old, new), old, _tent, reach=1)


def _bicubic(old: int, new: int) -> np.ndarray:
    return _interpolate(_half_pixel(old, new), old, lambda x: _cubic(x, -0.75), reach=2)


def _interpolate(
    centres: np.ndarray, old: int, kernel: Callable[[np.ndarray], np.ndarray], *, reach: int
) -> np.ndarray:
    """[new, old] weights at the `2 reach` nearest cells; beyond the edge the last cell goes on."""
    matrix = np.zeros((len(centres), old))
    first = np.floor(centres).astype(int) - reach + 1
    for k in range(2 * reach):
        cells = first + k
        np.add.at(matrix, (np.arange(len(centres)), np.clip(cells, 0, old - 1)), kernel(centres - cells))
    return matrix


def _bicubic_antialias(old: int, new: int) -> np.ndarray:
    """[new, old]: the kernel is as wide as a new cell when shrinking; at the edge weights are renormalised."""
    scale = max(old / new, 1.0)
    distance = (_half_pixel(old, new)[:, None] - np.arange(old)[None]) / scale
    weights = _cubic(distance, -0.5)
    return weights / weights.sum(axis=1, keepdims=True)


def _tent(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """The cubic convolution kernel of support 2 (Keys 1981)."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


MODES: dict[str, Callable[[int, int], np.ndarray]] = {
    "zoom": _aligned_corners,
    "bicubic": _bicubic,
    "bicubic_antialias": _bicubic_antialias,
    "bilinear": _bilinear,
}
