"""Crop rectangles, drawn and fixed."""

import math

import numpy as np

# The aspect ratios (width / height) which TensorFlow's `sample_distorted_bounding_box` draws from by
# default; the published ViTs were trained with them (not with 4/3).
ASPECT_RANGE = (0.75, 1.33)
ATTEMPTS = 100


def inception_box(
    rng: np.random.Generator, height: int, width: int, area_range: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Draws the box of an Inception crop with the distribution of `sample_distorted_bounding_box`.

    The height, not the area, is uniform among those the drawn aspect ratio allows, and the last
    possible offset is never drawn; both are properties of the original.

    Args:
      rng: the only source of randomness.
      height, width: of the image, in pixels.
      area_range: smallest and largest part of the image's area, in 0..1.

    Returns:
      (y, x, h, w) with 1 <= h <= height, 1 <= w <= width. The whole image after 100 failures.
    """
    low, high = area_range[0] * height * width, area_range[1] * height * width
    for _ in range(ATTEMPTS):
        aspect = rng.uniform(*ASPECT_RANGE)
        h = round(math.sqrt(low / aspect))
        tallest = min(round(math.sqrt(high / aspect)), height)
        if round(tallest * aspect) > width:
            tallest = _tallest_that_fits(width, aspect)
        h = h if h >= tallest else int(rng.integers(h, tallest, endpoint=True))
        h = min(h, tallest)
        # Rounding may leave the range by less than a row.
        if h * round(h * aspect) < low:
            h += 1
        elif h * round(h * aspect) > high:
            h -= 1
        w = round(h * aspect)
        if 0 < h <= height and 0 < w <= width and low <= h * w <= high:
            return _offset(rng, height, h), _offset(rng, width, w), h, w
    return 0, 0, height, width


def uniform_box(rng: np.random.Generator, height: int, width: int, h: int, w: int) -> tuple[int, int]:
    """Offsets (y, x) of an h x w crop, uniform over all places."""
    return int(rng.integers(height - h, endpoint=True)), int(rng.integers(width - w, endpoint=True))


def pad_to(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Centres uint8 [H, W, C] on black so that it is at least height x width."""
    down, right = max(0, height - image.shape[0]), max(0, width - image.shape[1])
    if not down and not right:
        return image
    pads = ((down // 2, down - down // 2), (right // 2, right - right // 2), (0, 0))
    return np.pad(image, pads)


def _tallest_that_fits(width: int, aspect: float) -> int:
    """Largest h with round(h * aspect) <= width."""
    h = int((width + 0.5) / aspect)
    while round(h * aspect) > width:
        h -= 1
    return h


def _offset(rng: np.random.Generator, whole: int, part: int) -> int:
    return int(rng.integers(whole - part)) if part < whole else 0
