import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.errors import UsageError
from vit_jax.mixup import blend, mixup, partner_weight
from vit_jax.sharding import batch_sharding, make_mesh

KEY = jax.random.key(3)


def batch(size, masked=()):
    rng = np.random.default_rng(size)
    mask = np.ones(size, np.float32)
    mask[list(masked)] = 0
    images = rng.normal(size=(size, 2, 2, 3)).astype(np.float32)
    return images, np.eye(4, dtype=np.float32)[rng.integers(4, size=size)], mask


def test_odd_batch_case(golden):
    case = json.loads((golden / "cases/mixup_odd.json").read_text())
    weight = partner_weight(jnp.float32(case["lambda"]), jnp.ones(case["batch"]))
    np.testing.assert_allclose(blend(jnp.asarray(case["x"]), weight), case["expected"], rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_any_batch_size(size):
    images, targets, mask = batch(size)
    mixed, mixed_targets, counted = mixup(KEY, images, targets, mask, alpha=0.4)
    a = float(jax.random.beta(KEY, 0.4, 0.4, dtype=jnp.float32))
    weight = 1.0 if size == 1 else max(a, 1 - a)
    assert weight > 0.5
    np.testing.assert_allclose(
        mixed, weight * images + (1 - weight) * np.roll(images, 1, 0), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        mixed_targets, weight * targets + (1 - weight) * np.roll(targets, 1, 0), rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(np.sum(mixed_targets, -1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(counted, mask)
    if size == 1:
        np.testing.assert_array_equal(mixed, images)


def test_a_masked_example_does_not_leak():
    images, targets, mask = batch(5, masked=[2])
    images[2], targets[2] = 1e9, 0.0
    mixed, mixed_targets, counted = mixup(KEY, images, targets, mask, alpha=0.4)
    np.testing.assert_array_equal(mixed[3], images[3])
    np.testing.assert_array_equal(mixed_targets[3], targets[3])
    np.testing.assert_array_equal(mixed[2], images[2])
    assert not np.allclose(mixed[1], images[1])  # the others are mixed
    np.testing.assert_array_equal(counted, mask)


def test_same_result_on_a_mesh():
    args = batch(8, masked=[5])
    alone = jax.jit(mixup, static_argnums=4)(KEY, *args, 0.4)
    mesh = make_mesh(2, 2, 2)
    placed = jax.device_put(args, batch_sharding(mesh))
    key = jax.device_put(KEY, NamedSharding(mesh, PartitionSpec()))
    out = jax.jit(mixup, static_argnums=4, out_shardings=batch_sharding(mesh))(key, *placed, 0.4)
    for got, expected in zip(out, alone, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_off_and_refused():
    images, targets, mask = batch(4)
    assert mixup(KEY, images, targets, mask, alpha=0.0)[0] is images
    with pytest.raises(UsageError, match=r"mixup_alpha is -0\.1"):
        mixup(KEY, images, targets, mask, alpha=-0.1)
