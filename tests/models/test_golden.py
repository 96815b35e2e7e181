"""Outputs of both reference implementations, at the tolerances that come with them (atol 3e-5, rtol 1e-4)."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.golden_layouts import from_reference, load_case, load_npz, model_input, model_of

CASES = [
    "vt/token",
    "vt/gap",
    "vt/token_small_activations",
    "vt/representation",
    "vt/pretrained_21cls",
    "vt/pretrained_48px",
    "vt/pretrained_gap_48px",
    "bv/tok_learn",
    "bv/gap_learn",
    "bv/map_learn",
    "bv/gap_learn_nonsquare",
    "bv/map_rep_sincos2d_nonsquare",
    "bv/gap_sincos2d",
    "bv/tok_rep",
    "bv/map_scan",
    "bv/gap_scan",
    "bv/tok_bfloat16",
]


def _close(ours, reference):
    np.testing.assert_allclose(ours, reference, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_outputs_equal_the_reference(golden, case):
    config, params, io = load_case(golden / case)
    model, images = model_of(config), model_input(io["image_uint8"])
    expected = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, expected)

    logits, aux = jax.jit(model.apply)({"params": params}, images)
    assert logits.dtype == jnp.float32
    _close(logits, io["logits"])
    _close(aux["encoded"], io["encoded"])
    if "pre_logits" in io:
        _close(aux["pre_logits"], io["pre_logits"])


@pytest.mark.parametrize(
    "case", ["ft_48_to_32", "ft_48_to_64", "ft_drop_hidden", "ft_gap_48_to_64", "ft_keep_hidden"]
)
def test_fine_tuned_shapes_equal_the_reference(golden, case):
    io = load_npz(golden / "vt" / f"{case}.io.npz")
    config = json.loads(str(io["config"]))
    params = from_reference(load_npz(golden / "vt" / config["source"]))
    params["head"] = {"kernel": io["head_kernel"], "bias": io["head_bias"]}
    params["posemb"] = io["pos_embedding_resized"]
    if not config["representation_size"]:
        params.pop("pre_logits", None)
    logits, aux = jax.jit(model_of(config).apply)({"params": params}, model_input(io["image_uint8"]))
    _close(logits, io["logits"])
    _close(aux["encoded"], io["encoded"])


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("vt/token", {"gelu": "erf"}),
        ("vt/token_small_activations", {"ln_eps": 1e-5}),
        ("vt/token", {"posemb_cls": False}),
    ],
)
def test_reference_tells_wrong_settings_apart(golden, case, fields):
    """The tolerance above would notice the other GELU, another epsilon and an unused class position."""
    config, params, io = load_case(golden / case)
    if "posemb_cls" in fields:
        params["posemb"] = params["posemb"][:, 1:]
    logits, _ = jax.jit(model_of(config, **fields).apply)({"params": params}, model_input(io["image_uint8"]))
    assert np.abs(logits - io["logits"]).max() > 1e-4


def test_bfloat16_compute(golden):
    config, params, io = load_case(golden / "bv/map_learn")
    model = model_of(config, dtype="bfloat16")
    logits, aux = jax.jit(model.apply)({"params": params}, model_input(io["image_uint8"]))
    assert logits.dtype == jnp.float32
    assert aux["encoded"].dtype == jnp.bfloat16
    np.testing.assert_allclose(logits, io["logits_dtype_mm_bfloat16"], atol=6e-2, rtol=0)
    assert np.abs(logits - io["logits"]).max() > 1e-3  # it isn't float32 in disguise
