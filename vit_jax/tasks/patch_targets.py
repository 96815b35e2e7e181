"""What is predicted of a hidden patch: its mean colour, a 4x4 version of it, or all its pixels.

ViT (arXiv 2010.11929), appendix B.1.2. A colour has 3 bits a channel: 8**C classes, 512 for three channels.
Targets are made of the uint8 pixels, in whole numbers, whatever the normalisation.
Shapes: B batch, N patches, P patch, C channels, K outputs of the model for a patch.
"""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

# Levels of a channel: 3 bits.
LEVELS = 8
# Cells a side of the small version of a patch.
CELLS = 4


class Target(Protocol):
    """A kind of target."""

    @property
    def outputs(self) -> int:
        """K."""

    @property
    def answers(self) -> int:
        """Answers for a patch that are right or wrong."""

    def of(self, patches: jax.Array) -> jax.Array:
        """Targets [B, N, ...] of patches uint8 [B, N, P, P, C]."""

    def loss(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Loss of each patch, float32 [B, N], of the model's outputs [B, N, K] float32."""

    def correct(self, outputs: jax.Array, patches: jax.Array) -> jax.Array:
        """How many answers are right for each patch, float32 [B, N]; none where an output is NaN."""


def colour_classes(pixels: jax.Array) -> jax.Array:
    """Class int32 [...] of the mean colour of pixels uint8 [..., P, P, C]; the first channel has the high bits."""
    count = pixels.shape[-3] * pixels.shape[-2]
    sums = jnp.sum(pixels.astype(jnp.int32), axis=(-3, -2))
    return _combine(sums // (256 // LEVELS * count))


def _combine(levels: jax.Array) -> jax.Array:
    """Levels int32 [..., C], each 0 to 7 -> class [...]."""
    channels = levels.shape[-1]
    places = np.reshape(LEVELS ** np.arange(channels - 1, -1, -1), (1,) * (levels.ndim - 1) + (channels,))
    return jnp.sum(levels * jnp.asarray(places, jnp.int32), axis=-1)


@dataclass(frozen=True)
class MeanColour:
    """The 3-bit mean colour of the patch, one of 8**C classes."""

    channels: int

    answers = 1

    @property
    def outputs(self) -> int:
        return LEVELS**self.channels

    def of(self, patches: jax.Array) -> jax.Array:
        return colour_classes(patches)

    def loss(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(outputs, targets)

    def correct(self, outputs: jax.Array, patches: jax.Array) -> jax.Array:
        return _hits(outputs, self.of(patches))


@dataclass(frozen=True)
class SmallPatch:
    """The patch downsized to 4x4 by means, the 3-bit colour of each of its 16 cells."""

    channels: int

    answers = CELLS**2

    @property
    def outputs(self) -> int:
        return self.answers * LEVELS**self.channels

    def of(self, patches: jax.Array) -> jax.Array:
        B, N, P, _, C = patches.shape
        size = P // CELLS
        cells = patches.reshape(B, N, CELLS, size, CELLS, size, C).swapaxes(3, 4)
        return colour_classes(cells.reshape(B, N, self.answers, size, size, C))

    def loss(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        each = optax.softmax_cross_entropy_with_integer_labels(self._by_cell(outputs), targets)
        return jnp.mean(each, axis=-1)

    def correct(self, outputs: jax.Array, patches: jax.Array) -> jax.Array:
        return jnp.sum(_hits(self._by_cell(outputs), self.of(patches)), axis=-1)

    def _by_cell(self, outputs: jax.Array) -> jax.Array:
        return outputs.reshape(*outputs.shape[:-1], self.answers, -1)


@dataclass(frozen=True)
class Pixels:
    """All pixels of the patch, normalised as the model's input is, by their mean squared error.

    What counts as right is the 3-bit colour of the mean of the predicted pixels.
    """

    patch_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    answers = 1

    @property
    def outputs(self) -> int:
        return self.patch_size**2 * self.channels

    def of(self, patches: jax.Array) -> jax.Array:
        mean, std = self._scale(patches.ndim)
        normalised = (patches.astype(jnp.float32) - mean) / std
        return normalised.reshape(*patches.shape[:2], -1)

    def loss(self, outputs: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(outputs - targets), axis=-1)

    def correct(self, outputs: jax.Array, patches: jax.Array) -> jax.Array:
        mean, std = self._scale(3)
        average = outputs.reshape(*outputs.shape[:2], self.patch_size**2, self.channels).mean(axis=2)
        levels = jnp.clip(jnp.floor((average * std + mean) * (LEVELS / 256)), 0, LEVELS - 1)
        right = _combine(levels.astype(jnp.int32)) == colour_classes(patches)
        return (right & ~jnp.any(jnp.isnan(outputs), axis=-1)).astype(jnp.float32)

    def _scale(self, rank: int) -> tuple[jax.Array, jax.Array]:
        shape = (1,) * (rank - 1) + (-1,)
        return tuple(jnp.asarray(values, jnp.float32).reshape(shape) for values in (self.mean, self.std))


def _hits(logits: jax.Array, classes: jax.Array) -> jax.Array:
    """Whether the first largest logit is that of the class, float32 [...]; logits [..., K], classes [...]."""
    known = ~jnp.any(jnp.isnan(logits), axis=-1)
    return ((jnp.argmax(logits, axis=-1) == classes) & known).astype(jnp.float32)
