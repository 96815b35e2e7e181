"""The visualize command: its files, its numbers, what is left out and what is refused."""

import json
import logging
import shutil

import cv2
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import saved_run
from vit_jax import cli, create_model, figures, pretrained, views, visualize
from vit_jax.data.sources import open_source
from vit_jax.errors import RunFailed, UsageError
from vit_jax.trained import Trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "digits"
    saved_run.save(path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two digits, one with a name that is no word, in a folder."""
    folder = tmp_path_factory.mktemp("photos")
    source = open_source("digits@test", default_split="test")
    for i, name in enumerate(("a $x_1$ & é.png", "b.png")):
        cv2.imencode(".png", source[i].image)[1].tofile(folder / name)
    return folder


def size_of(path):
    return cv2.imread(str(path)).shape[:2]


def test_files_and_numbers(run, photos, tmp_path, capsys):
    words = [f"--checkpoint={run}", f"--image={photos}", f"--output={tmp_path / 'new' / 'folder'}"]
    assert visualize.main(words) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    output = tmp_path / "new" / "folder"
    names = {
        "filters.png", "positions.png", "attention_distance.png", "rollout_1_a_x_1_.png", "rollout_2_b.png",
        "numbers.npz",
    }  # fmt: skip
    assert {p.name for p in output.iterdir()} == names
    assert sorted(found["files"]) == sorted(str(output / name) for name in names)
    assert found["left_out"] == {} and found["rollout_of"] == "class token"
    for name in names - {"numbers.npz"}:
        assert min(size_of(output / name)) > 200

    with np.load(output / "numbers.npz") as file:
        numbers = dict(file)
    assert [p.rsplit("/", 1)[1] for p in numbers["images"]] == ["a $x_1$ & é.png", "b.png"]
    assert numbers["filters"].shape == (28, 4, 4, 3) and numbers["filters_variance"].shape == (28,)
    assert numbers["position_similarity"].shape == (2, 2, 2, 2)
    model, params = pretrained.load(str(run))
    pixels = np.stack([cv2.imdecode(np.fromfile(p, np.uint8), 1) for p in numbers["images"]]) / 127.5 - 1
    _, aux = model.apply({"params": params}, pixels.astype(np.float32), capture_attention=True)
    attention = np.asarray(aux["attention"])
    np.testing.assert_allclose(
        numbers["rollout"], views.rollout(attention)[-1][:, 0, 1:].reshape(2, 2, 2), atol=1e-5
    )
    for name, renormalise in (("attention_distance", True), ("attention_distance_raw", False)):
        expected = views.mean_distance(attention, (2, 2), 4, renormalise=renormalise).transpose(1, 0, 2)
        np.testing.assert_allclose(numbers[name], expected, rtol=1e-4)


def test_an_unreadable_image_is_named_and_the_others_are_drawn(run, photos, tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"nothing")
    words = [f"--checkpoint={run}", f"--image={tmp_path / 'bad.png'}", f"--image={photos / 'b.png'}"]
    with pytest.raises(RunFailed, match="1 of 2 images"):
        visualize.main([*words, f"--output={tmp_path / 'out'}"])
    shown = capsys.readouterr()
    assert "bad.png: " in shown.err
    assert "rollout_1_b.png" in shown.out


@pytest.fixture
def headless(golden, tmp_path):
    """A published encoder without classes, 4x4 patches of 8 pixels."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    source = golden / "hf" / "dinov2"
    weights = load_file(source / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "classifier" not in k}, folder / "model.safetensors")
    for file in source.glob("*.json"):
        shutil.copy(file, folder)
    return folder


def test_weights_without_classes_at_another_size(headless, photos, tmp_path, capsys):
    words = [f"--checkpoint={headless}", f"--image={photos / 'b.png'}", f"--output={tmp_path}"]
    assert visualize.main([*words, "--field=image_size=(40, 24)"]) == 0
    with np.load(tmp_path / "numbers.npz") as file:
        assert file["rollout"].shape == (1, 5, 3) and file["position_similarity"].shape == (5, 3, 5, 3)
    assert json.loads(capsys.readouterr().out)["left_out"] == {}


def test_without_images_the_parameters_alone_are_drawn(headless, tmp_path, capsys, caplog):
    with caplog.at_level(logging.WARNING, "vit_jax"):
        assert visualize.main([f"--checkpoint={headless}", f"--output={tmp_path}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["left_out"]) == {"attention_distance", "rollout"}
    assert "rollout left out: no image was given" in caplog.text
    with np.load(tmp_path / "numbers.npz") as file:
        assert set(file) == {"filters", "filters_variance", "position_similarity"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--checkpoint={run}", "--output={tmp}", "photo.jpg"], "unexpected 'photo.jpg'"),
        (["--checkpoint={run}", "--output={tmp}", "--subtre=ema"], "unknown flag --subtre"),
        (["--checkpoint={run}", "--output={tmp}", "--subtree=ema"], "ema"),
        (["--output={tmp}"], "--checkpoint"),
        (["--checkpoint={run}", "--output={run}/config.json"], "can't write to .*config.json"),
        (["--checkpoint={tmp}/none", "--output={tmp}"], "none"),
    ],
)
def test_refusals(run, tmp_path, words, message):
    with pytest.raises(UsageError, match=message):
        visualize.main([w.format(run=run, tmp=tmp_path) for w in words])


def test_a_mixer_is_refused_before_the_folder_is_made(tmp_path, monkeypatch):
    fields = {"width": 8, "depth": 1, "tokens_mlp_dim": 4, "channels_mlp_dim": 4}
    model = create_model("Mixer-B/16", num_classes=3, image_size=32, **fields)
    read = Trained(model, {}, None, None, None, None, "softmax_xent", 1)
    monkeypatch.setattr(visualize.trained, "read", lambda *_, **__: read)
    with pytest.raises(UsageError, match="a Mixer has no attention"):
        visualize.main(["--checkpoint=x", f"--output={tmp_path / 'out'}"])
    assert not (tmp_path / "out").exists()


def test_it_is_a_command():
    assert cli.COMMANDS["visualize"] == "vit_jax.visualize"


# ---- figures


def test_large_and_oblong_grids_stay_within_one_picture():
    rng = np.random.default_rng(0)
    for grid in ((37, 37), (3, 20), (20, 3)):
        drawn = figures.png(
            figures.draw_positions(views.position_similarity(rng.normal(size=(np.prod(grid), 8)), grid))
        )
        height, width = cv2.imdecode(np.frombuffer(drawn, np.uint8), 1).shape[:2]
        assert 200 < height < 1500 and width < 1000


def test_the_mask_lies_over_its_patches_and_is_not_ruled_by_one_of_them():
    rollout = np.zeros((2, 3))
    rollout[1, 2] = 0.2
    mask = figures.attention_mask(rollout, (20, 30))
    assert mask.shape == (20, 30) and mask.max() == 1 and mask.min() == 0
    assert mask[15, 25] > 0.9 and not mask[:, :14].any()
    rollout = np.full((10, 10), 0.01)
    rollout[2, 2] = 1  # one patch draws nearly everything: the others can still be told apart
    rollout[5:] = 0.02
    mask = figures.attention_mask(rollout, (100, 100))
    assert mask[25, 25] > 0.9 and mask[75, 75] == pytest.approx(1)
    assert mask[5, 75] == pytest.approx(0.5)
    assert not figures.attention_mask(np.zeros((2, 2)), (4, 4)).any()


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_any_number_of_channels_can_be_drawn(channels):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (16, 40, channels), np.uint8)
    assert figures.png(figures.draw_rollout(image, rng.random((2, 5)), title="a" * 200 + "\n$b$"))
    kernel = rng.normal(size=(4, 4, channels, 8))
    assert figures.png(figures.draw_filters(views.embedding_filters(kernel)))
