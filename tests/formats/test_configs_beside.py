"""What config files beside the weights say goes before guesses, and isn't overruled in silence."""

import json
import shutil

import jax
import numpy as np
import pytest

import vit_jax
from tests.formats.test_writing import weights_of
from tests.golden_layouts import load_npz, model_input
from vit_jax import pretrained
from vit_jax.errors import UsageError
from vit_jax.formats import writing


@pytest.fixture
def timm_folder(golden, tmp_path):
    """A folder as timm writes it, with any config: (config) -> path."""

    def make(**config):
        folder = tmp_path / "timm"
        folder.mkdir(exist_ok=True)
        shutil.copy(golden / "timm/token.safetensors", folder / "model.safetensors")
        args = {"model_args": {"num_heads": 3, "act_layer": "gelu"}}
        (folder / "config.json").write_text(
            json.dumps({"architecture": "vit_base_patch16_224", **args, **config})
        )
        return folder

    return make


@pytest.fixture
def hf_folder(golden, tmp_path):
    """A copy of hf/vit with changes to its config and a preprocessor config; None leaves a key out."""

    def make(preprocessor=None, **changes):
        folder = tmp_path / "hf"
        shutil.copytree(golden / "hf/vit", folder, dirs_exist_ok=True)
        config = json.loads((golden / "hf/vit/config.json").read_text()) | changes
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        if preprocessor is not None:
            (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
        return folder

    return make


def test_timms_config_tells_the_heads(timm_folder, golden):
    model, params = vit_jax.load(timm_folder())
    io = load_npz(golden / "timm/token.io.npz")
    logits, _ = jax.jit(model.apply)({"params": params}, model_input(io["image_uint8"]))
    np.testing.assert_allclose(logits, io["logits"], atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("field", [{"num_heads": 4}, {"gelu": "tanh"}, {"ln_eps": 1e-3}])
def test_a_keyword_does_not_overrule_a_config(timm_folder, golden, field):
    name = next(iter(field))
    with pytest.raises(UsageError, match=f"{name} is .*, but .* has"):
        vit_jax.load(timm_folder(), **field)
    with pytest.raises(UsageError, match=f"{name} is .*, but .* has"):
        vit_jax.load(golden / "hf/vit", **field)


def test_what_only_timms_architecture_tells(timm_folder):
    assert vit_jax.load(timm_folder(architecture="vit_base_patch16_clip_224"))[0].ln_eps == 1e-5
    tanh = timm_folder(architecture="vit_so400m_patch16_siglip_256", model_args={"num_heads": 3})
    assert vit_jax.load(tanh)[0].gelu == "tanh"
    gap = timm_folder(global_pool="avg", model_args={"num_heads": 3, "fc_norm": False})
    assert vit_jax.load(gap)[0].pool == "gap" and vit_jax.load(gap)[0].has_class_token


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architecture": "vit_base_patch16_clip_quickgelu_224"}, "QuickGELU"),
        ({"architecture": "resnet50"}, "architecture 'resnet50'"),
        ({"model_args": {"norm_layer": "rmsnorm"}}, "norm_layer='rmsnorm'"),
        ({"model_args": {"swiglu_limit": 7}}, "swiglu_limit=7"),
        ({"model_args": {"global_pool": "max"}}, "global_pool='max'"),
        ({"model_args": {"img_size": "abc"}}, "img_size of .* is 'abc'"),
        ({"model_args": 3}, "model_args of .* is 3"),
    ],
)
def test_timm_configs_that_are_not_understood_are_refused(timm_folder, config, message):
    with pytest.raises(UsageError, match=message):
        vit_jax.load(timm_folder(**config))


def test_class_names_stand_where_timm_writes_them(timm_folder):
    names = list("abcdefg")
    assert pretrained.read(timm_folder(label_names=names)).classes == tuple(names)
    weights = pretrained.read(timm_folder(label_names=["only", "two"]))
    assert weights.classes is None and "names 2 classes of 7" in weights.notes[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": None}, "hidden_act in the config.json of .* is missing"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps in the config.json of .* is 'x'"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"hidden_act": "relu"}, "hidden_act of .* is 'relu'"),
        ({"model_type": "swin"}, "type 'swin'"),
    ],
)
def test_hugging_face_configs_that_lack_something_say_what(hf_folder, changes, message):
    with pytest.raises(UsageError, match=message):
        vit_jax.load(hf_folder(**changes))


@pytest.mark.parametrize(
    ("preprocessor", "mean", "std"),
    [
        (None, 127.5, 127.5),
        ({"image_mean": [0.5] * 3, "image_std": [0.25] * 3}, 127.5, 63.75),
        ({"image_mean": 0.2, "image_std": 0.1, "rescale_factor": 0.01}, 20, 10),
        ({"do_normalize": False}, 0, 255),
        ({"do_rescale": False, "image_mean": [100] * 3, "image_std": [50] * 3}, 100, 50),
    ],
)
def test_how_hugging_face_normalises(hf_folder, preprocessor, mean, std):
    weights = pretrained.read(hf_folder(preprocessor))
    assert weights.mean == pytest.approx((mean,) * 3) and weights.std == pytest.approx((std,) * 3)


@pytest.mark.parametrize("layout", ["npz", "big_vision", "timm"])
@pytest.mark.parametrize("pool", ["tok", "gap"])
def test_a_grid_that_is_asked_for_and_fits_goes_before_a_square_one(tmp_path, layout, pool):
    """16 rows are 4x4, unless images of 16x64 pixels are asked for, or the config says so."""
    weights = weights_of(image_size=(16, 64), pool=pool)
    writing.write(weights, tmp_path / "out", layout)
    read = vit_jax.load(tmp_path / "out", image_size=(16, 64))[1]
    assert np.array_equal(read["posemb"], weights.params["posemb"])
    if layout == "timm":
        assert vit_jax.load(tmp_path / "out")[0].image_size == (16, 64)
