"""Scanned against unrolled layers, rematerialised against plain ones, and what they compute in."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.equations import equations
from vit_jax import create_model
from vit_jax.models.stack import stack_layers, unstack_layers

DEPTH = 2
REGULARISED = {"dropout": 0.2, "attn_dropout": 0.1, "stoch_depth": 0.3}
KEY = jax.random.key(7, impl="rbg")  # compiles faster than the default


def _create(**fields):
    shape = {"width": 16, "depth": DEPTH, "mlp_dim": 24, "num_heads": 2}
    return create_model("mu/8", num_classes=5, image_size=16, **{**shape, **fields})


@functools.cache
def _images():
    return np.random.default_rng(2).uniform(-1, 1, size=(4, 16, 16, 3)).astype(np.float32)


@functools.cache
def _params():
    """Unrolled parameters, none of them zero, so that every gradient counts."""
    shapes = jax.eval_shape(_create().init, jax.random.key(0), _images())["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(0.1, 0.3, leaf.shape).astype(np.float32), shapes)


def _loss_and_gradients(params, train, **fields):
    def loss(params):
        logits, _ = _create(**fields).apply({"params": params}, _images(), train=train, rngs={"dropout": KEY})
        return jnp.square(logits - 1).mean()

    return jax.jit(jax.value_and_grad(loss))(params)


def _assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


def test_stack_and_unstack():
    params = _params()
    stacked = stack_layers(params)
    shapes = jax.eval_shape(_create(scan=True).init, jax.random.key(0), _images())["params"]
    assert jax.tree.map(jnp.shape, stacked) == jax.tree.map(jnp.shape, shapes)
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked), params)
    assert stack_layers(stacked) is stacked and unstack_layers(params) is params

    many = {"encoder": {f"block_{i}": {"scale": np.full(2, i)} for i in range(11)}, "head": 1}
    stacked = stack_layers(many)
    assert isinstance(stacked["encoder"]["blocks"]["scale"], np.ndarray) and stacked["head"] == 1
    assert stacked["encoder"]["blocks"]["scale"][:, 0].tolist() == list(range(11))  # 10 is last, not after 1


def test_scan_equals_loop():
    loss, gradients = _loss_and_gradients(_params(), train=False)
    scan_loss, scan_gradients = _loss_and_gradients(stack_layers(_params()), train=False, scan=True)
    _assert_close(scan_loss, loss)
    _assert_close(unstack_layers(scan_gradients), gradients)


@pytest.mark.parametrize("scan", [False, True])
def test_remat_changes_no_number(scan):
    """With dropout and stochastic depth, whose draws must be the same when they are made again."""
    params = stack_layers(_params()) if scan else _params()
    plain = _loss_and_gradients(params, train=True, scan=scan, **REGULARISED)
    remat = "dots" if scan else "full"
    _assert_close(_loss_and_gradients(params, train=True, scan=scan, remat=remat, **REGULARISED), plain)


def _traced(model, params, train=False):
    trace = jax.make_jaxpr(
        lambda p: model.apply({"params": p}, _images(), train=train, rngs={"dropout": KEY})[0]
    )
    return list(equations(trace(params).jaxpr))


def test_remat_is_applied():
    for scan, count in ((False, DEPTH), (True, 1)):
        params = stack_layers(_params()) if scan else _params()
        policies = {}
        for remat in ("none", "dots", "full"):
            equations = _traced(_create(scan=scan, remat=remat), params)
            policies[remat] = [e.params["policy"] for e in equations if "prevent_cse" in e.params]
        assert [len(p) for p in policies.values()] == [0, count, count]
        assert policies["dots"][0] is jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        assert policies["full"][0] is not policies["dots"][0]


def test_matmuls_compute_in_the_type_asked_for():
    """bfloat16 everywhere but in the classifier: nothing is promoted on the way."""
    params = _params()
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    for dtype in ("float32", "bfloat16"):
        equations = _traced(_create(dtype=dtype, **REGULARISED), params, train=True)
        types = [e.invars[0].aval.dtype for e in equations if e.primitive.name == "dot_general"]
        assert (
            len(types) == 1 + DEPTH * 8 + 1
        )  # patches; q, k, v, out, two of attention, two of the MLP; head
        assert types[-1] == jnp.float32 and set(types[:-1]) == {jnp.dtype(dtype)}


@pytest.mark.parametrize("scan", [False, True])
def test_activations_are_constrained_at_every_block(scan):
    seen = []

    def constrain(x):
        seen.append(x.shape)
        return jnp.zeros_like(x)

    params = stack_layers(_params()) if scan else _params()
    model = _create(scan=scan, constrain=constrain)
    aux = jax.jit(lambda p, x: model.apply({"params": p}, x)[1])(params, _images())
    assert set(seen) == {(4, 5, 16)} and (scan or len(seen) == DEPTH)
    # Its result is what the block reads: after zeroes, no token and no image differs from another.
    assert np.ptp(aux["encoded"], axis=(0, 1)).max() < 1e-6 < np.ptp(aux["with_posemb"])


def test_captured_attention():
    loop = jax.jit(lambda p, x: _create().apply({"params": p}, x, capture_attention=True)[1]["attention"])
    weights = loop(_params(), _images())
    assert weights.shape == (DEPTH, 4, 2, 5, 5)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert np.ptp(weights) > 1e-3

    model = _create(scan=True, remat="full", dtype="bfloat16")
    scan = jax.jit(lambda p, x: model.apply({"params": p}, x, capture_attention=True)[1]["attention"])
    scanned = scan(stack_layers(_params()), _images())
    assert scanned.dtype == jnp.float32  # the softmax's type, not that of the activations
    np.testing.assert_allclose(scanned, weights, atol=1e-2)
