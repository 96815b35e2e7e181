"""Resampling with TensorFlow's conventions, without TensorFlow.

All methods put pixel centres at half-integers and end in truncation to uint8, as a cast does there.
A result that is a whole number but for float32 rounding counts as that number: `_SLACK` is above the
rounding error of a resize (4 ulp at 255) and below any true distance to a whole number that matters.
"""

import cv2
import numpy as np

METHODS = ("bilinear", "area", "nearest")
_SLACK = 1e-4
# Above this many pixels a full resize is left out in favour of the part that is kept.
_WINDOW_FACTOR = 8


def resize(image: np.ndarray, size: tuple[int, int], method: str, antialias: bool = False) -> np.ndarray:
    """Resizes uint8 [H, W, C] to uint8 [h, w, C] for size = (h, w).

    `bilinear` without antialias reads two neighbours per axis at any scale (the convention of the
    published ViT and of big_vision); with antialias, a triangle as wide as the scale. `area` averages
    what an output pixel covers. `nearest` takes the pixel at the output pixel's centre.
    """
    height, width = size
    if image.shape[:2] == (height, width):
        return image
    if method == "nearest":
        rows = _nearest(image.shape[0], height)
        return image[rows[:, None], _nearest(image.shape[1], width)[None, :]]
    if method == "bilinear" and not antialias:
        return _truncate(_cv2_resize(image, height, width, cv2.INTER_LINEAR))
    if method == "area" and height <= image.shape[0] and width <= image.shape[1]:
        return _truncate(_cv2_resize(image, height, width, cv2.INTER_AREA))
    return resize_window(image, size, (0, 0, height, width), method, antialias)


def resize_then_crop(
    image: np.ndarray,
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    method: str,
    antialias: bool = False,
) -> np.ndarray:
    """`resize` to `size`, then the window (y, x, h, w) of it; thin images never grow to full size."""
    y, x, h, w = window
    if size[0] * size[1] > _WINDOW_FACTOR * max(h * w, image.shape[0] * image.shape[1]):
        return resize_window(image, size, window, method, antialias)
    return resize(image, size, method, antialias)[y : y + h, x : x + w]


def resize_window(
    image: np.ndarray,
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    method: str,
    antialias: bool = False,
) -> np.ndarray:
    """The window (y, x, h, w) of the image resized to `size`, computing only that window."""
    y, x, h, w = window
    kind = "triangle" if method == "bilinear" and antialias else method
    rows, row_weights = _taps(image.shape[0], size[0], y, h, kind)
    cols, col_weights = _taps(image.shape[1], size[1], x, w, kind)
    # Rows first: whole rows are contiguous, so each tap is one fast multiply-add.
    flat = image.reshape(image.shape[0], -1).astype(np.float32)
    tall = np.zeros((h, flat.shape[1]), np.float32)
    for tap in range(rows.shape[0]):
        tall += flat[rows[tap]] * row_weights[tap][:, None]
    tall = tall.reshape(h, image.shape[1], image.shape[2])
    out = np.zeros((h, w, image.shape[2]), np.float32)
    for tap in range(cols.shape[0]):
        out += np.take(tall, cols[tap], axis=1) * col_weights[tap][None, :, None]
    return _truncate(out)


def _cv2_resize(image: np.ndarray, height: int, width: int, interpolation: int) -> np.ndarray:
    """Float32 [h, w, C]: OpenCV's uint8 path rounds its weights to 11 bits, its float path doesn't."""
    out = cv2.resize(image.astype(np.float32), (width, height), interpolation=interpolation)
    return out.reshape(height, width, image.shape[2])


def _truncate(image: np.ndarray) -> np.ndarray:
    """Float32 [h, w, C] in 0..255 to uint8, downwards: rounding x - 1/2 in one pass of SIMD code."""
    out = cv2.convertScaleAbs(image, alpha=1.0, beta=_SLACK - 0.5)
    return out.reshape(image.shape)


def _nearest(n_in: int, n_out: int) -> np.ndarray:
    """Index of the input pixel under each output pixel's centre, int64 [n_out]."""
    return np.minimum(((np.arange(n_out) + 0.5) * (n_in / n_out)).astype(np.int64), n_in - 1)


def _taps(n_in: int, n_out: int, start: int, count: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Which inputs make outputs start..start+count-1, and how much of each.

    Returns:
      indices int64 [taps, count] (clipped to the input) and weights float32 [taps, count], which sum
      to 1 over the taps.
    """
    scale = n_in / n_out
    out = np.arange(start, start + count)
    if kind == "nearest":
        return _nearest(n_in, n_out)[out][None, :], np.ones((1, count), np.float32)
    if kind == "bilinear":
        centre = (out + 0.5) * scale - 0.5
        low = np.floor(centre).astype(np.int64)
        indices = np.stack([low, low + 1])
        weights = np.stack([1 - (centre - low), centre - low])
    elif kind == "area":
        first = np.floor(out * scale).astype(np.int64)
        taps = int(np.ceil(scale)) + 1
        indices = first[None, :] + np.arange(taps)[:, None]
        covered = np.minimum(indices + 1, ((out + 1) * scale)[None, :]) - np.maximum(
            indices, (out * scale)[None, :]
        )
        weights = np.maximum(covered, 0)
    else:
        width = max(scale, 1.0)
        centre = (out + 0.5) * scale - 0.5
        first = np.ceil(centre - width).astype(np.int64)
        taps = int(np.floor(2 * width)) + 1
        indices = first[None, :] + np.arange(taps)[:, None]
        weights = np.maximum(1 - np.abs(indices - centre[None, :]) / width, 0)
    if kind != "bilinear":
        weights = weights * ((indices >= 0) & (indices < n_in))
        weights = weights / weights.sum(axis=0, keepdims=True)
    return np.clip(indices, 0, n_in - 1), weights.astype(np.float32)
