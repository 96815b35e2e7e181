"""The ViT's optional parts: scanned and rematerialised, and what is refused.

Their outputs are compared with timm's and Hugging Face's in tests/formats/test_reading.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import create_model
from vit_jax.errors import UsageError
from vit_jax.models.stack import stack_layers, unstack_layers

ALL = {
    "class_token": True,
    "num_registers": 2,
    "qkv_bias": False,
    "qk_norm": True,
    "layer_scale": 0.5,
    "swiglu": True,
    "pre_norm": True,
    "patch_bias": False,
    "pool": "gap",
    "norm_after_pool": True,
    "posemb_cls": True,
    "backbone": (1,),
    "backbone_width": 0.5,
}


def _all(**fields):
    shape = {"width": 16, "depth": 2, "mlp_dim": 24, "num_heads": 2, "image_size": 16}
    return create_model("mu/2", num_classes=5, **{**shape, **ALL, **fields})


def _images():
    return np.random.default_rng(2).uniform(-1, 1, size=(4, 16, 16, 3)).astype(np.float32)


def _params():
    """Random parameters, none of them zero."""
    shapes = jax.eval_shape(_all().init, jax.random.key(0), _images())["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(0.1, 0.3, leaf.shape).astype(np.float32), shapes)


def test_scan_and_remat_with_everything():
    """The same loss and gradients whichever way the layers run, and every parameter has one."""

    def run(params, **fields):
        model = _all(**fields)

        def loss(params):
            return jnp.square(model.apply({"params": params}, _images(), train=True)[0] - 1).mean()

        return jax.jit(jax.value_and_grad(loss))(params)

    loss, gradients = run(_params())
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))
    for fields in ({}, {"remat": "full"}, {"remat": "dots"}):
        scanned_loss, scanned = run(stack_layers(_params()), scan=True, **fields)
        np.testing.assert_allclose(scanned_loss, loss, rtol=1e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            unstack_layers(scanned),
            gradients,
        )


def test_stacking_is_reversible_and_leaves_other_models_alone():
    params = _params()
    assert "layer_scale1" in params["encoder"]["block_0"] and "norm" not in params["encoder"]
    stacked = stack_layers(params)
    shapes = jax.eval_shape(_all(scan=True).init, jax.random.key(0), _images())["params"]
    assert jax.tree.map(jnp.shape, stacked) == jax.tree.map(jnp.shape, shapes)
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked), params)
    other = {"root": {"conv": {"kernel": np.ones(1)}}}
    assert stack_layers(other) is other and unstack_layers(other) is other


def test_everything_in_bfloat16():
    model = _all(dtype="bfloat16")
    logits, aux = jax.jit(model.apply)({"params": _params()}, _images())
    assert logits.dtype == aux["pre_logits"].dtype == jnp.float32
    assert {aux[name].dtype for name in ("patch_embed", "with_posemb", "encoded")} == {jnp.dtype("bfloat16")}
    exact, _ = jax.jit(_all().apply)({"params": _params()}, _images())
    assert 1e-5 < np.abs(logits - exact).max() < 0.2


def _tokens_after(changed, **fields):
    """Pre-logits before and after the named token of the encoder's input is changed, with no block between."""
    model = _all(backbone=None, pre_norm=False, norm_after_pool=False, num_registers=2, **fields)
    shapes = jax.eval_shape(model.init, jax.random.key(0), _images())["params"]
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    params["encoder"]["norm"]["scale"] += 1
    params["patch_embed"]["kernel"] += np.random.default_rng(0).normal(size=(2, 2, 3, 16)).astype(np.float32)
    before = jax.jit(model.apply)({"params": params}, _images())[1]["pre_logits"]
    params[changed] = params[changed] + np.arange(16, dtype=np.float32)
    return before, jax.jit(model.apply)({"params": params}, _images())[1]["pre_logits"]


@pytest.mark.parametrize("token", ["cls_token", "registers"])
def test_only_patches_are_averaged(token):
    np.testing.assert_array_equal(*_tokens_after(token))
    for pool in ("none", "tok_gap"):
        before, after = _tokens_after(token, pool=pool)
        read = pool == "tok_gap" and token == "cls_token"
        assert bool(np.abs(after - before).max() > 0.1) == read


def test_shapes_of_tokens():
    model = _all(pool="none", posemb_cls=False, backbone=None, norm_after_pool=False, image_size=(16, 8))
    logits, aux = jax.eval_shape(
        lambda x: model.init_with_output(jax.random.key(0), x)[0], jnp.zeros((1, 16, 8, 3))
    )
    assert model.grid == (8, 4) and model.has_class_token
    assert logits.shape == (1, 32, 5)  # patches
    assert aux["encoded"].shape == aux["with_posemb"].shape == (1, 1 + 2 + 32, 16)
    assert aux["patch_embed"].shape == (1, 32, 16)


def test_initial_values():
    params = jax.jit(_all(layer_scale=0.25).init)(jax.random.key(0, impl="rbg"), _images())["params"]
    block = params["encoder"]["block_1"]
    assert (block["layer_scale1"] == 0.25).all() and (block["layer_scale2"] == 0.25).all()
    assert set(block["attn"]["query"]) == {"kernel"} and set(block["attn"]["out"]) == {"kernel", "bias"}
    assert block["attn"]["q_norm"]["scale"].shape == (8,)
    assert params["registers"].shape == (1, 2, 16) and 0 < np.abs(params["registers"]).max() < 1e-5
    assert set(params["patch_embed"]) == {"kernel"}
    assert block["mlp"]["gate"]["kernel"].shape == block["mlp"]["fc1"]["kernel"].shape
    assert not np.array_equal(block["mlp"]["gate"]["kernel"], block["mlp"]["fc1"]["kernel"])


def test_class_token_where_the_pooling_wants_it():
    for pool, there in (("tok", True), ("tok_gap", True), ("gap", False), ("map", False), ("none", False)):
        assert create_model("mu/8", num_classes=2, image_size=16, pool=pool).has_class_token == there


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_registers": -1}, "num_registers is -1"),
        ({"num_registers": True}, "num_registers is True"),
        ({"qk_norm": 1}, "qk_norm is 1 .*true or false"),
        ({"class_token": "yes"}, "class_token is 'yes'"),
        ({"class_token": False}, "pool 'tok' without a class token"),
        ({"layer_scale": -0.1}, "layer_scale is -0.1"),
        ({"layer_scale": float("nan")}, "layer_scale is nan"),
        ({"ln_eps": 0.0}, "ln_eps is 0.0"),
        ({"backbone": [1]}, r"backbone is \[1\]"),
        ({"num_register": 1}, "mu/16 has no field 'num_register' .*'num_registers'"),
    ],
)
def test_refused_fields(fields, message):
    with pytest.raises(UsageError, match=message):
        create_model("mu/16", num_classes=3, image_size=32, **fields)
