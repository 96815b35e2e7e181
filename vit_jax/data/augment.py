"""Random steps of other recipes than RandAugment's: DeiT III's 3-Augment and its crop, colour jitter, erasing."""

import math
from dataclasses import dataclass
from typing import ClassVar

import cv2
import numpy as np
from PIL import Image

from vit_jax.data import pixels
from vit_jax.data.geometry import FILL
from vit_jax.data.ops import Op, Size, as_size
from vit_jax.errors import UsageError, known_names

_ATTEMPTS = (
    10  # at a rectangle that fits, before an image stays as it is; as in Zhong et al.'s and timm's code
)


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _check_range(value: object, what: str, low: float, high: float) -> None:
    pair = value if isinstance(value, tuple) and len(value) == 2 else ()
    if not pair or not all(_is_number(v, low, high) for v in pair) or not 0 < pair[0] <= pair[1]:
        limit = "" if high == math.inf else f", at most {high:g}"
        raise UsageError(f"{what} is {value!r}", f"give (low, high), above 0{limit}")


@dataclass(frozen=True)
class SimpleRandomCrop(Op):
    """DeiT III's mild crop: the shorter side to `size`, `pixels` of mirrored border all round, any `size` square.

    The resize is Pillow's bicubic, as there; only what the crop shows is computed.
    """

    size: int
    pixels: int = 4
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise UsageError(f"simple_random_crop: size is {self.size!r}", "give one number of pixels")
        if type(self.pixels) is not int or not 0 <= self.pixels <= self.size / 2:
            raise UsageError(
                f"simple_random_crop: pixels is {self.pixels!r}", f"give 0 to {self.size // 2}: half the size"
            )

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        short = min(image.shape[:2])
        whole = [self.size * n // short for n in image.shape[:2]]
        starts = [int(rng.integers(-self.pixels, n - self.size + self.pixels, endpoint=True)) for n in whole]
        y, x = (max(0, start) for start in starts)
        bottom, right = (min(n, start + self.size) for n, start in zip(whole, starts, strict=True))
        part = _bicubic(image, (whole[0], whole[1]), (y, x, bottom, right))
        above, before = y - starts[0], x - starts[1]
        below, after = self.size - (bottom - starts[0]), self.size - (right - starts[1])
        if not (above or before or below or after):
            return part
        mirrored = cv2.copyMakeBorder(part, above, below, before, after, cv2.BORDER_REFLECT_101)
        return mirrored.reshape(self.size, self.size, -1)

    def size_after(self, _size: Size | None) -> Size | None:
        return as_size(self.size, "size")


def _bicubic(image: np.ndarray, size: Size, box: tuple[int, int, int, int]) -> np.ndarray:
    """Rows y0 to y1 and columns x0 to x1, `box` = (y0, x0, y1, x1), of uint8 [H, W, C] resized to `size`."""
    y0, x0, y1, x1 = box
    height, width, channels = image.shape
    down, across = height / size[0], width / size[1]
    whence = (x0 * across, y0 * down, min(x1 * across, width), min(y1 * down, height))
    picture = Image.fromarray(image if channels > 1 else image[..., 0])
    part = picture.resize((x1 - x0, y1 - y0), Image.Resampling.BICUBIC, box=whence)
    return np.asarray(part).reshape(y1 - y0, x1 - x0, channels)


@dataclass(frozen=True)
class ColorJitter(Op):
    """Brightness, contrast and saturation, in random order, each by a factor uniform in [max(0, 1 - x), 1 + x].

    A factor blends black, the image's mean grey level, or its grey levels (0) with the image (1), as Pillow's
    ImageEnhance and torchvision's ColorJitter do.
    """

    brightness: float = 0.3
    contrast: float = 0.3
    saturation: float = 0.3
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            if not _is_number(value := getattr(self, name), 0, math.inf):
                raise UsageError(f"color_jitter: {name} is {value!r}", "give 0 (none) or more, such as 0.3")

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        for which in rng.permutation(3):
            amount = (self.brightness, self.contrast, self.saturation)[which]
            if amount == 0:
                continue
            factor = rng.uniform(max(0.0, 1 - amount), 1 + amount)
            if which == 0:
                image = pixels.brightness(image, factor)
            elif which == 1:
                image = pixels.contrast(image, factor, int(pixels.luma(image).mean() + 0.5))
            else:
                image = pixels.blend(pixels.luma(image), image, factor)
        return image


@dataclass(frozen=True)
class ThreeAugment(Op):
    """DeiT III's 3-Augment (arXiv 2204.07118): grey, solarized or blurred, each in a third; then a jitter.

    Solarize inverts from 128 on; the blur is Gaussian with a sigma uniform in [0.1, 2] pixels, made for 224.
    """

    color_jitter: float = 0.3
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not _is_number(self.color_jitter, 0, math.inf):
            raise UsageError(f"three_augment: color_jitter is {self.color_jitter!r}", "give 0 (none) or more")

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        which = int(rng.integers(3))
        if which == 0:
            image = np.repeat(pixels.luma(image), image.shape[2], axis=2)
        elif which == 1:
            image = pixels.solarize(image, 128)
        else:
            image = pixels.gaussian_blur(image, rng.uniform(0.1, 2.0))
        return ColorJitter(*(self.color_jitter,) * 3)(image, rng)


@dataclass(frozen=True)
class RandomErasing(Op):
    """Overwrites a random rectangle, with `probability` (Zhong et al., arXiv 1708.04896; ranges as timm's).

    Its area is a share of the image uniform in `area`, its height over width log-uniform in `aspect`, its place
    uniform. `constant` writes 128, which is 0 after value_range(-1, 1); `noise` a uniform value in 0..255 for every
    pixel and channel. Ten rectangles that don't fit leave the image as it is.
    """

    probability: float = 0.25
    area: tuple[float, float] = (0.02, 0.33)
    aspect: tuple[float, float] = (0.3, 3.3)
    mode: str = "constant"
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not _is_number(self.probability, 0, 1):
            raise UsageError(f"random_erasing: probability is {self.probability!r}", "give 0 to 1")
        _check_range(self.area, "random_erasing: area", 0, 1)
        _check_range(self.aspect, "random_erasing: aspect", 0, math.inf)
        if self.mode not in ("constant", "noise"):
            known = known_names(str(self.mode), ("constant", "noise"))
            raise UsageError(f"random_erasing: unknown mode {self.mode!r}", known)

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if rng.random() >= self.probability:
            return image
        height, width, channels = image.shape
        for _ in range(_ATTEMPTS):
            area = rng.uniform(*self.area) * height * width
            aspect = math.exp(rng.uniform(*map(math.log, self.aspect)))
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if h < height and w < width:
                y = int(rng.integers(height - h, endpoint=True))
                x = int(rng.integers(width - w, endpoint=True))
                out = image.copy()
                noise = self.mode == "noise"
                out[y : y + h, x : x + w] = (
                    rng.integers(256, size=(h, w, channels), dtype=np.uint8) if noise else FILL
                )
                return out
        return image


AUGMENT: dict[str, type[Op]] = {
    "simple_random_crop": SimpleRandomCrop,
    "color_jitter": ColorJitter,
    "three_augment": ThreeAugment,
    "random_erasing": RandomErasing,
}
