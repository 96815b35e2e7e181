"""Orders: what stands where is exact, pure and cheap; shares of a mixture are counts, copies stand apart."""

import time
from fractions import Fraction

import numpy as np
import pytest

from vit_jax.data.draws import BLOCK, Mixed, Repeated, Shuffled, check_repeats, shares_of
from vit_jax.data.order import example_index
from vit_jax.errors import UsageError


def mixed(weights, sizes):
    return Mixed(tuple(sizes), shares_of(weights))


MIXTURES = [
    mixed((0.7, 0.3), (50, 7)),
    mixed((1, 1, 1), (5, 600, 30)),
    mixed((1e-3, 5, 2.5, 0.01), (3, 1000, 20, 11)),
    mixed((14_197_122, 1_281_167), (300_000_000, 1_281_167)),
    mixed((3,), (17,)),
]


@pytest.mark.parametrize("order", MIXTURES)
def test_shares_are_counts(order):
    n = 40 * BLOCK
    source, _ = order.turns(0, np.arange(n))
    counts = np.cumsum(source == np.arange(len(order.sizes))[:, None], axis=1)
    for i, share in enumerate(order.shares):
        exact = float(share) * np.arange(1, n + 1)
        off = np.abs(counts[i] - exact)
        assert off[BLOCK - 1 :: BLOCK].max() <= len(order.sizes) / 2
        assert off.max() < 50  # a block is shuffled: a few times sqrt(BLOCK) / 4


@pytest.mark.parametrize("order", MIXTURES)
def test_each_source_goes_through_its_own_epochs_in_order(order):
    position = np.arange(30 * BLOCK)
    source, draw = order.turns(7, position)
    index = order.indices(7, position)
    starts = np.cumsum((0, *order.sizes))
    for i, size in enumerate(order.sizes):
        mine = source == i
        np.testing.assert_array_equal(draw[mine], np.arange(mine.sum()))
        own = index[mine] - starts[i]
        np.testing.assert_array_equal(own, example_index(7, np.arange(mine.sum()), size, stream=i + 1))
        for epoch in range(min(3, len(own) // size)):
            np.testing.assert_array_equal(np.sort(own[epoch * size : (epoch + 1) * size]), np.arange(size))


@pytest.mark.parametrize("order", [*MIXTURES, Repeated(MIXTURES[1], 4, 32), Repeated(Shuffled(10), 2, 6)])
def test_any_positions_in_any_shape_at_once(order):
    """Hosts ask for their rows of a step, a resumed run for its step alone."""
    whole = order.indices(3, np.arange(2000))
    rng = np.random.default_rng(0)
    some = rng.permutation(2000)[:300].reshape(3, 100)
    np.testing.assert_array_equal(order.indices(3, some), whole[some])
    for position in (0, 255, 256, 1999):
        assert order.indices(3, np.asarray(position)) == whole[position]


def test_turns_are_shuffled_and_differ_by_seed_and_block():
    order = mixed((1, 1), (10, 10))
    a, b = (order.turns(seed, np.arange(20 * BLOCK))[0] for seed in (0, 1))
    # Random turns have the same source as their neighbour half of the time.
    assert 0.45 < np.mean(a[1:] == a[:-1]) < 0.55
    assert 0.45 < np.mean(a == b) < 0.55
    assert 0.4 < np.mean(a[:BLOCK] == a[BLOCK : 2 * BLOCK]) < 0.6


def test_equal_sources_are_in_different_orders():
    source = mixed((1, 1), (1000, 1000)).indices(0, np.arange(1000))
    first, second = source[source < 1000][:400], source[source >= 1000][:400] - 1000
    assert np.sum(first == second) < 10


def test_far_positions_are_exact_and_as_cheap():
    order = mixed((0.9, 0.1), (300_000_000, 14_000_000))
    far = 10**12
    counts = order.counts(np.array([far, far + 1]))
    assert counts[:, 0].tolist() == [9 * 10**11, 10**11]
    began = time.perf_counter()
    index = order.indices(0, far + np.arange(4096))
    assert time.perf_counter() - began < 0.5  # measured 3 ms
    assert index.min() >= 0 and index.max() < 314_000_000


def test_pinned_values():
    # Whatever changes these changes the data of every run in progress.
    assert MIXTURES[0].indices(0, np.arange(8)).tolist() == [23, 50, 4, 0, 33, 30, 27, 55]
    assert Repeated(Shuffled(1437), 3, 12).indices(0, np.arange(16)).tolist() == [
        298,
        391,
        521,
        264,
        298,
        391,
        521,
        264,
        298,
        391,
        521,
        264,
        1246,
        813,
        1295,
        1276,
    ]


@pytest.mark.parametrize(("repeats", "batch"), [(3, 12), (4, 32), (12, 12)])
def test_each_image_is_so_many_times_in_every_batch(repeats, batch):
    order = Repeated(Shuffled(103), repeats, batch)
    distinct = batch // repeats
    seen = []
    for step in range(5):
        rows = order.indices(2, step * batch + np.arange(batch))
        np.testing.assert_array_equal(rows.reshape(repeats, distinct), np.tile(rows[:distinct], (repeats, 1)))
        seen += rows[:distinct].tolist()
    # The draws are those of a run without repeats.
    assert seen == example_index(2, np.arange(5 * distinct), 103).tolist()


def test_neighbours_are_different_images():
    rows = Repeated(Shuffled(103), 2, 8).indices(0, np.arange(8))
    assert np.all(rows != np.roll(rows, 1))


def test_shares():
    assert shares_of((0.7, 0.3)) == (Fraction(7, 10), Fraction(3, 10))
    assert shares_of((2, 6)) == (Fraction(1, 4), Fraction(3, 4))
    for weights in ((1, 0), (1, -0.5), (1, float("nan")), (1, float("inf")), (1, True), (1, "2")):
        with pytest.raises(UsageError, match=r"data\.mixture has the weight"):
            shares_of(weights)
    with pytest.raises(UsageError, match="less than a millionth"):
        shares_of((1, 1e-7))


def test_a_batch_that_is_not_divisible_is_refused():
    check_repeats(12, 3)
    with pytest.raises(UsageError, match=r"global_batch 128 is not divisible by data\.repeats 3"):
        check_repeats(128, 3)
