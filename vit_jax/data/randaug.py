"""RandAugment (arXiv 1909.13719): a few of sixteen operations, drawn alike, all at one magnitude.

`legacy` is what the published ViTs were trained with (AugReg, big_vision), quirks and all, and the default because
their recipes mean it. `fixed` repairs the quirks; at magnitude m, 0 to 20, on an image of short side s (224: the
size the magnitudes were meant for):

    operation      legacy                                  fixed
    Solarize       threshold int(25.6 m) modulo 256:       256 - int(12.8 m): 256 at 0 (nothing inverted),
                   10 and 20 invert everything, 15 half    128 at 10, 0 at 20
    Posterize      keeps int(0.4 m) bits, at least 1:      keeps 8 - int(0.4 m) bits, at least 1:
                   weaker as m grows, nothing at 20        stronger as m grows
    Color, Contrast, Brightness, Sharpness
                   factor 0.1 + 0.18 m: 1 only at 5,       1 + 0.09 m or max(0.1, 1 - 0.09 m), drawn alike:
                   never below 1 above that                either way, nothing at 0, 1.9 or 0.1 at 10
    Contrast       about the level H W / 256, at most      about the image's mean grey level
                   255: 196 for every 224 x 224 image
    TranslateX, Y  10 m pixels                             10 m s / 224 pixels
    Cutout         half side int(4 m) pixels               half side int(4 m s / 224) pixels

The others are the same in both: Rotate by 3 m degrees, ShearX and ShearY by 0.03 m, SolarizeAdd of int(11 m),
AutoContrast, Equalize, Invert. With `legacy`, magnitude 0 is no identity, nor is it meant to be one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from vit_jax.data import geometry, pixels
from vit_jax.data.ops import Op
from vit_jax.errors import UsageError, known_names

# Magnitudes beyond have no meaning: more than 8 bits, translations by more than the image.
MAX_MAGNITUDE = 20
_MADE_FOR = 224  # pixels, the size that `fixed` scales lengths by


class Draw(NamedTuple):
    """What an operation needs besides its magnitude: a sign, and a place as shares of height and width."""

    sign: int
    y: float
    x: float


Operation = Callable[[np.ndarray, float, Draw], np.ndarray]


def _enhance(m: float, _draw: Draw) -> float:
    return m / 10 * 1.8 + 0.1


def _enhance_either_way(m: float, draw: Draw) -> float:
    return max(0.1, 1 + draw.sign * 0.09 * m)


def _legacy_grey(image: np.ndarray) -> int:
    return int(min(image.shape[0] * image.shape[1] / 256, 255))


def _mean_grey(image: np.ndarray) -> int:
    return round(float(pixels.grey(image).mean()))


def _scale(image: np.ndarray) -> float:
    return min(image.shape[:2]) / _MADE_FOR


def _cutout(image: np.ndarray, half: int, draw: Draw) -> np.ndarray:
    height, width = image.shape[:2]
    return geometry.cutout(image, half, int(draw.y * height), int(draw.x * width))


# Arithmetic in the order of the original: truncation makes it matter for magnitudes that aren't whole.
LEGACY: dict[str, Operation] = {
    "AutoContrast": lambda image, _m, _d: pixels.autocontrast(image),
    "Equalize": lambda image, _m, _d: pixels.equalize(image),
    "Invert": lambda image, _m, _d: pixels.invert(image),
    "Rotate": lambda image, m, d: geometry.rotate(image, d.sign * (m / 10 * 30)),
    "Posterize": lambda image, m, _d: pixels.posterize(image, max(1, int(m / 10 * 4))),
    "Solarize": lambda image, m, _d: pixels.solarize(image, int(m / 10 * 256) % 256),
    "Color": lambda image, m, d: pixels.color(image, _enhance(m, d)),
    "Contrast": lambda image, m, d: pixels.contrast(image, _enhance(m, d), _legacy_grey(image)),
    "Brightness": lambda image, m, d: pixels.brightness(image, _enhance(m, d)),
    "Sharpness": lambda image, m, d: pixels.sharpness(image, _enhance(m, d)),
    "ShearX": lambda image, m, d: geometry.shear_x(image, d.sign * (m / 10 * 0.3)),
    "ShearY": lambda image, m, d: geometry.shear_y(image, d.sign * (m / 10 * 0.3)),
    "TranslateX": lambda image, m, d: geometry.translate(image, d.sign * (m / 10 * 100), 0),
    "TranslateY": lambda image, m, d: geometry.translate(image, 0, d.sign * (m / 10 * 100)),
    "Cutout": lambda image, m, d: _cutout(image, int(m / 10 * 40), d),
    "SolarizeAdd": lambda image, m, _d: pixels.solarize_add(image, int(m / 10 * 110)),
}
FIXED: dict[str, Operation] = {
    **LEGACY,
    "Posterize": lambda image, m, _d: pixels.posterize(image, max(1, 8 - int(m / 10 * 4))),
    "Solarize": lambda image, m, _d: pixels.solarize(image, 256 - int(m / 20 * 256)),
    "Color": lambda image, m, d: pixels.color(image, _enhance_either_way(m, d)),
    "Contrast": lambda image, m, d: pixels.contrast(image, _enhance_either_way(m, d), _mean_grey(image)),
    "Brightness": lambda image, m, d: pixels.brightness(image, _enhance_either_way(m, d)),
    "Sharpness": lambda image, m, d: pixels.sharpness(image, _enhance_either_way(m, d)),
    "TranslateX": lambda image, m, d: geometry.translate(image, d.sign * 10 * m * _scale(image), 0),
    "TranslateY": lambda image, m, d: geometry.translate(image, 0, d.sign * 10 * m * _scale(image)),
    "Cutout": lambda image, m, d: _cutout(image, int(4 * m * _scale(image)), d),
}
MODES = {"legacy": LEGACY, "fixed": FIXED}
NAMES = tuple(LEGACY)


@dataclass(frozen=True)
class RandAug(Op):
    """`layers` operations in turn, each drawn from all sixteen, at `magnitude`; 2 and 10 are AugReg's light2."""

    layers: int = 2
    magnitude: float = 10
    mode: str = "legacy"
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.layers) is not int or self.layers < 0:
            raise UsageError(f"randaug: layers is {self.layers!r}", "give a number of operations, such as 2")
        number = isinstance(self.magnitude, int | float) and not isinstance(self.magnitude, bool)
        if not number or not 0 <= self.magnitude <= MAX_MAGNITUDE:
            raise UsageError(f"randaug: magnitude is {self.magnitude!r}", f"give 0 to {MAX_MAGNITUDE}")
        if self.mode not in MODES:
            raise UsageError(f"randaug: unknown mode {self.mode!r}", known_names(str(self.mode), MODES))

    def draw(self, rng: np.random.Generator) -> list[tuple[str, Draw]]:
        """The operations for one image, with what they need."""
        out = []
        for _ in range(self.layers):
            # As many numbers whatever the operation is, so that both modes draw the same ones.
            name = NAMES[int(rng.integers(len(NAMES)))]
            sign, y, x = rng.random(3)
            out.append((name, Draw(1 if sign < 0.5 else -1, float(y), float(x))))
        return out

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        operations = MODES[self.mode]
        for name, draw in self.draw(rng):
            image = operations[name](image, self.magnitude, draw)
        return image
