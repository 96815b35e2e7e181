"""Every published layout, read by its content, gives the outputs of the program that wrote it."""

import json

import jax
import numpy as np
import pytest

import vit_jax
from tests.golden_layouts import load_npz, model_input
from vit_jax import pretrained

# What a file of weights alone doesn't show; all else is inferred.
BV = {
    "gap_learn_nonsquare": {"image_size": (24, 40)},
    "map_rep_sincos2d_nonsquare": {"image_size": (32, 48), "posemb": "sincos2d"},
    "gap_sincos2d": {"posemb": "sincos2d"},
    "gap_scan": {"posemb": "sincos2d"},
}
TIMM = {
    "avg_nofcnorm": {"pool": "gap"},
    "nonsquare": {"image_size": (24, 40)},
}
VT = ["token", "gap", "token_small_activations", "representation", "hybrid_1_1", "hybrid_root_only",
      "pretrained_21cls", "pretrained_48px", "pretrained_gap_48px"]  # fmt: skip


def check(model, params, io, *, atol=3e-5, rtol=1e-4, encoded="encoded", pre_logits=True):
    images = model_input(io["image_uint8"])
    logits, aux = jax.jit(model.apply)({"params": params}, images)
    np.testing.assert_allclose(logits, io["logits"], atol=atol, rtol=rtol)
    if encoded in io:
        np.testing.assert_allclose(aux["encoded"], io[encoded], atol=atol, rtol=rtol)
    if "pre_logits" in io and pre_logits:
        np.testing.assert_allclose(aux["pre_logits"], io["pre_logits"], atol=atol, rtol=rtol)
    wanted = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    assert jax.tree.map(np.shape, wanted) == jax.tree.map(np.shape, params)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("case", VT)
def test_vision_transformer(golden, case):
    hybrid = {"atol": 1e-4, "rtol": 1e-3} if "hybrid" in case else {}
    check(*vit_jax.load(golden / f"vt/{case}.npz"), load_npz(golden / f"vt/{case}.io.npz"), **hybrid)


@pytest.mark.parametrize("case", ["tok_learn", "gap_learn", "map_learn", "gap_learn_nonsquare",
                                  "map_rep_sincos2d_nonsquare", "gap_sincos2d", "tok_rep", "map_scan", "gap_scan",
                                  "tok_bfloat16"])  # fmt: skip
def test_big_vision(golden, case):
    fields = BV.get(case, {})
    check(*vit_jax.load(golden / f"bv/{case}.npz", **fields), load_npz(golden / f"bv/{case}.io.npz"))


@pytest.mark.parametrize("case", ["v1_1_1", "v2_1_1", "v2_tf_names_1_1_1_1"])
def test_bit(golden, case):
    model, params = vit_jax.load(golden / f"bit/{case}.npz", image_size=40)
    check(model, params, load_npz(golden / f"bit/{case}.io.npz"), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("case", ["token", "token_small_activations", "avg_fcnorm", "avg_nofcnorm", "avg_noclass",
                                  "qkv_bias_false", "layerscale", "registers", "no_embed_class",
                                  "registers_no_embed_class", "qk_norm", "map", "pre_norm_clip",
                                  "nonsquare"])  # fmt: skip
def test_timm(golden, case):
    fields = TIMM.get(case, {})
    model, params = vit_jax.load(golden / f"timm/{case}.safetensors", num_heads=3, **fields)
    check(model, params, load_npz(golden / f"timm/{case}.io.npz"), encoded="features")


@pytest.mark.parametrize(
    "case", ["vit", "vit_small_activations", "vit_qkv_bias_false", "dinov2", "dinov2_swiglu"]
)
def test_hugging_face(golden, case):
    io = load_npz(golden / f"hf/{case}/io.npz")
    model, params = vit_jax.load(golden / f"hf/{case}")
    check(model, params, io, encoded="last_hidden_state")
    # Another size, by the rule of the source.
    model, params = vit_jax.load(golden / f"hf/{case}", image_size=(56, 40))
    logits, _ = jax.jit(model.apply)({"params": params}, model_input(io["other_size_image_uint8"]))
    np.testing.assert_allclose(logits, io["other_size_logits"], atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "case", ["ft_48_to_32", "ft_48_to_64", "ft_drop_hidden", "ft_gap_48_to_64", "ft_keep_hidden"]
)
def test_fine_tuning_starts_as_the_reference_does(golden, case):
    io = load_npz(golden / f"vt/{case}.io.npz")
    config = json.loads(str(io["config"]))
    model, params = vit_jax.load(
        golden / "vt" / config["source"],
        num_classes=config["num_classes"],
        image_size=config["image_size"],
        rep_size=config["representation_size"] or 0,
    )
    assert not np.any(params["head"]["kernel"]) and not np.any(params["head"]["bias"])
    np.testing.assert_allclose(params["posemb"], io["pos_embedding_resized"], atol=1e-6)
    params["head"] = {"kernel": io["head_kernel"], "bias": io["head_bias"]}
    check(model, params, io)


def test_a_weight_is_found_by_its_content_not_its_place(golden):
    assert pretrained.read(golden / "vt/token.npz").layout == "npz"
    assert pretrained.read(golden / "bv/map_scan.npz").layout == "big_vision"
    assert pretrained.read(golden / "bit/v1_1_1.npz").layout == "bit"
    assert pretrained.read(golden / "hf/vit").layout == "hf"
    assert pretrained.read(golden / "timm/map.safetensors", hints={"num_heads": 3}).layout == "timm"
