"""Round trips: what is written in a layout and read again is the same to the bit."""

import dataclasses

import jax
import numpy as np
import pytest

import vit_jax
from vit_jax import pretrained
from vit_jax.errors import UsageError
from vit_jax.formats import writing
from vit_jax.formats.weights import Weights, model_of
from vit_jax.paths import named_leaves

TINY = {"patch_size": 8, "width": 24, "depth": 2, "mlp_dim": 48, "num_heads": 3, "num_classes": 5,
        "image_size": (32, 32)}  # fmt: skip


def weights_of(family="vit", **fields):
    """Random weights, every array of them: zeros would hide a mistake."""
    fields = {**(TINY if family == "vit" else {}), **fields}
    model = model_of(family, fields)
    images = np.zeros((1, *model.image_size, model.channels), np.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), params)
    half = (127.5,) * 3
    return Weights(
        "run", "tiny", family, {**fields, "image_size": model.image_size}, params, "zoom", half, half
    )


def described(model):
    """The fields that a layout must bring back; a LayerScale's initial value is past."""
    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
    for name in ("parent", "layer_scale"):
        fields.pop(name, None)
    if "class_token" in fields and fields["class_token"] is None:
        fields["class_token"] = fields["pool"] in ("tok", "tok_gap")
    return fields


def assert_round_trip(weights, path, layout, **hints):
    writing.write(weights, path, layout)
    again = pretrained.read(path, hints={**writing.hints_of(weights, layout), **hints})
    ours, theirs = named_leaves(weights.params), named_leaves(again.params)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert np.array_equal(array, theirs[name]), name
    assert described(weights.model()) == described(again.model())
    return again


PLAIN = [{}, {"pool": "gap"}, {"posemb_cls": True}, {"num_classes": 0}, {"image_size": (40, 24)}]


HYBRIDS = [{"backbone": (1, 1), "patch_size": 1, "posemb_cls": True},
           {"backbone": (), "patch_size": 2, "posemb_cls": True}]  # fmt: skip


@pytest.mark.parametrize("fields", [*PLAIN, {"rep_size": 16}, *HYBRIDS])
def test_vision_transformer(tmp_path, fields):
    assert assert_round_trip(weights_of(**fields), tmp_path / "out.npz", "npz").layout == "npz"


UNFOLDED = [fields for fields in PLAIN if "posemb_cls" not in fields]


@pytest.mark.parametrize(
    "fields", [*UNFOLDED, {"rep_size": 16}, {"pool": "map"}, {"posemb": "sincos2d", "pool": "gap"}]
)
def test_big_vision(tmp_path, fields):
    assert assert_round_trip(weights_of(**fields), tmp_path / "out.npz", "big_vision").layout == "big_vision"


@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_bit(tmp_path, generation):
    weights = weights_of(
        "resnet", depths=(1, 2), width_factor=0.5, generation=generation, num_classes=3, image_size=40
    )
    assert_round_trip(weights, tmp_path / "out.npz", "npz")


def test_mixer(tmp_path):
    weights = weights_of("mixer", patch_size=8, width=24, depth=2, tokens_mlp_dim=12, channels_mlp_dim=48,
                         num_classes=3, image_size=(32, 16))  # fmt: skip
    assert_round_trip(weights, tmp_path / "out.npz", "npz")


@pytest.mark.parametrize("fields", [*PLAIN, {"gelu": "erf"}, {"pool": "map"}, {"qkv_bias": False},
                                    {"qk_norm": True}, {"layer_scale": 0.1},
                                    {"pre_norm": True, "patch_bias": False},
                                    {"num_registers": 3}, {"num_registers": 3, "posemb_cls": True},
                                    {"pool": "gap", "norm_after_pool": True}, {"pool": "gap", "class_token": True},
                                    {"mlp_dim": 49}])  # fmt: skip
def test_timm(tmp_path, fields):
    again = assert_round_trip(weights_of(**fields), tmp_path / "out", "timm")
    assert again.layout == "timm" and again.mean == pytest.approx((127.5,) * 3)


@pytest.mark.parametrize("fields", [{}, {"gelu": "erf", "ln_eps": 1e-12}, {"posemb_cls": True}, {"qkv_bias": False},
                                    {"pool": "tok_gap", "layer_scale": 0.1}])  # fmt: skip
def test_hugging_face(tmp_path, fields):
    names = {"classes": ("ant", "ïbis", "100%", "d", "e")}
    weights = Weights(**{**weights_of(**fields).__dict__, **names})
    again = assert_round_trip(weights, tmp_path / "out", "hf")
    assert again.layout == "hf" and again.classes == names["classes"]


@pytest.mark.parametrize("layout", ["npz", "timm", "hf"])
def test_fixed_positions_become_a_table_of_the_same_numbers(tmp_path, layout):
    weights = weights_of(posemb="sincos2d", pool="tok")
    writing.write(weights, tmp_path / "out", layout)
    again = pretrained.read(tmp_path / "out")
    images = np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype(np.float32)
    ours, theirs = (jax.jit(w.model().apply)({"params": w.params}, images)[0] for w in (weights, again))
    assert again.fields["posemb"] == "learn" and np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("layout", "fields", "why"),
    [
        ("npz", {"gelu": "erf"}, r"no place for gelu='erf'"),
        ("npz", {"ln_eps": 1e-12}, r"no place for ln_eps=1e-12"),
        ("npz", {"pool": "map"}, r"no attention pooling"),
        ("npz", {"qk_norm": True}, r"no place for encoder/block_0/attn/k_norm"),
        ("big_vision", {"num_registers": 2}, r"no place for registers"),
        ("timm", {"pool": "tok_gap"}, r"timm knows no head on class token and mean"),
        ("timm", {"rep_size": 8}, r"representation layer"),
        ("timm", {"swiglu": True}, r"SwiGLU"),
        ("timm", {"ln_eps": 1e-5}, r"ln_eps=1e-05"),
        ("hf", {"pool": "gap"}, r"no pooling 'gap'"),
        ("hf", {"qk_norm": True}, r"no place for qk_norm"),
        ("hf", {"layer_scale": 0.1}, r"no place for layer_scale"),
        ("hf", {"image_size": (32, 24)}, r"32x24"),
        ("hf", {"num_classes": 0}, r"without classes"),
    ],
)
def test_what_a_layout_cannot_express_is_refused(tmp_path, layout, fields, why):
    with pytest.raises(UsageError, match=why):
        writing.write(weights_of(**fields), tmp_path / "out", layout)
    assert not (tmp_path / "out").exists()


def test_load_takes_what_was_written(tmp_path):
    weights = weights_of()
    writing.write(weights, tmp_path / "out", "timm")
    model, params = vit_jax.load(tmp_path / "out", num_classes=2, image_size=(48, 40))
    assert params["posemb"].shape == (1, 30, 24) and params["head"]["kernel"].shape == (24, 2)
    assert model.gelu == "tanh"
