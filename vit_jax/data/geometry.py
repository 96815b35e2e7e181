"""Moving the pixels of one image about: uint8 [H, W, C] to uint8 of the same shape. Nothing is random here.

Nearest neighbour: an output pixel (x, y) takes the input pixel at affine coordinates, rounded half away from zero;
where there is none it is grey, 128.
"""

import math

import cv2
import numpy as np

FILL = 128
# Coordinates travel as int16; images may be up to so many pixels high and wide, far above what can be held.
_FAR = 32767


def affine(image: np.ndarray, to_x: tuple[float, ...], to_y: tuple[float, ...]) -> np.ndarray:
    """Output (x, y) reads the input at (a x + b y + c) for both rows (a, b, c), computed in float32."""
    height, width = image.shape[:2]
    x = np.arange(width, dtype=np.float32)[None, :]
    y = np.arange(height, dtype=np.float32)[:, None]
    where = np.empty((height, width, 2), np.int16)
    for axis, row in enumerate((to_x, to_y)):
        a, b, c = (np.float32(v) for v in row)
        at = (a * x + b * y) + c
        where[..., axis] = np.clip(np.trunc(at + np.copysign(np.float32(0.5), at)), -_FAR, _FAR)
    fill = (FILL,) * image.shape[2]
    moved = cv2.remap(image, where, None, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=fill)
    return moved.reshape(image.shape)


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    """About the centre."""
    height, width = image.shape[:2]
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    right, bottom = width - 1, height - 1
    x0 = (right - (cos * right - sin * bottom)) / 2
    y0 = (bottom - (sin * right + cos * bottom)) / 2
    return affine(image, (cos, -sin, x0), (sin, cos, y0))


def shear_x(image: np.ndarray, level: float) -> np.ndarray:
    """Row y reads `level` y pixels further right; the top row stays."""
    return affine(image, (1, level, 0), (0, 1, 0))


def shear_y(image: np.ndarray, level: float) -> np.ndarray:
    """Column x reads `level` x pixels further down; the left column stays."""
    return affine(image, (1, 0, 0), (level, 1, 0))


def translate(image: np.ndarray, x: float, y: float) -> np.ndarray:
    """Every pixel reads the one x further right and y further down, in pixels."""
    return affine(image, (1, 0, x), (0, 1, y))


def cutout(image: np.ndarray, half: int, y: int, x: int) -> np.ndarray:
    """Fills rows y - half ... y + half - 1, and columns likewise, with grey."""
    out = image.copy()
    out[max(0, y - half) : y + half, max(0, x - half) : x + half] = FILL
    return out
