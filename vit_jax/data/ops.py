"""The steps a preprocessing string may name: one small class each, its fields are the arguments.

A step maps uint8 [H, W, C] to uint8 [h, w, C]: `step(image)`, or `step(image, rng)` if it is random.
`size_after((H, W) | None)` follows a known image size through the step.
"""

from dataclasses import dataclass
from typing import ClassVar

import cv2
import numpy as np

from vit_jax.data import crop, resize
from vit_jax.data.decode import BadImage
from vit_jax.errors import UsageError, known_names

Size = tuple[int, int]
# Far above any training size; catches a thin image whose short side is enlarged.
_MAX_PIXELS = 2**27


def as_size(value: object, what: str) -> Size:
    """An argument `224` or `(h, w)` as (height, width). UsageError otherwise."""
    pair = (value, value) if not isinstance(value, tuple) else value
    if len(pair) != 2 or not all(type(n) is int and n > 0 for n in pair):
        raise UsageError(f"{what} is {value!r}, not a size", "give pixels, such as 224 or (256,128)")
    return pair


def _check_method(method: object, op: str) -> None:
    if method not in resize.METHODS:
        raise UsageError(f"{op}: unknown method {method!r}", known_names(str(method), resize.METHODS))


def _check_antialias(antialias: object, op: str) -> None:
    if not isinstance(antialias, bool):
        raise UsageError(f"{op}: antialias is {antialias!r}", "give true or false")


class Op:
    """A step that isn't random and keeps the size, unless a subclass says otherwise."""

    random: ClassVar[bool] = False

    def size_after(self, size: Size | None) -> Size | None:
        return size


@dataclass(frozen=True)
class Resize(Op):
    """Squashes to `size`, whatever the aspect ratio."""

    size: int | Size
    method: str = "bilinear"
    antialias: bool = False

    def __post_init__(self) -> None:
        as_size(self.size, "resize: size")
        _check_method(self.method, "resize")
        _check_antialias(self.antialias, "resize")

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return resize.resize(image, as_size(self.size, "size"), self.method, self.antialias)

    def size_after(self, _size: Size | None) -> Size | None:
        return as_size(self.size, "size")


@dataclass(frozen=True)
class ResizeSmall(Op):
    """Brings the shorter side to `smaller_size`, keeping the aspect ratio."""

    smaller_size: int
    method: str = "area"
    antialias: bool = False

    def __post_init__(self) -> None:
        as_size(self.smaller_size, "resize_small: smaller_size")
        if isinstance(self.smaller_size, tuple):
            raise UsageError("resize_small: smaller_size is a pair", "give one number of pixels")
        _check_method(self.method, "resize_small")
        _check_antialias(self.antialias, "resize_small")

    def target(self, height: int, width: int) -> Size:
        """Size after the step: sides times smaller_size / short side, rounded."""
        ratio = self.smaller_size / min(height, width)
        return round(height * ratio), round(width * ratio)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        size = self.target(*image.shape[:2])
        if size[0] * size[1] > _MAX_PIXELS:
            raise BadImage("image", f"too thin for resize_small: {image.shape[:2]} would become {size}")
        return resize.resize(image, size, self.method, self.antialias)

    def size_after(self, size: Size | None) -> Size | None:
        return size and self.target(*size)


@dataclass(frozen=True)
class CentralCrop(Op):
    """Cuts `crop_size` from the middle (default: the largest square); smaller images are padded black."""

    crop_size: int | Size | None = None

    def __post_init__(self) -> None:
        if self.crop_size is not None:
            as_size(self.crop_size, "central_crop: crop_size")

    def __call__(self, image: np.ndarray) -> np.ndarray:
        h, w = self.size_after(image.shape[:2])
        image = crop.pad_to(image, h, w)
        y, x = (image.shape[0] - h) // 2, (image.shape[1] - w) // 2
        return image[y : y + h, x : x + w]

    def size_after(self, size: Size | None) -> Size | None:
        if self.crop_size is not None:
            return as_size(self.crop_size, "crop_size")
        return size and (min(size), min(size))


@dataclass(frozen=True)
class ResizeSmallCentralCrop(Op):
    """`resize_small|central_crop` in one step, so that thin images are never enlarged whole."""

    resize_small: ResizeSmall
    central_crop: CentralCrop

    def __call__(self, image: np.ndarray) -> np.ndarray:
        size = self.resize_small.target(*image.shape[:2])
        h, w = self.central_crop.size_after(size)
        if h > size[0] or w > size[1]:
            return self.central_crop(self.resize_small(image))
        window = ((size[0] - h) // 2, (size[1] - w) // 2, h, w)
        method, antialias = self.resize_small.method, self.resize_small.antialias
        return resize.resize(image, size, method, antialias, window)

    def size_after(self, size: Size | None) -> Size | None:
        return self.central_crop.size_after(self.resize_small.size_after(size))


@dataclass(frozen=True)
class RandomCrop(Op):
    """Cuts `crop_size` from anywhere; smaller images are padded black."""

    crop_size: int | Size
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        as_size(self.crop_size, "random_crop: crop_size")

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        h, w = as_size(self.crop_size, "crop_size")
        image = crop.pad_to(image, h, w)
        y, x = crop.uniform_box(rng, image.shape[0], image.shape[1], h, w)
        return image[y : y + h, x : x + w]

    def size_after(self, _size: Size | None) -> Size | None:
        return as_size(self.crop_size, "crop_size")


@dataclass(frozen=True)
class InceptionCrop(Op):
    """A random part of the image (`area_min`..`area_max` percent of its area) squashed to `size`."""

    size: int | Size | None = None
    area_min: float = 5
    area_max: float = 100
    method: str = "bilinear"
    antialias: bool = False
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size is not None:
            as_size(self.size, "inception_crop: size")
        areas = (self.area_min, self.area_max)
        numbers = all(isinstance(a, int | float) and not isinstance(a, bool) for a in areas)
        if not numbers or not 0 < self.area_min <= self.area_max <= 100:
            raise UsageError(
                f"inception_crop: area_min={self.area_min!r}, area_max={self.area_max!r}",
                "give percent, 0 < area_min <= area_max <= 100",
            )
        _check_method(self.method, "inception_crop")
        _check_antialias(self.antialias, "inception_crop")

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        area = (self.area_min / 100, self.area_max / 100)
        y, x, h, w = crop.inception_box(rng, image.shape[0], image.shape[1], area)
        image = image[y : y + h, x : x + w]
        if self.size is None:
            return image
        return resize.resize(image, as_size(self.size, "size"), self.method, self.antialias)

    def size_after(self, _size: Size | None) -> Size | None:
        return None if self.size is None else as_size(self.size, "size")


@dataclass(frozen=True)
class FlipLR(Op):
    """Mirrors left and right with probability 1/2."""

    random: ClassVar[bool] = True

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return cv2.flip(image, 1).reshape(image.shape) if rng.random() < 0.5 else image


@dataclass(frozen=True)
class Pad(Op):
    """Adds `pixels` of black on every side (before `random_crop`, as is usual for small images)."""

    pixels: int

    def __post_init__(self) -> None:
        as_size(self.pixels, "pad: pixels")

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return np.pad(image, ((self.pixels, self.pixels), (self.pixels, self.pixels), (0, 0)))

    def size_after(self, size: Size | None) -> Size | None:
        return size and (size[0] + 2 * self.pixels, size[1] + 2 * self.pixels)


BASIC: dict[str, type[Op]] = {
    "resize": Resize,
    "resize_small": ResizeSmall,
    "central_crop": CentralCrop,
    "random_crop": RandomCrop,
    "inception_crop": InceptionCrop,
    "flip_lr": FlipLR,
    "pad": Pad,
}
