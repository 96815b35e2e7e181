"""ResNets of both generations and hybrids, against their reference outputs, counts and what they refuse."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.golden_layouts import load_case, model_input, model_of
from vit_jax import create_model
from vit_jax.errors import UsageError
from vit_jax.models import resnet


def _close(ours, reference):
    np.testing.assert_allclose(ours, reference, atol=1e-4, rtol=1e-3)


def _run(model, params, images):
    expected = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, expected)
    return jax.jit(model.apply)({"params": params}, images)


@pytest.mark.parametrize("case", ["bit/v1_1_1", "bit/v2_1_1"])
def test_resnet_equals_the_reference(golden, case):
    config, params, io = load_case(golden / case)
    logits, aux = _run(model_of(config), params, model_input(io["image_uint8"]))
    assert logits.dtype == jnp.float32 and aux["pre_logits"].dtype == jnp.float32
    _close(logits, io["logits"])
    for name in ("stem", "pre_logits_2d", "pre_logits"):
        _close(aux[name], io[name])


@pytest.mark.parametrize("case", ["vt/hybrid_1_1", "vt/hybrid_root_only"])
def test_hybrid_equals_the_reference(golden, case):
    config, params, io = load_case(golden / case)
    logits, aux = _run(model_of(config), params, model_input(io["image_uint8"]))
    _close(logits, io["logits"])
    _close(aux["encoded"], io["encoded"])


@pytest.mark.parametrize(("case", "other"), [("bit/v1_1_1", "v2"), ("bit/v2_1_1", "v1")])
def test_reference_tells_the_standardisations_apart(golden, case, other, monkeypatch):
    """Epsilon beside the deviation or the variance: the feature maps move by 500 times what the reference does."""
    config, params, io = load_case(golden / case)
    own = model_of(config).generation
    mixed = dataclasses.replace(resnet.GENERATION[own], standardise=resnet.GENERATION[other].standardise)
    monkeypatch.setitem(resnet.GENERATION, own, mixed)
    _, aux = jax.jit(model_of(config).apply)({"params": params}, model_input(io["image_uint8"]))
    assert np.abs(aux["pre_logits_2d"] - io["pre_logits_2d"]).max() > 2e-3


def _count(model):
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 224, 224, 3)))["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_counts_of_resnets(golden):
    entries = json.loads((golden / "param_counts.json").read_text())["bit"]
    assert len(entries) == 16
    for entry, count in entries.items():
        generation, name = re.fullmatch(r"(v\d) (\S+) classes=1000", entry).groups()
        model = create_model(name, num_classes=1000, image_size=224, generation=generation)
        assert _count(model) == count, entry
    assert create_model("R50x1", num_classes=1, image_size=224).generation == "v2"


def test_counts_of_hybrids(golden):
    entries = json.loads((golden / "param_counts.json").read_text())["vision_transformer"]
    hybrids = {
        name.split(" ")[0].replace("ViT-", "").replace("_", "/"): n
        for name, n in entries.items()
        if "+" in name
    }
    assert len(hybrids) == 5
    for name, count in hybrids.items():
        assert _count(create_model(name, num_classes=1000, image_size=224, scan=True)) == count, name


@pytest.mark.parametrize(
    ("name", "backbone", "patch_size", "grid"),
    [
        ("R+Ti/16", (), 8, (7, 7)),  # 1/32 in fact
        ("R50+B/16", (3, 4, 9), 1, (14, 14)),
        ("R50+L/16", (3, 4, 9), 1, (14, 14)),
        ("R50+L/32", (3, 4, 6, 3), 1, (7, 7)),
        ("R26+S/32", (2, 2, 2, 2), 1, (7, 7)),
        ("R101x2+B/32", (3, 4, 23, 3), 1, (7, 7)),
    ],
)
def test_hybrid_names(name, backbone, patch_size, grid):
    model = create_model(name, num_classes=2, image_size=224)
    assert (model.backbone, model.patch_size, model.grid) == (backbone, patch_size, grid)
    assert model.posemb_cls and model.backbone_width == (2 if "x2" in name else 1)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("R51x1", "R50x1"),
        ("R50+B/8", "R50+B/16"),
        ("R50x1.", "R50x1"),
        ("r50x1", "R50x1"),
        ("R+B/32", "R26+B/32"),
    ],
)
def test_unknown_names(name, nearest):
    with pytest.raises(UsageError, match="unknown model") as error:
        create_model(name, num_classes=2, image_size=224)
    assert repr(nearest) in error.value.remedy


def test_images_of_a_hybrid():
    with pytest.raises(
        UsageError,
        match=r"height 72 is not a multiple of the total downsampling \(16 of the backbone x patch size 1\) 16",
    ):
        create_model("R50+Ti/16", num_classes=2, image_size=72)
    with pytest.raises(UsageError, match=r"\(4 of the backbone x patch size 8\) 32"):
        create_model("R+Ti/16", num_classes=2, image_size=48)
    model = create_model("R+Ti/16", num_classes=2, image_size=(32, 64))
    with pytest.raises(UsageError, match="2x2 patches, but the position table is for 1x2"):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 64, 64, 3)))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("R50x1", {"pool": "gap"}, "R50x1 has no field 'pool'"),
        ("R50x1", {"generation": "v3"}, "'v3' .*v1"),
        ("R50x1", {"depths": ()}, r"depths is \(\)"),
        ("R50x1", {"depths": (1, 0)}, r"depths is \(1, 0\)"),
        ("R50x1", {"width_factor": 0.3}, "width_factor is 0.3 .*multiple of 0.5"),
        ("R50x1", {"dtype": "int8"}, "'int8'"),
        ("R50x1", {"num_classes": -1}, "num_classes is -1"),
        ("R50x1", {"image_size": 0}, "height 0"),
        ("R50+Ti/16", {"backbone": 3}, "backbone is 3"),
        ("R50+Ti/16", {"backbone_width": 0.0}, "backbone_width is 0.0"),
    ],
)
def test_refused_fields(name, fields, message):
    with pytest.raises(UsageError, match=message):
        create_model(name, **{"num_classes": 2, "image_size": 64, **fields})


def _small(**fields):
    shape = {"num_classes": 3, "image_size": 32, "depths": (2, 1), "width_factor": 0.5}
    return create_model("R50x1", **{**shape, **fields})


@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_initial_values(generation):
    model = _small(generation=generation, head_bias_init=-10.0)
    images = jnp.zeros((2, 40, 32, 3))
    p = jax.jit(model.init)(jax.random.key(0, impl="rbg"), images)["params"]
    assert not p["head"]["kernel"].any() and (p["head"]["bias"] == -10).all()
    unit = p["stage_1"]["unit_2"]
    assert set(unit) == {"conv1", "conv2", "conv3", "norm1", "norm2", "norm3"}
    assert bool(unit["norm3"]["scale"].any()) == (generation == "v2")  # v1 starts as the identity
    assert ("norm" in p) == (generation == "v2") != ("norm" in p["root"])
    logits, aux = jax.jit(model.apply)({"params": p}, images)
    assert logits.shape == (2, 3) and (logits == -10).all()
    assert aux["pre_logits_2d"].shape == (2, 5, 4, 256)
    features, _ = jax.jit(_small(generation=generation, num_classes=0).apply)({"params": p}, images)
    np.testing.assert_array_equal(features, aux["pre_logits"])


def test_bfloat16_and_constraint(golden):
    config, params, io = load_case(golden / "bit/v1_1_1")
    seen = []

    def constrain(x):
        seen.append(x.dtype)
        return x

    model = model_of(config, dtype="bfloat16", constrain=constrain)
    logits, aux = jax.jit(model.apply)({"params": params}, model_input(io["image_uint8"]))
    assert logits.dtype == jnp.float32 and aux["stem"].dtype == jnp.bfloat16
    assert seen == [jnp.bfloat16] * 2
    assert 1e-5 < np.abs(logits - io["logits"]).max() < 0.1
