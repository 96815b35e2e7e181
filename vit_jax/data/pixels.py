"""Operations on the values of one image: uint8 [H, W, C] to uint8 of the same shape. Nothing is random here.

Whatever depends on a pixel's own value alone is a table of 256 entries, so its cost is that of a look-up.
"""

import cv2
import numpy as np

# Of red, green and blue in a grey level, as TensorFlow has them; OpenCV's and Pillow's differ in the third digit.
_LUMA = np.array([0.2989, 0.587, 0.114], np.float32)
_VALUES = np.arange(256)


def look_up(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    """table[value] for every value; table uint8 [256], or [256, C] with one column for each channel."""
    table = table if table.ndim == 1 else np.ascontiguousarray(table[None])
    return cv2.LUT(image, table).reshape(image.shape)


def blend(base: np.ndarray, image: np.ndarray, factor: float) -> np.ndarray:
    """base + factor (image - base), clipped to 0..255, then truncated: above 1 it leads away from `base`.

    Args:
      base, image: arrays whose shapes broadcast, values 0..255.
      factor: 0 gives base, 1 image.

    Returns:
      uint8.
    """
    base = base.astype(np.float32)
    mixed = image.astype(np.float32)
    mixed -= base
    mixed *= np.float32(factor)
    mixed += base
    return np.clip(mixed, 0, 255, out=mixed).astype(np.uint8)


def _histogram(image: np.ndarray, channel: int) -> np.ndarray:
    """How often each value occurs in a channel, int64 [256]."""
    return cv2.calcHist([image], [channel], None, [256], [0, 256]).reshape(256).astype(np.int64)


def invert(image: np.ndarray) -> np.ndarray:
    """255 - value."""
    return cv2.bitwise_not(image).reshape(image.shape)


def solarize(image: np.ndarray, threshold: int) -> np.ndarray:
    """Inverts values of at least `threshold`, 0 (all) to 256 (none)."""
    return look_up(image, np.where(threshold > _VALUES, _VALUES, 255 - _VALUES).astype(np.uint8))


def solarize_add(image: np.ndarray, addition: int) -> np.ndarray:
    """Adds to values below 128, up to 255."""
    brighter = np.clip(_VALUES + addition, 0, 255)
    return look_up(image, np.where(_VALUES < 128, brighter, _VALUES).astype(np.uint8))


def posterize(image: np.ndarray, bits: int) -> np.ndarray:
    """Keeps the highest `bits` of every value, 1 to 8."""
    return look_up(image, (_VALUES >> (8 - bits) << (8 - bits)).astype(np.uint8))


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends black (0) with the image (1)."""
    return look_up(image, blend(np.zeros(256), _VALUES, factor))


def contrast(image: np.ndarray, factor: float, grey: int) -> np.ndarray:
    """Blends the even level `grey`, 0..255, with the image."""
    return look_up(image, blend(np.full(256, grey), _VALUES, factor))


def grey(image: np.ndarray) -> np.ndarray:
    """Grey levels uint8 [H, W, 1], truncated as TensorFlow does; of one channel, that channel."""
    if image.shape[2] == 1:
        return image
    # Its way through [0, 1] and back ends in a factor of 255.5 / 255.
    levels = image.astype(np.float32) @ (_LUMA * np.float32(255.5 / 255))
    return levels.astype(np.uint8)[..., None]


def luma(image: np.ndarray) -> np.ndarray:
    """Grey levels uint8 [H, W, 1], rounded: OpenCV's, and Pillow's to a level; `grey` has TensorFlow's."""
    if image.shape[2] == 1:
        return image
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None]


def color(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends the grey levels (0) with the image (1)."""
    return blend(grey(image), image, factor)


def sharpness(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends a smoothed image (0) with the image (1); the outermost pixels stay.

    Smooth: the 3x3 neighbours and four more times the pixel itself, over 13, truncated.
    """
    out = image.copy()
    if min(image.shape[:2]) < 3:
        return out
    total = cv2.boxFilter(image, cv2.CV_16U, (3, 3), normalize=False).reshape(image.shape)[1:-1, 1:-1]
    inner = image[1:-1, 1:-1]
    out[1:-1, 1:-1] = blend((total + 4 * inner.astype(np.uint16)) // 13, inner, factor)
    return out


def gaussian_blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Gaussian filter of `sigma` pixels; beyond the edge, the edge's pixels go on."""
    return cv2.GaussianBlur(image, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE).reshape(image.shape)


def autocontrast(image: np.ndarray) -> np.ndarray:
    """Spreads every channel linearly over 0..255; a channel of one value stays."""
    tables = np.empty((256, image.shape[2]), np.uint8)
    for channel in range(image.shape[2]):
        used = np.flatnonzero(_histogram(image, channel))
        low, high = np.float32(used[0]), np.float32(used[-1])
        spread = _VALUES.astype(np.float32)
        if high > low:
            scale = np.float32(255) / (high - low)
            spread = spread * scale - low * scale
        tables[:, channel] = np.clip(spread, 0, 255)
    return look_up(image, tables)


def equalize(image: np.ndarray) -> np.ndarray:
    """Flattens the histogram of every channel, in the integer arithmetic of Pillow and TensorFlow's models."""
    tables = np.empty((256, image.shape[2]), np.uint8)
    for channel in range(image.shape[2]):
        counts = _histogram(image, channel)
        step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
        if step == 0:  # hardly more than one value
            tables[:, channel] = _VALUES
            continue
        below = np.concatenate([[0], np.cumsum(counts)[:-1] + step // 2]) // step
        tables[:, channel] = np.minimum(below, 255)
    return look_up(image, tables)
