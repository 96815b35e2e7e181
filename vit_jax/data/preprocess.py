"""Preprocessing strings in big_vision's dialect: what they say, and the object that does it.

    decode|inception_crop(224)|flip_lr
    decode|resize_small(256)|central_crop(224)|value_range(-1, 1)

Steps run on the host on uint8 images, one by one. The last one may be `value_range` or `normalize`;
it runs on the device, so that batches travel as uint8. Without one the range is [-1, 1].
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vit_jax.data.augment import AUGMENT
from vit_jax.data.decode import BadImage, decode_image, to_channels
from vit_jax.data.dialect import Call, last_step, parse_calls
from vit_jax.data.ops import BASIC, CentralCrop, Op, ResizeSmall, ResizeSmallCentralCrop, Size
from vit_jax.data.randaug import RandAug
from vit_jax.errors import UsageError, known_names

OPS: dict[str, type[Op]] = {**BASIC, "randaug": RandAug, **AUGMENT}


@dataclass(frozen=True)
class Decode:
    """The first step: encoded bytes, or an array image, to uint8 [H, W, channels]."""

    channels: int = 3
    exif: bool = False

    def __post_init__(self) -> None:
        if self.channels not in (1, 3) or isinstance(self.channels, bool):
            raise UsageError(f"decode: channels is {self.channels!r}", "give 1 or 3")
        if not isinstance(self.exif, bool):
            raise UsageError(f"decode: exif is {self.exif!r}", "give true or false")


@dataclass(frozen=True)
class Normalize:
    """(pixel - mean) / std, per channel, in units of 0..255; numbers stand for all channels."""

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def arrays(self, channels: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and std, float32 [channels] each."""
        out = []
        for what, value in (("mean", self.mean), ("std", self.std)):
            array = np.asarray(value, np.float32)
            if array.shape not in ((), (1,), (channels,)):
                raise UsageError(
                    f"normalize: {what} has {array.size} numbers for {channels} channels",
                    f"give one number or {channels}",
                )
            out.append(np.broadcast_to(array, (channels,)).copy())
        return out[0], out[1]


def value_range(vmin: float = -1.0, vmax: float = 1.0) -> Normalize:
    """Maps 0..255 to vmin..vmax."""
    if not _is_number(vmin) or not _is_number(vmax) or not vmin < vmax:
        raise UsageError(
            f"value_range({vmin!r}, {vmax!r}) isn't a range", "give two numbers, the lower first"
        )
    scale = (vmax - vmin) / 255.0
    return Normalize(mean=-vmin / scale, std=1 / scale)


def normalize(
    mean: float | tuple[float, ...] = (0.485, 0.456, 0.406),
    std: float | tuple[float, ...] = (0.229, 0.224, 0.225),
) -> Normalize:
    """(pixel/255 - mean) / std, torchvision's convention; the default is ImageNet's statistics."""
    return Normalize(mean=_times_255(mean, "mean"), std=_times_255(std, "std"))


def vgg_value_range(
    mean: tuple[float, ...] = (0.485 * 255, 0.456 * 255, 0.406 * 255),
    std: tuple[float, ...] = (0.229 * 255, 0.224 * 255, 0.225 * 255),
) -> Normalize:
    """(pixel - mean) / std with both in units of 0..255."""
    return Normalize(mean=_scaled(mean, "mean", 1.0), std=_scaled(std, "std", 1.0))


RANGES: dict[str, Callable[..., Normalize]] = {
    "value_range": value_range,
    "normalize": normalize,
    "vgg_value_range": vgg_value_range,
}


@dataclass(frozen=True)
class Preprocess:
    """A parsed preprocessing string. Immutable and picklable, so that worker processes can hold it."""

    text: str
    decode: Decode | None
    ops: tuple[Op, ...]
    range: Normalize

    @property
    def random(self) -> bool:
        """Whether `host` draws random numbers."""
        return any(op.random for op in self.ops)

    @property
    def channels(self) -> int:
        """Channels of the images that leave `host`."""
        return 3 if self.decode is None else self.decode.channels

    @property
    def output_size(self) -> Size | None:
        """(height, width) of every image that leaves `host`, None if it depends on the image."""
        return self.size_after(None)

    def size_after(self, size: Size | None) -> Size | None:
        """(height, width) after the steps for an input image of `size`."""
        for op in self.ops:
            size = op.size_after(size)
        return size

    @property
    def normalize(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, std), float32 [channels] each, in units of 0..255: the device computes (x - mean) / std."""
        return self.range.arrays(self.channels)

    def host(
        self, image: bytes | np.ndarray, rng: np.random.Generator | None, name: str = "image"
    ) -> np.ndarray:
        """Runs the steps on one image.

        Args:
          image: encoded bytes, or uint8 [H, W, C].
          rng: the only source of randomness; may be None when `random` is False.
          name: what to call the image in an error.

        Returns:
          uint8 [h, w, channels], contiguous.

        Raises:
          BadImage: the image can't be decoded, or not be brought to size.
          UsageError: encoded bytes, but the string has no `decode`.
        """
        if self.decode is not None:
            image = self.load(image, name)
        elif isinstance(image, bytes):
            raise UsageError(
                f"preprocessing {self.text!r} doesn't decode, but {name} is an encoded image",
                "begin the string with 'decode'",
            )
        try:
            for op in self.ops:
                image = op(image, rng) if op.random else op(image)
        except BadImage as e:
            raise BadImage(name, e.why) from e
        return np.ascontiguousarray(image)

    def load(self, image: bytes | np.ndarray, name: str = "image") -> np.ndarray:
        """The `decode` step alone: uint8 [H, W, channels]."""
        decode = self.decode or Decode()
        if isinstance(image, bytes):
            return decode_image(image, channels=decode.channels, exif=decode.exif, name=name)
        return to_channels(image, decode.channels, name)


def with_range_of(own: str, text: str) -> str:
    """The program `text` in place of `own`, whose normalisation it keeps unless it says another.

    Raises:
      UsageError: syntax.
    """
    if any(call.name in RANGES for call in parse_calls(text)):
        return text
    *_, last = parse_calls(own)
    return f"{text}|{last_step(own)}" if last.name in RANGES else text


def ends_in_range(text: str) -> bool:
    """Whether the last step says which values the model sees."""
    return parse_calls(text)[-1].name in RANGES


def parse(text: str) -> Preprocess:
    """Reads a preprocessing string.

    Raises:
      UsageError: syntax, unknown steps or arguments, `decode` not first, a value range not last.
    """
    calls = parse_calls(text)
    decode, last = None, value_range()
    if calls and calls[0].name == "decode":
        decode = _build(calls.pop(0), Decode, text)
    if calls and calls[-1].name in RANGES:
        last = _build(calls[-1], RANGES[calls.pop().name], text)
    ops: list[Op] = []
    for call in calls:
        if call.name == "decode":
            raise UsageError(f"preprocessing {text!r}: 'decode' isn't the first step", "put it first")
        if call.name in RANGES:
            raise UsageError(
                f"preprocessing {text!r}: {call.name!r} isn't the last step",
                "put it last; it runs on the device, on whole batches",
            )
        if call.name not in OPS:
            raise UsageError(
                f"preprocessing {text!r}: unknown step {call.name!r}",
                known_names(call.name, ["decode", *OPS, *RANGES]),
            )
        ops.append(_build(call, OPS[call.name], text))
    preprocess = Preprocess(text, decode, tuple(_fuse(ops)), last)
    _ = preprocess.normalize  # a mean for another number of channels is refused now
    return preprocess


def _build(call: Call, factory: Callable, text: str):  # noqa: ANN202 - whatever the factory makes
    """Calls a step's factory with arguments checked against its signature."""
    signature = inspect.signature(factory)
    try:
        bound = signature.bind(*call.args, **call.kwargs)
    except TypeError as e:
        known = ", ".join(
            p.name if p.default is p.empty else f"{p.name}={_spell(p.default)}"
            for p in signature.parameters.values()
        )
        raise UsageError(
            f"preprocessing {text!r}: step {call.name!r}: {e}", f"its arguments: {known or 'none'}"
        ) from e
    return factory(*bound.args, **bound.kwargs)


def _fuse(ops: list[Op]) -> list[Op]:
    out: list[Op] = []
    for op in ops:
        if isinstance(op, CentralCrop) and out and isinstance(out[-1], ResizeSmall):
            out.append(ResizeSmallCentralCrop(out.pop(), op))
        else:
            out.append(op)
    return out


def _spell(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else repr(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _times_255(value: object, what: str) -> float | tuple[float, ...]:
    return _scaled(value, what, 255.0)


def _scaled(value: object, what: str, scale: float) -> float | tuple[float, ...]:
    numbers = value if isinstance(value, tuple) else (value,)
    if not numbers or not all(_is_number(n) and (what == "mean" or n > 0) for n in numbers):
        raise UsageError(f"normalize: {what} is {value!r}", "give a number or one per channel; std above 0")
    return tuple(float(n) * scale for n in numbers)
