"""The order of the data: a bijection per epoch, pinned values, no visible structure, cheap at any size."""

import math
import time

import numpy as np
import pytest

from vit_jax.data.order import example_index, example_rng

JFT = 300_000_000


@pytest.mark.parametrize("n", [1, 2, 3, 10, 103, 1437, 4096, 1_000_000])
@pytest.mark.parametrize("epoch", [0, 1, 1000])
def test_each_epoch_visits_each_example_once(n, epoch):
    ids = example_index(5, epoch * n + np.arange(n), n)
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(np.sort(ids), np.arange(n))


def test_pinned_values():
    # Literal values: whatever changes these changes the data of every run in progress.
    first = {
        1: [0, 0, 0, 0],
        2: [0, 1, 0, 1],
        3: [1, 0, 2, 1],
        10: [6, 9, 8, 3, 0, 7, 2, 5, 4, 1, 2, 4],
        103: [77, 16, 17, 29, 96, 64, 60, 13],
        1437: [298, 391, 521, 264, 1246, 813, 1295, 1276],
        4096: [1721, 1794, 1503, 1045, 4038, 1031, 2642, 1397],
        1_000_000: [7784, 486816, 363575, 165364, 537479, 112633],
    }
    for n, ids in first.items():
        assert example_index(0, np.arange(len(ids)), n).tolist() == ids
    far = example_index(0, 3 * JFT + np.arange(6), JFT)
    assert far.tolist() == [270634052, 111685771, 218290583, 139863504, 237748572, 258081084]
    assert example_index(0, np.array([0, 2**62 - 1]), 2**62).tolist() == [
        994310491447856050,
        1043811872836877002,
    ]
    bits = example_rng(0, 12345).bit_generator.random_raw(3)
    assert bits.tolist() == [8981050291455924841, 6631582285127338843, 4178265788717234834]


def test_pointwise_equals_vectorised_and_keeps_the_shape():
    position = np.arange(24).reshape(2, 3, 4) * 977
    ids = example_index(3, position, 1437)
    assert ids.shape == position.shape
    assert [int(example_index(3, int(p), 1437)) for p in position.reshape(-1)] == ids.reshape(-1).tolist()


def test_epochs_and_seeds_differ():
    n = 1437
    position = np.arange(n)
    orders = [example_index(seed, epoch * n + position, n) for seed in (0, 1, 2**40) for epoch in (0, 1, 2)]
    for i, a in enumerate(orders):
        for b in orders[:i]:
            # Two random permutations agree in 1 place on average (Poisson).
            assert np.sum(a == b) <= 8
    assert example_index(-1, 7, n) == example_index(2**64 - 1, 7, n)


def z_score(counts: np.ndarray, expected: float, freedom: int) -> float:
    chi_square = np.sum((counts - expected) ** 2 / expected)
    return float((chi_square - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("n", [2, 3, 10, 16, 103])
def test_every_place_is_as_likely_for_every_example(n):
    epochs = 5000
    ids = example_index(1, np.arange(n * epochs), n).reshape(epochs, n)
    counts = np.stack([np.bincount(ids[:, place], minlength=n) for place in range(n)])
    assert abs(z_score(counts, epochs / n, (n - 1) ** 2)) < 4


@pytest.mark.parametrize("n", [3, 4, 5])
def test_every_permutation_is_as_likely(n):
    epochs = 20_000
    ids = example_index(2, np.arange(n * epochs), n).reshape(epochs, n)
    _, counts = np.unique(ids, axis=0, return_counts=True)
    assert counts.size == math.factorial(n)
    assert abs(z_score(counts, epochs / counts.size, counts.size - 1)) < 4


@pytest.mark.parametrize("n", [1437, 1_000_000, JFT])
def test_neighbours_are_unrelated(n):
    ids = example_index(0, np.arange(200_000) % n + 4 * n, n)
    if n < ids.size:
        ids = ids[:n]
    step_bins = np.bincount(np.diff(ids) % n * 16 // n, minlength=16)
    # Bins of a small n are uneven by less than one part in n / 16.
    assert z_score(step_bins, (ids.size - 1) / 16, 15) < 5
    # Sources are sorted by class, so neighbours in the source must not stay together.
    adjacent = np.sum(np.abs(np.diff(ids)) == 1)
    assert adjacent <= 2 * ids.size / n + 6 * math.sqrt(2 * ids.size / n) + 3


def test_low_bits_of_neighbours_are_unrelated():
    ids = example_index(0, np.arange(200_000), JFT)
    pairs = (ids[:-1] & 7) * 8 + (ids[1:] & 7)
    assert abs(z_score(np.bincount(pairs, minlength=64), pairs.size / 64, 63)) < 5


def test_a_large_source_costs_no_more_than_a_small_one():
    position = np.arange(4096) + 7 * JFT
    start = time.perf_counter()
    example_index(0, position, JFT)
    assert time.perf_counter() - start < 0.5  # measured 2-4 ms; a table of 300 M entries takes seconds


def test_positions_and_sizes_out_of_range_are_refused():
    with pytest.raises(ValueError, match="positions must be >= 0"):
        example_index(0, np.array([3, -1]), 10)
    with pytest.raises(ValueError, match="n must be in"):
        example_index(0, 0, 0)


def test_example_rng_depends_on_seed_and_position_alone():
    def draw(seed, position):
        return example_rng(seed, position).random(4).tolist()

    assert draw(0, 17) == draw(0, 17)
    drawn = [draw(seed, position) for seed in (0, 1) for position in (0, 1, 2, 2**40)]
    assert len({tuple(d) for d in drawn}) == len(drawn)


def test_example_rng_streams_are_unrelated():
    draws = np.array([example_rng(3, p).random(2) for p in range(20_000)])
    for column in draws.T:
        assert abs(z_score(np.bincount((column * 64).astype(int), minlength=64), 20_000 / 64, 63)) < 4
    pairs = [draws[:-1, 0], draws[1:, 0]], [draws[:, 0], draws[:, 1]]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(a.size)


def test_example_rng_is_cheap():
    start = time.perf_counter()
    for position in range(1000):
        example_rng(0, position)
    assert (time.perf_counter() - start) / 1000 < 100e-6  # measured 9 us; numpy's own seeding takes 30
