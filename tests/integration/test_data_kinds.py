"""Gray, multi-label and one-channel data, from files to the end of a run."""

import cv2
import numpy as np
import pytest

from tests.data.odd_files import unpack
from tests.integration.command import metrics, state
from vit_jax.data.arrayrecord import write_manifest, write_split
from vit_jax.data.source import Example

COMMON = {
    "total_steps": 12,
    "warmup_steps": 1,
    "global_batch": 8,
    "checkpoint.every_steps": None,
    "eval.every_steps": None,
    "log_every_steps": 6,
    "mixup_alpha": 0.0,
    "data.test": "test",
}


def _write(root, classes, examples, num_test):
    """An ArrayRecord data set of two splits."""
    parts = {"train": examples[num_test:], "test": examples[:num_test]}
    entries = {
        name: write_split(str(root), name, part, num_classes=len(classes), num_shards=2)
        for name, part in parts.items()
    }
    write_manifest(str(root), classes, entries)
    return f"arrayrecord:{root}"


@pytest.mark.slow
@pytest.mark.parametrize(("decode", "channels"), [("decode", 3), ("decode(channels=1)", 1)])
def test_gray_arrays_train_a_model_of_three_channels_or_one(command, golden, tmp_path, decode, channels):
    with np.load(golden / "cases" / "gray28.npz") as arrays:
        images, labels = arrays["image"], arrays["label"]
    assert images.shape == (40, 28, 28, 1)
    examples = [
        Example(image, int(label), f"gray/{i}")
        for i, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    spec = _write(tmp_path / "gray", ["top", "upper", "lower", "bottom"], examples, 8)
    preprocess = f"{decode}|value_range(-1, 1)"
    sets = COMMON | {
        "data.train": spec,
        "data.preprocess_train": preprocess,
        "data.preprocess_eval": preprocess,
        "model.image_size": 28,
    }
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    assert metrics(tmp_path / "run")[12]["eval/test/count"] == 8
    assert state(tmp_path / "run")["params/patch_embed/kernel"].shape == (4, 4, channels, 16)
    assert f"images 28x28x{channels}" in done.err


@pytest.mark.slow
def test_multi_label_data_with_the_sigmoid_loss(command, tmp_path):
    """Each image shows any of three stripes; one of each split shows none."""
    rng = np.random.default_rng(0)
    examples = []
    for i in range(60):
        label = np.zeros(3, np.float32) if i in (0, 30) else rng.integers(0, 2, 3).astype(np.float32)
        image = rng.integers(0, 30, (8, 8, 3)).astype(np.uint8)
        image[:, :, 0] += (np.repeat(label, 3)[:8] * 200).astype(np.uint8)[None, :]
        examples.append(Example(image, label, f"stripes/{i}"))
    spec = _write(tmp_path / "stripes", ["left", "middle", "right"], examples, 20)
    sets = COMMON | {
        "data.train": spec,
        "loss": "sigmoid_xent",
        "total_steps": 60,
        "log_every_steps": 20,
        "optim.lr": 0.02,
        "model.dropout": 0.0,
    }
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "run")
    # At first the logits are 0: ln 2 for each class, summed.
    assert lines[1]["train/loss"] == pytest.approx(3 * np.log(2), rel=1e-5)
    assert lines[60]["train/loss"] < 1.0
    final = lines[60]
    labelled = sum(bool(example.label.any()) for example in examples[:20])
    assert labelled < 20
    assert final["eval/test/count"] == 20
    assert final["eval/test/accuracy"] == final["eval/test/correct"] / labelled
    assert final["eval/test/accuracy"] > 0.8


def test_a_folder_of_gray_files_with_one_channel(command, tmp_path):
    folder = unpack("gray_folder", tmp_path)
    preprocess = "decode(channels=1)|resize(8)|value_range(-1, 1)"
    sets = COMMON | {
        "data.train": f"folder:{folder}",
        "data.test": "",
        "data.val": "train",
        "data.preprocess_train": preprocess,
        "data.preprocess_eval": preprocess,
        "global_batch": 4,
    }
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    assert state(tmp_path / "run")["params/patch_embed/kernel"].shape == (4, 4, 1, 16)
    assert (tmp_path / "run" / "classes.txt").read_text() == "c0\nc1\nc2\n"
    assert metrics(tmp_path / "run")[12]["eval/val/count"] == 12
    assert done.result.startswith("done step=12 eval/val/accuracy=")


@pytest.mark.slow
def test_images_that_are_not_square(command, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        folder = tmp_path / "wide" / "train" / name
        folder.mkdir(parents=True)
        for i in range(8):
            assert cv2.imwrite(str(folder / f"{i}.png"), rng.integers(0, 256, (8, 16, 3)).astype(np.uint8))
    sets = COMMON | {
        "data.train": f"folder:{tmp_path}/wide",
        "data.test": "train",
        "model.image_size": (8, 16),
        "log_every_steps": 1,
    }
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    assert state(tmp_path / "run")["params/posemb"].shape == (1, 8, 16)
