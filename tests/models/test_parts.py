"""Positions, attention and initial values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.golden_layouts import load_npz
from vit_jax import create_model
from vit_jax.errors import UsageError
from vit_jax.models.attention import xla_attention
from vit_jax.models.posemb import sincos2d


def test_sincos2d_equals_the_reference(golden):
    tables = {k: v for k, v in load_npz(golden / "posemb_zoom.npz").items() if k.startswith("sincos2d/")}
    assert len(tables) == 3
    for name, table in tables.items():
        height, width, dim = map(int, name.removeprefix("sincos2d/").split("x"))
        ours = sincos2d(height, width, dim)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, table.reshape(ours.shape), atol=1e-5, rtol=0)


def test_sincos2d_refuses_odd_widths():
    for dim in (4, 18):
        with pytest.raises(UsageError, match=f"width {dim} "):
            sincos2d(2, 2, dim)


def test_attention_is_softmax_of_scaled_products():
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 5, 3, 4)).astype(np.float32)
    out, weights = xla_attention(
        *map(jnp.asarray, (q, k[:, :4], v[:, :4])),
        softmax_dtype=jnp.float32,
        dropout=0.0,
        dropout_key=None,
        return_weights=True,
    )
    assert out.shape == (2, 5, 3, 4) and weights.shape == (2, 3, 5, 4)
    for b in range(2):
        for h in range(3):
            products = np.exp(q[b, :, h] @ k[b, :4, h].T / 2)  # sqrt(4) = 2
            expected = products / products.sum(1, keepdims=True)
            np.testing.assert_allclose(weights[b, h], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(out[b, :, h], expected @ v[b, :4, h], rtol=1e-5, atol=1e-5)


def test_softmax_dtype():
    q = jnp.ones((1, 2, 1, 4), jnp.bfloat16)
    for softmax_dtype in (jnp.float32, jnp.bfloat16):
        out, weights = xla_attention(
            q, q, q, softmax_dtype=softmax_dtype, dropout=0.0, dropout_key=None, return_weights=True
        )
        assert weights.dtype == softmax_dtype and out.dtype == jnp.bfloat16


def test_initial_values():
    model = create_model(
        "mu/8",
        num_classes=5,
        image_size=64,
        width=64,
        num_heads=4,
        mlp_dim=256,
        rep_size=64,
        head_bias_init=-10,
    )
    p = jax.jit(model.init)(jax.random.key(0, impl="rbg"), jnp.zeros((1, 64, 64, 3)))["params"]
    block = p["encoder"]["block_0"]

    def std(kernel, expected):
        # Standard error of a standard deviation: at most 1 / sqrt(2 n) of it, for these distributions.
        np.testing.assert_allclose(np.std(kernel), expected, rtol=4 / np.sqrt(2 * kernel.size))

    for name in ("query", "key", "value", "out"):
        kernel = block["attn"][name]["kernel"]
        std(kernel, np.sqrt(2 / (64 + 64)))  # fans of the 64 x 64 matrix, not of one head
        assert np.abs(kernel).max() <= np.sqrt(6 / (64 + 64))
        assert not block["attn"][name]["bias"].any()
    for name in ("fc1", "fc2"):
        std(block["mlp"][name]["kernel"], np.sqrt(2 / (64 + 256)))
        std(block["mlp"][name]["bias"], 1e-6)
    std(p["patch_embed"]["kernel"], np.sqrt(1 / (8 * 8 * 3)))
    std(p["posemb"], 0.02)
    assert not p["cls_token"].any() and not p["head"]["kernel"].any()
    assert (p["head"]["bias"] == -10).all()
