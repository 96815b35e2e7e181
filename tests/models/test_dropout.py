"""The masks of dropout: the right share, independent along every axis and of every key, the same on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from scipy import stats

from vit_jax.models.dropout import Dropout, drop, keep_mask


def masks(rate, shape, seed=0):
    return np.asarray(keep_mask(jax.random.key(seed), rate, shape))


def assert_share(kept, rate):
    """Within 5 standard deviations of a binomial."""
    n = kept.size
    assert abs(kept.sum() - n * (1 - rate)) < 5 * np.sqrt(n * rate * (1 - rate)) + 1e-9


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_share(rate):
    kept = masks(rate, (64, 50, 96))
    assert_share(kept, rate)
    for axis in range(3):  # no line along any axis is special
        along = kept.mean(axis=tuple(i for i in range(3) if i != axis))
        deviation = np.sqrt(rate * (1 - rate) / (kept.size / len(along)))
        assert (abs(along - (1 - rate)) <= 5.5 * deviation + 1e-9).all()


def test_expected_value_and_scale():
    x = jnp.ones((256, 100, 32))
    y = np.asarray(drop(x, 0.25, jax.random.key(3)))
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)}
    assert y.mean() == pytest.approx(1, abs=0.005)
    assert drop(x.astype(jnp.bfloat16), 0.25, jax.random.key(3)).dtype == jnp.bfloat16


NEIGHBOURS = [
    (shape, axis, lag)
    for shape in [(4096, 3), (2, 300, 40), (70, 3, 50, 60)]
    for axis in range(len(shape))
    for lag in (1, 2, 16)
    if shape[axis] > 2 * lag
]


@pytest.mark.parametrize(("shape", "axis", "lag"), NEIGHBOURS)
def test_neighbours_are_independent(shape, axis, lag):
    kept = masks(0.5, shape).astype(float) * 2 - 1
    near, far = np.moveaxis(kept, axis, 0)[:-lag], np.moveaxis(kept, axis, 0)[lag:]
    assert abs((near * far).mean()) < 5 / np.sqrt(near.size)


def test_masks_of_different_keys_are_independent():
    """Keys as a step makes them: one seed folded with consecutive numbers, and consecutive raw words."""
    folded = [jax.random.fold_in(jax.random.key(0), i) for i in range(24)]
    raw = [jax.random.wrap_key_data(jnp.array(words, jnp.uint32)) for words in
           [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (2**31, 0), (0, 2**31)]]  # fmt: skip
    all_masks = np.stack([np.asarray(keep_mask(k, 0.5, (8, 4096))).ravel() for k in folded + raw]) * 2.0 - 1
    products = all_masks @ all_masks.T / all_masks.shape[1]
    np.fill_diagonal(products, 0)
    assert abs(products).max() < 5.5 / np.sqrt(all_masks.shape[1])


def test_the_words_of_a_mask_are_uniform():
    """Chi-square over the 256 patterns of eight neighbours, along each axis."""
    kept = masks(0.5, (512, 16, 256))
    for axis in (0, 2):
        bits = np.moveaxis(kept, axis, -1).reshape(-1, 8)
        counts = np.bincount(bits @ (1 << np.arange(8)), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_no_two_examples_share_a_mask():
    kept = np.packbits(masks(0.5, (4096, 64)), axis=1)
    assert len({row.tobytes() for row in kept}) == 4096


def test_examples_larger_than_32_bits_of_elements_are_traced():
    shape = (4096, 16, 1370, 1370)  # L/14 at 518 px, attention weights: 1.2e11 elements in all
    assert jax.eval_shape(lambda: keep_mask(jax.random.key(0), 0.1, shape)).shape == shape


def test_the_same_mask_on_any_mesh():
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = np.random.default_rng(0).normal(size=(16, 6, 8)).astype(np.float32)
    key = jax.random.key(5)
    expected = np.asarray(drop(jnp.asarray(x), 0.3, key))
    for spec in (("a",), ("b", None, "a"), (("a", "b"),)):
        placed = NamedSharding(mesh, PartitionSpec(*spec))
        got = jax.jit(lambda x: drop(x, 0.3, key), out_shardings=placed)(jax.device_put(x, placed))
        assert np.array_equal(got, expected)


def test_the_module_drops_in_training_alone_and_asks_for_no_key_in_vain():
    x = jnp.ones((4, 8))
    assert np.array_equal(Dropout(0.5, deterministic=True).apply({}, x), x)
    assert np.array_equal(Dropout(0.0, deterministic=False).apply({}, x), x)
    dropped = Dropout(0.5, deterministic=False).apply({}, x, rngs={"dropout": jax.random.key(0)})
    assert 0 < (np.asarray(dropped) == 0).sum() < 32
