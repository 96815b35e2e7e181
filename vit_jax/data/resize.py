"""Resampling with TensorFlow's conventions, without TensorFlow.

All methods put pixel centres at half-integers and end in truncation to uint8, as a cast does there.
A result that is a whole number but for float32 rounding counts as that number: `_SLACK` is above the
rounding error of a resize (4 ulp at 255) and small against the 1/(4 h w) steps of exact results at 32 px.
"""

import cv2
import numpy as np
from scipy import sparse

METHODS = ("bilinear", "area", "nearest")
_SLACK = 1e-4
# A whole result of up to so many times the pixels wanted or given is made by OpenCV and then cut: faster.
_WHOLE = 4
Window = tuple[int, int, int, int]  # (y, x, h, w)


def resize(
    image: np.ndarray,
    size: tuple[int, int],
    method: str,
    antialias: bool = False,
    window: Window | None = None,
) -> np.ndarray:
    """Resizes uint8 [H, W, C] to `size` = (h, w), and cuts `window` from it.

    `bilinear` without antialias reads two neighbours per axis at any scale (the convention of the
    published ViT and of big_vision); with antialias, a triangle as wide as the scale. `area` averages
    what an output pixel covers. `nearest` takes the pixel at the output pixel's centre.

    Args:
      image: uint8 [H, W, C].
      size: of the whole result, in pixels.
      method: one of METHODS.
      antialias: for bilinear.
      window: (y, x, h, w) inside `size`; a thin image never grows to its full size. None: everything.

    Returns:
      uint8 [h, w, C].
    """
    y, x, h, w = window or (0, 0, *size)
    if image.shape[:2] == tuple(size):
        return image[y : y + h, x : x + w]
    fast = _opencv(method, antialias, image.shape[:2], size)
    if fast is not None and size[0] * size[1] <= _WHOLE * max(h * w, image.shape[0] * image.shape[1]):
        # In float32: OpenCV's uint8 path rounds the weights to 11 bits.
        whole = cv2.resize(image.astype(np.float32), (size[1], size[0]), interpolation=fast)
        return _truncate(whole, image)[y : y + h, x : x + w]
    if method == "nearest":
        rows, cols = _nearest(image.shape[0], size[0], y, h), _nearest(image.shape[1], size[1], x, w)
        return image[rows[:, None], cols[None, :]]
    taps = {"area": _area, "bilinear": _triangle if antialias else _bilinear}[method]
    rows = _matrix(*taps(image.shape[0], size[0], y, h), image.shape[0])
    cols = _matrix(*taps(image.shape[1], size[1], x, w), image.shape[1])
    channels = image.shape[2]
    # Only rows and columns under the window, whole rows at a time: both products run over long rows.
    tall = rows @ image.reshape(image.shape[0], -1).astype(np.float32)
    tall = np.ascontiguousarray(tall.reshape(h, image.shape[1], channels).swapaxes(0, 1))
    wide = cols @ tall.reshape(image.shape[1], -1)
    return np.ascontiguousarray(_truncate(wide.reshape(w, h, channels), image).swapaxes(0, 1))


def _opencv(method: str, antialias: bool, old: tuple[int, ...], new: tuple[int, int]) -> int | None:
    """OpenCV's flag where it computes what we want (its area method does when neither side grows)."""
    if method == "bilinear" and not antialias:
        return cv2.INTER_LINEAR
    if method == "area" and new[0] <= old[0] and new[1] <= old[1]:
        return cv2.INTER_AREA
    return None


def _truncate(values: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Float32 [h, w, C] in 0..255 to uint8, downwards: rounding x - 1/2 in one pass of SIMD code."""
    out = cv2.convertScaleAbs(values, alpha=1.0, beta=_SLACK - 0.5)
    return out.reshape(*values.shape[:2], image.shape[2])


def _matrix(indices: np.ndarray, weights: np.ndarray, n_in: int) -> sparse.csr_array:
    """Sparse [count, n_in] from indices and weights [count, taps]; indices beyond the edge are clipped."""
    count, taps = indices.shape
    starts = np.arange(0, count * taps + 1, taps, dtype=np.int32)
    clipped = np.clip(indices, 0, n_in - 1).astype(np.int32)
    return sparse.csr_array((weights.astype(np.float32).ravel(), clipped.ravel(), starts), (count, n_in))


# The functions below tell which of n_in pixels make outputs start..start+count-1 of n_out, and how much
# of each: indices and weights [count, taps], the weights of an output sum to 1.


def _bilinear(n_in: int, n_out: int, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    centre = (np.arange(start, start + count) + 0.5) * (n_in / n_out) - 0.5
    low = np.floor(centre)
    return np.stack([low, low + 1], 1).astype(np.int64), np.stack([1 - (centre - low), centre - low], 1)


def _triangle(n_in: int, n_out: int, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    scale = n_in / n_out
    width = max(scale, 1.0)
    centre = (np.arange(start, start + count) + 0.5) * scale - 0.5
    first = np.floor(centre - width).astype(np.int64) + 1
    indices = first[:, None] + np.arange(int(np.ceil(2 * width)))[None, :]
    weights = np.maximum(1 - np.abs(indices - centre[:, None]) / width, 0)
    return _inside(indices, weights, n_in)


def _area(n_in: int, n_out: int, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    scale = n_in / n_out
    low = np.arange(start, start + count) * scale
    indices = np.floor(low).astype(np.int64)[:, None] + np.arange(int(np.ceil(scale)) + 1)[None, :]
    high = low + scale
    weights = np.minimum(indices + 1, high[:, None]) - np.maximum(indices, low[:, None])
    return _inside(indices, np.maximum(weights, 0), n_in)


def _inside(indices: np.ndarray, weights: np.ndarray, n_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Gives no weight to pixels beyond the edge, and the rest of an output's weights the sum 1."""
    weights = weights * ((indices >= 0) & (indices < n_in))
    return indices, weights / weights.sum(axis=1, keepdims=True)


def _nearest(n_in: int, n_out: int, start: int, count: int) -> np.ndarray:
    """Index of the input pixel under each output pixel's centre, int64 [count]."""
    centre = (np.arange(start, start + count) + 0.5) * (n_in / n_out)
    return np.minimum(centre.astype(np.int64), n_in - 1)
