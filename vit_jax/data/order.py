"""The order of the data and its randomness, as pure functions of (seed, position).

A position counts training examples since the start of a run: step s of global batch B holds positions
s*B ... s*B + B-1. Position p belongs to epoch p // n, and each epoch visits every example of the source
exactly once, in an order of its own. Nothing is stored, so any step can be entered at once, by any number
of hosts.

The permutation is our own code and its values are pinned by a test: no library upgrade can change the order
of a run in progress.
"""

from math import isqrt

import numpy as np
from numpy.random.bit_generator import ISeedSequence

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # odd, so that multiples of it are distinct modulo 2**64
_MUL_1 = 0xBF58476D1CE4E5B9
_MUL_2 = 0x94D049BB133111EB

# Each round changes one half only; 12 leaves a margin over the 6 after which tests see no structure.
_ROUNDS = 12

_PURPOSE_ORDER = 1
_PURPOSE_AUGMENT = 2
_PURPOSE_SHARE = 3
_PURPOSES = 16  # room for more


def _mix(x: int) -> int:
    """The splitmix64 finaliser: a bijection of 64-bit integers in which each bit moves half the others."""
    x = ((x ^ (x >> 30)) * _MUL_1) & _MASK
    x = ((x ^ (x >> 27)) * _MUL_2) & _MASK
    return x ^ (x >> 31)


def _mix_array(x: np.ndarray) -> np.ndarray:
    """`_mix` of a uint64 array, in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(_MUL_1)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_MUL_2)
    x ^= x >> np.uint64(31)
    return x


def _key(seed: int, purpose: int) -> int:
    return _mix((_mix(seed & _MASK) + purpose * _GOLDEN) & _MASK)


def example_index(seed: int, position: np.ndarray | int, n: int, *, stream: int = 0) -> np.ndarray:
    """Which example of a source of `n` stands at each training position.

    Within an epoch (n positions) this is a keyed permutation of range(n), evaluated pointwise: a Feistel
    network on a grid of about sqrt(n) x sqrt(n) cells, applied again to the few values that fall outside
    range(n) ("cycle walking"). Memory does not depend on n.

    Args:
        seed: any integer; taken modulo 2**64.
        position: int64 array of any shape, >= 0.
        n: number of examples, 1 ... 2**62.
        stream: unrelated orders of one seed.

    Returns:
        int64 array of the shape of `position`, values in [0, n).

    Raises:
        ValueError: for n out of range or a negative position.
    """
    return _shuffled(_key(seed, _PURPOSE_ORDER + _PURPOSES * stream), position, n)


def share_order(seed: int, n: int) -> np.ndarray:
    """int64 [n]: all examples of a source in the order in which random shares take them (see `shares`)."""
    return _shuffled(_key(seed, _PURPOSE_SHARE), np.arange(n), n)


def share_place(seed: int, rank: int, n: int) -> int:
    """`share_order(seed, n)[rank]` for 0 <= rank < n, in a few microseconds and no memory."""
    rows, columns = _grid(n)
    key, value = _mix(_key(seed, _PURPOSE_SHARE)), rank
    while True:
        row, column = divmod(value, columns)
        for i in range(_ROUNDS):
            fixed = column if i % 2 == 0 else row
            noise = _mix(((fixed * _ROUNDS + i + 1) * _GOLDEN + key) & _MASK)
            if i % 2 == 0:
                row = (row + noise % rows) % rows
            else:
                column = (column + noise % columns) % columns
        value = row * columns + column
        if value < n:
            return value


def _shuffled(key: int, position: np.ndarray | int, n: int) -> np.ndarray:
    """`example_index` with a key for the seed and the purpose."""
    if not 1 <= n <= 1 << 62:
        raise ValueError(f"n must be in 1 ... 2**62, got {n}")
    position = np.asarray(position, np.int64)
    if position.size and position.min() < 0:
        raise ValueError(f"positions must be >= 0, got {position.min()}")
    epoch, inside = np.divmod(position.reshape(-1), n)
    rows, columns = _grid(n)
    epoch_key = epoch.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
    _mix_array(epoch_key)
    value = _permute(inside.astype(np.uint64), epoch_key, rows, columns)
    outside = np.flatnonzero(value >= n)
    while outside.size:
        value[outside] = _permute(value[outside], epoch_key[outside], rows, columns)
        outside = outside[value[outside] >= n]
    return value.astype(np.int64).reshape(position.shape)


def _grid(n: int) -> tuple[int, int]:
    """Rows and columns of the smallest near-square grid that holds n.

    Less than 2 sqrt(n) + 1 cells are superfluous, so walking is rare for large n and short for small.
    """
    rows = isqrt(n - 1) + 1
    return rows, -(-n // rows)


def _permute(value: np.ndarray, key: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """A keyed bijection of [0, rows * columns), elementwise on uint64 arrays [m]."""
    row, column = np.divmod(value, np.uint64(columns))
    for i in range(_ROUNDS):
        # (other half, round) -> a counter that occurs once per key.
        fixed = column if i % 2 == 0 else row
        noise = fixed * np.uint64(_ROUNDS) + np.uint64(i + 1)
        noise *= np.uint64(_GOLDEN)
        noise += key
        _mix_array(noise)
        # Both halves are below 2**32 and the noise is 64 bits wide: the modulo's bias is below 2**-32.
        if i % 2 == 0:
            row = (row + noise % np.uint64(rows)) % np.uint64(rows)
        else:
            column = (column + noise % np.uint64(columns)) % np.uint64(columns)
    return row * np.uint64(columns) + column


class _Words(ISeedSequence):
    """Hands a bit generator its ready seed words; numpy's own mixing costs ten times the rest."""

    __slots__ = ("words",)

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: type = np.uint64) -> np.ndarray:
        assert n_words == self.words.size and np.dtype(dtype) == self.words.dtype
        return self.words


def example_rng(seed: int, position: int) -> np.random.Generator:
    """The random numbers for augmenting the example at a training position.

    Depends on nothing but (seed, position): not on hosts, threads, workers or restarts. The stream of bits is
    fixed; how numpy turns bits into, say, a uniform number is numpy's own and stable in practice.

    Args:
        seed: any integer; taken modulo 2**64.
        position: >= 0, below 2**63.
    """
    base = _mix((_key(seed, _PURPOSE_AUGMENT) + position * _GOLDEN) & _MASK)
    words = np.array(
        [base, _mix((base + _GOLDEN) & _MASK), _mix((base + 2 * _GOLDEN) & _MASK)], dtype=np.uint64
    )
    return np.random.Generator(np.random.SFC64(_Words(words)))
