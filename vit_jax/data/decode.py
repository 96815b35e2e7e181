"""Encoded images to uint8 arrays, by one policy for training, evaluation and prediction.

| in the file | in the array |
|---|---|
| gray, gray + alpha, palette | three channels (`channels=1`: one) |
| alpha | dropped, not blended |
| CMYK | converted to RGB |
| 16 bits a channel | divided by 257 and rounded: 0..65535 becomes 0..255 |
| animation | the first frame |
| EXIF orientation | ignored, as TensorFlow does; `exif=True` applies it |
| truncated JPEG | refused (the decoder would fill the rest with gray in silence) |
"""

import io

import cv2
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# The pipeline's threads are the parallelism; OpenCV's own pool would fight with them.
cv2.setNumThreads(0)
# What it can't decode is reported by us, with its name; its own lines would come between, or after our last.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

_JPEG_START = b"\xff\xd8"
_JPEG_SCAN = b"\xff\xda"
_JPEG_END = b"\xff\xd9"


class BadImage(ValueError):
    """An image that can't be used. `name` says which (its path, or where it stands in the data set)."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name = name
        self.why = why

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def decode_image(data: bytes, *, channels: int = 3, exif: bool = False, name: str = "image") -> np.ndarray:
    """Decodes an image file.

    Args:
      data: the bytes of a JPEG, PNG, WebP, GIF, BMP, TIFF or PNM file.
      channels: 3 (RGB) or 1 (gray).
      exif: whether to turn the image as its EXIF orientation says.
      name: what to call the image in an error.

    Returns:
      uint8 [H, W, channels].

    Raises:
      BadImage: empty, truncated or unreadable data.
    """
    if not data:
        raise BadImage(name, "the file is empty")
    if _is_truncated_jpeg(data):
        raise BadImage(name, "the JPEG is truncated")
    flags = (cv2.IMREAD_COLOR_RGB if channels == 3 else cv2.IMREAD_GRAYSCALE) | cv2.IMREAD_ANYDEPTH
    if not exif:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None:
        image = _decode_with_pillow(data, channels, exif, name)
    if image.dtype == np.uint16:
        image = ((image.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if image.dtype != np.uint8:
        raise BadImage(name, f"pixels of type {image.dtype} aren't supported, only 8 or 16 bits")
    return image if image.ndim == 3 else image[:, :, None]


def to_channels(image: np.ndarray, channels: int, name: str = "image") -> np.ndarray:
    """An array image uint8 [H, W] or [H, W, 1|3] as uint8 [H, W, channels].

    Raises:
      BadImage: another shape or type.
    """
    if image.ndim == 2:
        image = image[:, :, None]
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3):
        raise BadImage(
            name, f"an array of {image.dtype} {list(image.shape)} isn't an image uint8 [H, W, 1 or 3]"
        )
    if image.shape[2] == channels:
        return image
    if channels == 3:
        return np.repeat(image, 3, axis=2)
    return cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY)[:, :, None]


def _is_truncated_jpeg(data: bytes) -> bool:
    """Whether a JPEG has no end mark after its last scan (bytes of a scan can't look like one)."""
    if not data.startswith(_JPEG_START) or data.endswith(_JPEG_END):
        return False
    return data.find(_JPEG_END, max(0, data.rfind(_JPEG_SCAN))) < 0


def _decode_with_pillow(data: bytes, channels: int, exif: bool, name: str) -> np.ndarray:
    """Formats and colour models which OpenCV can't read. uint8 [H, W, channels]."""
    try:
        with Image.open(io.BytesIO(data)) as opened:
            image = ImageOps.exif_transpose(opened) if exif else opened
            if image.mode.startswith("I;16"):
                return to_channels(
                    ((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8), channels
                )
            return to_channels(np.asarray(image.convert("RGB" if channels == 3 else "L")), channels)
    except UnidentifiedImageError as e:
        raise BadImage(name, "not an image of a known format") from e
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as e:
        raise BadImage(name, f"can't be decoded: {e}") from e
