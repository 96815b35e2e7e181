"""A run's weights in every format, by the command, and back."""

import json

import jax
import numpy as np
import pytest

import vit_jax
from tests import saved_run
from tests.golden_layouts import load_npz
from vit_jax import cli, convert, export
from vit_jax.errors import UsageError
from vit_jax.export import onnx_file
from vit_jax.paths import named_leaves

FORMATS = ("npz", "big_vision", "timm", "hf", "onnx", "stablehlo")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of digits with random parameters; its images are 8x8 pixels and normalised to -1..1."""
    folder = tmp_path_factory.mktemp("run")
    saved_run.save(folder)
    return folder


@pytest.fixture
def called(capfd):
    """Calls the command in this process: (exit code, stdout, stderr)."""

    def call(*argv):
        with pytest.raises(SystemExit) as end:
            cli.run(convert.main, [str(a) for a in argv])
        out, err = capfd.readouterr()
        return end.value.code, out, err

    return call


@pytest.mark.parametrize("to", FORMATS)
def test_a_run_in_every_format_gives_its_logits(run, called, tmp_path, to):
    made = tmp_path / ("out" + {"npz": ".npz", "big_vision": ".npz", "onnx": ".onnx"}.get(to, ""))
    code, out, err = called(run, made, f"--to={to}")
    assert code == 0, err
    assert out.startswith(f"wrote {made} ({to}): 0.02 M parameters; logits equal those of {run} to ")
    model, params = vit_jax.load(run)
    images = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype(np.float32)
    ours = np.asarray(jax.jit(model.apply)({"params": params}, images)[0])
    if to == "onnx":
        theirs = export.read_back_logits_onnx(made, images)
    elif to == "stablehlo":
        theirs = export.load_stablehlo(made)(images)
    else:
        again, read = vit_jax.load(made)
        assert {k: v.tobytes() for k, v in named_leaves(read).items()} == {
            k: v.tobytes() for k, v in named_leaves(params).items()
        }
        theirs = jax.jit(again.apply)({"params": read}, images)[0]
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_class_names_and_normalisation_travel_where_they_can(run, called, tmp_path):
    assert called(run, tmp_path / "hf", "--to=hf")[0] == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["id2label"]["3"] == "3" and config["hidden_act"] == "gelu_pytorch_tanh"
    processor = json.loads((tmp_path / "hf" / "preprocessor_config.json").read_text())
    assert processor["image_mean"] == [0.5] * 3 and processor["size"] == {"height": 8, "width": 8}
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"zahl {i}" for i in range(10)) + "\n")
    assert called(run, tmp_path / "timm", "--to=timm", f"--classes={names}")[0] == 0
    config = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert config["label_names"][3] == "zahl 3"
    err = called(run, tmp_path / "x.npz", "--to=npz", f"--classes={names}")[2]
    assert "npz files hold no class names" in err


def test_foreign_weights_to_another_format_with_other_head_and_size(golden, called, tmp_path):
    code, out, err = called(
        golden / "timm/token.safetensors", tmp_path / "out.onnx", "--to=onnx", "--field=num_heads=3",
        "--image-size=48x32", "--num-classes=3",
    )  # fmt: skip
    assert code == 0, err
    assert export.read_back_logits_onnx(
        tmp_path / "out.onnx", np.zeros((2, 48, 32, 3), np.float32)
    ).shape == (2, 3)
    assert (
        "resized from 4x4 to 6x4 (bicubic_antialias)" in err and "replaced by zeros" in err and "0 abs" in out
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{run}", "{tmp}/x", "--to=tmim"], "unknown format --to=tmim (did you mean 'timm'?"),
        (["{run}", "{tmp}/there", "--to=hf"], "there exists already"),
        (["{run}", "{tmp}/no/where.npz", "--to=npz"], "no folder"),
        (["{tmp}/nothing.npz", "{tmp}/x.npz", "--to=npz"], "no such file or folder"),
        (["{run}", "{tmp}/x.npz", "--to=npz", "--subtree=ema"], "has no 'ema'"),
        (["{golden}/timm/token.safetensors", "{tmp}/x.npz", "--to=npz", "--field=num_heads=3"], "gelu='erf'"),
        (["{golden}/vt/gap.npz", "{tmp}/x", "--to=hf"], "no pooling 'gap'"),
        (["{run}", "{tmp}/x.bin", "--to=npz"], "is to be an .npz file (name it x.bin.npz)"),
        (["{run}", "{tmp}/x", "--to=hf", "--image-size=8x"], "--image-size=8x"),
        (["{run}", "{tmp}/x", "--to=hf", "--field=gelu"], "--field=NAME=VALUE"),
    ],
)  # fmt: skip
def test_refused_in_one_line_with_nothing_left(run, golden, called, tmp_path, argv, message):
    (tmp_path / "there").mkdir()
    code, out, err = called(*(a.format(run=run, tmp=tmp_path, golden=golden) for a in argv))
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("error: ") and message in last
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_a_result_that_differs_is_not_left_behind(run, called, tmp_path, monkeypatch):
    monkeypatch.setattr(
        export, "read_back_logits_onnx", lambda path, images: np.ones((len(images), 10), np.float32)
    )
    code, _, err = called(run, tmp_path / "x.onnx", "--to=onnx")
    assert code == 1 and "nothing was written" in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_overwrite_replaces_only_when_asked(run, called, tmp_path):
    target = tmp_path / "x.npz"
    target.write_text("old")
    assert called(run, target, "--to=npz")[0] == 2 and target.read_text() == "old"
    assert called(run, target, "--to=npz", "--overwrite")[0] == 0
    assert "cls" in load_npz(target) and [p.name for p in tmp_path.iterdir()] == ["x.npz"]


def test_fixed_positions_and_an_untrained_head(golden, called, tmp_path):
    sincos = golden / "bv/gap_sincos2d.npz"
    for to in ("npz", "timm", "big_vision"):
        code, _, err = called(
            sincos, tmp_path / f"{to}.npz", f"--to={to}", "--field=posemb=sincos2d", "--image-size=32"
        )
        assert code == 0, err
    assert vit_jax.load(tmp_path / "npz.npz")[0].posemb == "learn"
    # A mean over patches beside a class token: an .npz would be read as pooled by the token, whatever the head.
    told = ("--field=num_heads=3", "--field=pool=gap", "--field=gelu=tanh", "--num-classes=5")
    code, _, err = called(golden / "timm/avg_nofcnorm.safetensors", tmp_path / "x.npz", "--to=npz", *told)
    assert code == 2 and "no place for pool='gap'" in err and not (tmp_path / "x.npz").exists()


def test_a_run_or_any_folder_of_yours_is_never_replaced(run, called, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("precious")
    for target in (run, tmp_path / "photos"):
        code, _, err = called(run, target, "--to=hf", "--overwrite")
        assert code == 2 and "a folder that no conversion made" in err
    assert (run / "checkpoints").is_dir() and (tmp_path / "photos" / "cat.jpg").exists()
    assert called(run, tmp_path / "hf", "--to=hf")[0] == 0
    assert called(run, tmp_path / "hf", "--to=hf", "--overwrite")[0] == 0


def test_weights_that_are_not_finite_say_so(golden, called, tmp_path):
    arrays = load_npz(golden / "vt/token.npz")
    np.savez(tmp_path / "nan.npz", **{**arrays, "head/bias": arrays["head/bias"] * np.nan})
    code, _, err = called(tmp_path / "nan.npz", tmp_path / "out.npz", "--to=npz")
    assert code == 1 and "logits that aren't finite" in err and not (tmp_path / "out.npz").exists()


def test_a_run_whose_name_has_an_at_sign(run, tmp_path):
    (tmp_path / "run@v2").symlink_to(run)
    assert vit_jax.load(f"{tmp_path}/run@v2")[0].width == vit_jax.load(f"{tmp_path}/run@v2@0")[0].width
    with pytest.raises(UsageError, match=r"has no subtree 'opt_state'"):
        vit_jax.load(run, subtree="opt_state")


def test_a_large_program_keeps_its_weights_beside_it(run, called, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "_LARGEST_SINGLE_FILE", 1000)
    code, _, err = called(run, tmp_path / "x.onnx", "--to=onnx")
    assert code == 0, err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.onnx", "x.onnx.data"]
    logits = export.read_back_logits_onnx(tmp_path / "x.onnx", np.zeros((1, 8, 8, 3), np.float32))
    assert called(run, tmp_path / "x.onnx", "--to=onnx")[0] == 2
    monkeypatch.undo()
    assert called(run, tmp_path / "x.onnx", "--to=onnx", "--overwrite")[0] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["x.onnx"]  # the weights of before are gone with it
    again = export.read_back_logits_onnx(tmp_path / "x.onnx", np.zeros((1, 8, 8, 3), np.float32))
    np.testing.assert_allclose(again, logits, atol=1e-6)
