"""Which example stands at each training position: shuffled epochs, several sets mixed, images repeated in a batch.

An order is a pure function of (seed, position), as `data.order` explains, and takes no memory per example. It says
how positions are drawn; what an epoch is for durations stays the number of examples, whatever the order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np

from vit_jax.data.order import example_index
from vit_jax.errors import UsageError

# Positions of a mixture within which the sources' turns are shuffled.
BLOCK = 256
# Shares are kept as fractions of at most this denominator; products of two stay below 2**62.
_DENOMINATOR = 2**30


class Order(Protocol):
    """Where the examples of a run stand."""

    def indices(self, seed: int, position: np.ndarray) -> np.ndarray:
        """int64, of position's shape: the example at each training position >= 0."""


@dataclass(frozen=True)
class Shuffled:
    """Epoch after epoch of n examples, each in an order of its own."""

    n: int

    def indices(self, seed: int, position: np.ndarray) -> np.ndarray:
        """See `Order`."""
        return example_index(seed, position, self.n)


@dataclass(frozen=True)
class Repeated:
    """Repeated augmentation (Hoffer et al., arXiv 1901.09335; DeiT): each image `repeats` times in a global batch.

    Row r of a batch of B holds the draw r % (B / repeats) of the step: copies stand B / repeats rows apart, so
    that neighbours, which mixup blends, are different images, and the copies lie on different devices where the
    batch has as many shards. Augmentation goes by row, so every copy has its own.
    """

    order: Order
    repeats: int
    global_batch: int

    def indices(self, seed: int, position: np.ndarray) -> np.ndarray:
        """See `Order`."""
        step, row = np.divmod(np.asarray(position, np.int64), self.global_batch)
        distinct = self.global_batch // self.repeats
        return self.order.indices(seed, step * distinct + row % distinct)


def check_repeats(global_batch: int, repeats: int) -> None:
    """Raises UsageError unless a batch holds every image equally often."""
    if global_batch % repeats:
        raise UsageError(
            f"global_batch {global_batch} is not divisible by data.repeats {repeats}",
            f"set global_batch to a multiple of {repeats}",
        )


@dataclass(frozen=True)
class Mixed:
    """Several sources, numbered end to end, each with a fixed share of the positions.

    Of the first p positions source i has p times its share, to within half the number of sources wherever p is a
    multiple of BLOCK: counts, not chances. Inside a block the turns are shuffled. Each source goes through epochs
    of its own: its draw number k is example k of the order of a run on that source alone (but for the seed).

    Attributes:
      sizes: examples of each source.
      shares: of the positions; they add up to 1 (`shares_of`).
    """

    sizes: tuple[int, ...]
    shares: tuple[Fraction, ...]

    @cached_property
    def _splits(self) -> tuple[Fraction, ...]:
        """Of each source but the last, its part of what the sources before it leave."""
        rest, splits = Fraction(1), []
        for share in self.shares[:-1]:
            splits.append((share / rest).limit_denominator(_DENOMINATOR))
            rest -= share
        return tuple(splits)

    def counts(self, position: np.ndarray) -> np.ndarray:
        """int64 [sources, ...]: how many of the first `position` turns, before they are shuffled, each source has.

        Taking one source after the other off the rest keeps every count growing by steps of 0 or 1.
        """
        rest, counts = np.asarray(position, np.int64), []
        for split in self._splits:
            p, q = split.numerator, split.denominator
            whole, inside = np.divmod(rest, q)
            count = whole * p + (2 * inside * p + q) // (2 * q)  # rest * p / q, rounded
            counts.append(count)
            rest = rest - count
        return np.stack([*counts, rest])

    def turns(self, seed: int, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Two int64 arrays of position's shape: whose turn it is, and how many turns that source had before."""
        position = np.asarray(position, np.int64)
        blocks, number = np.unique(position // BLOCK, return_inverse=True)
        first = blocks[:, None] * BLOCK
        counts = self.counts(first + np.arange(BLOCK + 1))
        turn = np.argmax(np.diff(counts), axis=0)  # [blocks, BLOCK]
        shuffled = np.take_along_axis(turn, example_index(seed, first + np.arange(BLOCK), BLOCK), axis=1)
        own = shuffled == np.arange(len(self.sizes))[:, None, None]
        before = np.cumsum(own, axis=2) - own + counts[:, :, :1]
        place = number.reshape(position.shape), position % BLOCK
        source = shuffled[place]
        return source, before[source, *place]

    def indices(self, seed: int, position: np.ndarray) -> np.ndarray:
        """See `Order`."""
        source, draw = self.turns(seed, position)
        starts = np.cumsum((0, *self.sizes[:-1]))
        index = np.empty(source.shape, np.int64)
        for i, size in enumerate(self.sizes):
            mine = source == i
            index[mine] = starts[i] + example_index(seed, draw[mine], size, stream=i + 1)
        return index


def shares_of(weights: Sequence[int | float]) -> tuple[Fraction, ...]:
    """Weights as shares that add up to 1; decimals are taken as written.

    Raises:
      UsageError: one isn't positive, or too small beside the others to be counted.
    """
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise UsageError(
                f"data.mixture has the weight {weight!r}", "give a number above 0 for each source"
            )
    exact = [Fraction(str(weight)) for weight in weights]
    shares = tuple(weight / sum(exact) for weight in exact)
    if min(shares) < Fraction(1, 10**6):
        raise UsageError(
            f"data.mixture has the weight {min(weights)}, less than a millionth of all",
            "leave the source out",
        )
    return shares
