"""Files that broke other people's loaders: prefixes, training states, odd types, odd heads, odd grids."""

import json
import logging

import jax
import numpy as np
import pytest

import vit_jax
from tests.golden_layouts import load_npz
from vit_jax.errors import UsageError
from vit_jax.formats import container, posemb, resnet_names, table
from vit_jax.models import create_model


@pytest.fixture
def cases(golden):
    return golden / "cases"


@pytest.fixture
def expected(cases):
    return json.loads((cases / "checkpoints_expected.json").read_text())


def picture(height, width):
    """The formula image of the cases, [1, H, W, 3] float32."""
    h, w, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return np.sin(0.11 * h + 0.07 * w + 0.9 * c).astype(np.float32)[None]


def logits_of(path, size=(224, 224), **keywords):
    model, params = vit_jax.load(path, image_size=size, **keywords)
    return jax.jit(model.apply)({"params": params}, picture(*size))[0][0]


def close(logits, expected):
    np.testing.assert_allclose(logits, expected, atol=2e-4)


@pytest.mark.parametrize("file", ["v_base", "b_loop", "b_scan", "prefix_opt_target", "prefix_params_img",
                                  "trainstate"])  # fmt: skip
def test_one_model_in_six_layouts(cases, expected, file):
    close(logits_of(cases / f"ckpt_{file}.npz"), expected["ckpt-base"]["logits"])


def test_bfloat16_stored_as_void(cases, expected, tmp_path):
    file = cases / "ckpt_bf16_void.npz"
    close(logits_of(file), expected["ckpt-bf16"]["logits"])
    with np.load(file) as raw:
        bits = raw["embedding/kernel"].view(np.uint16)
    _, params = vit_jax.load(file, param_dtype="bfloat16")
    assert np.array_equal(np.asarray(params["patch_embed"]["kernel"]).view(np.uint16), bits)
    container.write_npz(tmp_path / "out.npz", {"a": np.asarray(params["patch_embed"]["kernel"])})
    assert load_npz(tmp_path / "out.npz")["a"].dtype == np.float32


def test_a_training_state_gives_its_parameters_and_names_the_average(cases, expected, caplog):
    file = cases / "ckpt_trainstate.npz"
    with caplog.at_level(logging.INFO, "vit_jax"):
        close(logits_of(file), expected["ckpt-prefixed"]["logits"])
    assert "'params'" in caplog.text and "'ema'" in caplog.text
    close(logits_of(file, subtree="ema"), expected["ckpt-prefixed"]["logits_ema"])
    close(logits_of(f"{file}:ema"), expected["ckpt-prefixed"]["logits_ema"])


def test_a_text_tower_is_no_image_tower(cases):
    file = cases / "ckpt_prefix_params_img.npz"
    with pytest.raises(UsageError, match=r"'params/txt'.*no image model.*image models there: 'params/img'"):
        vit_jax.load(file, subtree="params/txt")
    with pytest.raises(UsageError, match=r"no subtree 'imag'.*params/img"):
        vit_jax.load(file, subtree="imag")
    vit_jax.load(file, subtree="img")


def test_several_models_without_a_default_are_listed(cases, tmp_path):
    arrays = load_npz(cases / "ckpt_b_loop.npz")
    np.savez(
        tmp_path / "two.npz", **{f"{tower}/{k}": v for tower in ("left", "right") for k, v in arrays.items()}
    )
    with pytest.raises(UsageError, match=r"several models: 'left', 'right'"):
        vit_jax.load(tmp_path / "two.npz")
    vit_jax.load(tmp_path / "two.npz", subtree="left")


def test_a_head_of_another_size_starts_at_zero_and_all_else_must_fit(cases, expected, caplog):
    file = cases / "ckpt_i21k_head.npz"
    with caplog.at_level(logging.INFO, "vit_jax"):
        logits = logits_of(file, num_classes=10, rep_size=0)
    assert np.array_equal(logits, expected["ckpt-i21k-head"]["logits_10way"])
    assert "21843 classes there, 10 here" in caplog.text and "representation layer" in caplog.text
    assert logits_of(file).shape == (21843,)
    with pytest.raises(UsageError, match=r"width is 16, but .* has 8"):
        vit_jax.load(file, num_classes=10, rep_size=0, width=16)
    with pytest.raises(UsageError, match=r"pre_logits/kernel \[8, 12\]|pre_logits/kernel: \[8, 8\]"):
        vit_jax.load(file, num_classes=10, rep_size=12)


def test_rows_of_a_position_table(cases, expected):
    for name, rows in load_npz(cases / "posembed_lengths.npz").items():
        side, prefix = expected["posembed-lengths"][name]
        has_class = {"prefix_counts": (1, 0), "asked": None, "class_row": None, "origin": name}
        assert posemb.grid_of_rows(rows.shape[1], **has_class) == ((side, side), prefix)


def test_rows_that_mean_nothing_or_two_things_are_refused():
    keywords = {"asked": None, "class_row": None, "origin": "x.npz"}
    with pytest.raises(UsageError, match=r"195 rows"):
        posemb.grid_of_rows(195, prefix_counts=(1, 0), **keywords)
    with pytest.raises(UsageError, match=r"197 rows"):
        posemb.grid_of_rows(197, prefix_counts=(0,), **keywords)
    keywords["asked"] = (5, 10)
    with pytest.raises(UsageError, match=r"5x10 patches and 0 before them or 7x7 patches and 1"):
        posemb.grid_of_rows(50, prefix_counts=(2, 1, 0), **keywords)
    assert posemb.grid_of_rows(50, prefix_counts=(2, 1, 0), **{**keywords, "class_row": True}) == ((7, 7), 1)


def test_a_square_table_serves_images_that_are_not(cases, expected, caplog):
    wanted = expected["nonsquare-224x448"]
    with caplog.at_level(logging.WARNING, "vit_jax"):
        close(logits_of(cases / "ckpt_v_base.npz", (224, 448)), wanted["logits_224x448"])
    assert "resized from 14x14 to 14x28 (zoom)" in caplog.text
    close(logits_of(cases / "ckpt_v_base.npz", (448, 224)), wanted["logits_448x224"])
    with pytest.raises(UsageError, match=r"height 500 is not a multiple of the patch size 16"):
        vit_jax.load(cases / "ckpt_v_base.npz", image_size=500)


def test_group_norm_of_four_axes(cases):
    arrays = load_npz(cases / "ckpt_gn_4d.npz")
    shapes = {
        "backbone/root/conv/kernel": (7, 7, 3, 8),
        "backbone/root/norm/scale": (8,),
        "backbone/root/norm/bias": (8,),
    }
    rows = resnet_names.rows("backbone/", "unit{u}")
    assert table.read(arrays, shapes, rows, origin="stem")["backbone/root/norm/scale"].shape == (8,)
    wrong = {**arrays, "gn_root/scale": arrays["gn_root/scale"].reshape(1, 2, 1, 4)}
    with pytest.raises(
        UsageError, match=r"gn_root/scale \[1, 2, 1, 4\]: doesn't fit backbone/root/norm/scale \[8\]"
    ):
        table.read(wrong, shapes, rows, origin="stem")


def test_pickled_objects_are_never_read(tmp_path):
    np.savez(tmp_path / "evil.npz", good=np.zeros(3), bad=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UsageError, match=r"evil.npz holds pickled objects \(at 'bad'\)"):
        vit_jax.load(tmp_path / "evil.npz")
    (tmp_path / "model.pth").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(UsageError, match=r"pickled PyTorch file.*safetensors"):
        vit_jax.load(tmp_path / "model.pth")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("file", ["cases/ckpt_v_base.npz", "timm/token.safetensors"])
def test_a_cut_off_download_says_so(golden, tmp_path, file, share):
    content = (golden / file).read_bytes()
    cut = tmp_path / file.split("/")[1]
    cut.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UsageError, match=f"{cut.name}.*(cut off|damaged)"):
        vit_jax.load(cut, num_heads=3)


def test_a_flipped_bit_in_an_npz_is_noticed(cases, tmp_path):
    content = bytearray((cases / "ckpt_v_base.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "flipped.npz").write_bytes(content)
    with pytest.raises(UsageError, match=r"can't read .* of .*flipped.npz"):
        vit_jax.load(tmp_path / "flipped.npz")


def test_missing_and_extra_arrays_are_a_short_table(cases, tmp_path):
    arrays = load_npz(cases / "ckpt_v_base.npz")
    del arrays["Transformer/encoder_norm/bias"]
    arrays["Transformer/encoderblock_1/Adapter/kernel"] = np.zeros((8, 8))
    arrays["embedding/bias"] = np.zeros(9)
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(UsageError) as caught:
        vit_jax.load(tmp_path / "odd.npz")
    assert "3 arrays differ" in str(caught.value).splitlines()[0]
    for line in ("Transformer/encoder_norm/bias: missing; becomes encoder/norm/bias [8]",
                 "Transformer/encoderblock_1/Adapter/kernel [8, 8]: not in the model",
                 "embedding/bias [9]: doesn't fit patch_embed/bias [8]"):  # fmt: skip
        assert line in caught.value.details


def test_what_is_no_checkpoint_of_ours(tmp_path, cases):
    np.savez(tmp_path / "other.npz", **{"lstm/kernel": np.zeros((2, 2))})
    with pytest.raises(UsageError, match=r"no image model that is known: its names start with lstm"):
        vit_jax.load(tmp_path / "other.npz")
    with pytest.raises(UsageError, match=r"no such file or folder: 'nowhere.npz'"):
        vit_jax.load("nowhere.npz")
    with pytest.raises(UsageError, match=r"download the file"):
        vit_jax.load("https://example.org/B_16.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \.safetensors or \.npz file"):
        vit_jax.load(tmp_path / "empty")
    with pytest.raises(UsageError, match=r"'num_hedas'.*num_heads"):
        vit_jax.load(cases / "ckpt_v_base.npz", num_hedas=3)


def test_timm_files_do_not_tell_their_heads(golden):
    with pytest.raises(UsageError, match=r"number of heads \(width 24, depth 2, MLP 48\).*num_heads="):
        vit_jax.load(golden / "timm/token.safetensors")


@pytest.mark.parametrize("posemb_cls", [False, True])
def test_the_class_tokens_row_may_be_moved(golden, posemb_cls):
    """Folded into the token or given a row of zeros, the outputs stay."""
    for file in ("vt/token.npz", "bv/tok_learn.npz"):
        model, params = vit_jax.load(golden / file)
        other, moved = vit_jax.load(golden / file, posemb_cls=posemb_cls)
        images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
        assert other.posemb_cls is posemb_cls
        a, b = (jax.jit(m.apply)({"params": p}, images)[0] for m, p in ((model, params), (other, moved)))
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_load_gives_what_was_asked_for(golden):
    model, params = vit_jax.load(golden / "vt/token.npz", dtype="bfloat16", num_classes=0)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"bfloat16"} and "head" not in params
    assert create_model("B/16", num_classes=3, image_size=32).num_classes == 3 and model.num_classes == 0
    _, params = vit_jax.load(golden / "vt/token.npz", dtype="bfloat16", param_dtype="float32")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}


@pytest.mark.parametrize(
    "keywords",
    [
        {"image_size": "32"}, {"image_size": (32,)}, {"image_size": (32, 32, 3)}, {"image_size": 32.0},
        {"dtype": 3}, {"param_dtype": int}, {"param_dtype": "bf16"}, {"posemb_resize": "foo"}, {"subtree": 3},
    ],
)  # fmt: skip
def test_keywords_of_the_wrong_kind(golden, keywords):
    name = next(iter(keywords)).removeprefix("param_")
    with pytest.raises(UsageError, match=name):
        vit_jax.load(golden / "vt/token.npz", **keywords)


def test_integers_of_any_kind_will_do(golden):
    model, _ = vit_jax.load(golden / "vt/token.npz", image_size=np.int64(64), num_classes=np.int64(3))
    assert model.image_size == (64, 64) and type(model.image_size[0]) is int and model.num_classes == 3
