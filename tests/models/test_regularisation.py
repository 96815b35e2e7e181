"""Dropout and stochastic depth: where, how much, and from which key."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_layers import DEPTH, KEY, _create, _images, _params, _traced
from vit_jax.models.attention import xla_attention
from vit_jax.models.block import block_rates, drop_branch
from vit_jax.models.stack import stack_layers


@functools.cache
def _run(scan, **rates):
    model = _create(scan=scan, **rates)
    params = stack_layers(_params()) if scan else _params()
    return jax.jit(
        lambda train, key: model.apply({"params": params}, _images(), train=train, rngs=key)[0],
        static_argnums=0,
    )


@pytest.mark.parametrize("scan", [False, True])
def test_one_key_decides(scan):
    run = _run(scan, dropout=0.1, attn_dropout=0.1, stoch_depth=0.1)
    first = run(True, {"dropout": KEY})
    np.testing.assert_array_equal(run(True, {"dropout": KEY}), first)
    assert np.abs(run(True, {"dropout": jax.random.key(8, impl="rbg")}) - first).max() > 1e-3
    np.testing.assert_array_equal(run(False, {}), run(False, {"dropout": KEY}))


def test_no_rate_needs_no_key():
    np.testing.assert_allclose(_run(False)(True, {}), _run(False)(False, {}), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("rates", "draws"),
    [
        ({}, 0),
        ({"dropout": 0.1}, 1 + 3 * DEPTH),  # after the positions; attention's out and both MLP layers
        ({"attn_dropout": 0.1}, DEPTH),
        ({"stoch_depth": 0.1}, 2 * DEPTH),  # both branches of each block
    ],
)
def test_number_of_draws(rates, draws):
    equations = _traced(_create(**rates), _params(), train=True)
    masks = [e for e in equations if e.primitive.name == "ge" and e.invars[0].aval.dtype == jnp.uint32]
    branches = [e for e in equations if e.primitive.name == "random_bits"]
    assert len(masks) + len(branches) == draws


def test_dropped_branches():
    B, rate = 4096, 0.3
    y = jax.random.uniform(jax.random.key(0), (B, 3, 2), minval=1, maxval=2)
    out = drop_branch(y, rate, KEY)
    kept = (out != 0).all(axis=(1, 2))
    np.testing.assert_array_equal(kept, (out != 0).any(axis=(1, 2)))  # an example is dropped as a whole
    np.testing.assert_allclose(out[kept], y[kept] / (1 - rate), rtol=1e-6)
    assert abs(kept.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / B)
    assert drop_branch(y.astype(jnp.bfloat16), rate, KEY).dtype == jnp.bfloat16
    np.testing.assert_array_equal(drop_branch(y, 0.0, KEY), y)


@pytest.mark.parametrize("scan", [False, True])
def test_last_block_is_dropped_at_the_rate(scan):
    """At rates 0 and r, an example leaves block 1 as it came when both branches are dropped."""
    B, rate = 1024, 0.7
    images = np.broadcast_to(_images()[:1], (B, 16, 16, 3))
    params = _params()
    encoder = {name: params["encoder"][name] for name in ("block_0", "norm")}
    first = jax.jit(_create(depth=1).apply)({"params": {**params, "encoder": encoder}}, images[:1])[1][
        "encoded"
    ]

    model = _create(scan=scan, stoch_depth=rate)
    run = jax.jit(
        lambda p: model.apply({"params": p}, images, train=True, rngs={"dropout": KEY})[1]["encoded"]
    )
    encoded = run(stack_layers(params) if scan else params)
    # Fewer would be if the first block were dropped too; all or none if one draw served the batch.
    untouched = (np.abs(encoded - first) < 1e-4).all(axis=(1, 2)).mean()
    assert abs(untouched - rate**2) < 4 * np.sqrt(rate**2 * (1 - rate**2) / B)


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_rates_are_linear_in_depth(depth):
    rates = np.asarray(block_rates(depth, 0.4))
    assert rates[0] == 0
    if depth > 1:
        np.testing.assert_allclose(rates, 0.4 * np.arange(depth) / (depth - 1), rtol=1e-6)


def test_attention_weights_are_dropped():
    q, k, v = jax.random.normal(jax.random.key(0), (3, 64, 8, 2, 4))
    v = jnp.ones_like(v)

    def attend(rate, key):
        return xla_attention(
            q, k, v, softmax_dtype=jnp.float32, dropout=rate, dropout_key=key, return_weights=True
        )

    out, weights = attend(0.5, KEY)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)  # reported before dropout
    assert out.std() > 0.1 and abs(out.mean() - 1) < 0.05  # on average the sum of the weights stays one
    np.testing.assert_allclose(attend(0.5, None)[0], 1, atol=1e-6)
