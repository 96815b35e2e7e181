"""CIFAR's binary files, written here by the published layout: plane after plane, fine label last."""

import numpy as np
import pytest

from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError

NAMES = {"cifar10": ("batches.meta.txt", 10), "cifar100": ("fine_label_names.txt", 100)}
FILES = {
    "cifar10": {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]},
    "cifar100": {"train": ["train.bin"], "test": ["test.bin"]},
}


def write(folder, kind, per_file=4):
    """Random images and labels by split, and their files."""
    rng, (names, count) = np.random.default_rng(0), NAMES[kind]
    (folder / names).write_text("\n".join(f"class {i:03}" for i in range(count)) + "\n\n")
    written = {}
    for split, files in FILES[kind].items():
        parts = []
        for name in files:
            images = rng.integers(0, 256, (per_file, 32, 32, 3), np.uint8)
            labels = rng.integers(0, count, per_file).astype(np.uint8)
            with (folder / name).open("wb") as file:
                for image, label in zip(images, labels, strict=True):
                    file.write((b"\x07" if kind == "cifar100" else b"") + bytes([label]))
                    for channel in range(3):
                        file.write(image[..., channel].tobytes())
            parts.append((images, labels))
        written[split] = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    return written


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
def test_images_labels_and_names(tmp_path, kind):
    for split, (images, labels) in write(tmp_path, kind).items():
        source = open_source(f"{kind}:{tmp_path}@{split}", default_split="train")
        assert len(source) == len(images) and len(source.classes) == NAMES[kind][1]
        assert np.array_equal(source.labels(), labels)
        for i in (0, len(images) - 1):
            assert np.array_equal(source[i].image, images[i]) and source[i].label == labels[i]
            assert source.name(i) == f"{kind}:{tmp_path}/{split}/{i}"
    other = tuple(reversed(source.classes))
    mapped = open_source(f"{kind}:{tmp_path}@test", default_split="train", classes=other)
    assert np.array_equal(mapped.labels(), NAMES[kind][1] - 1 - labels.astype(int))


def test_what_is_not_the_binary_version_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"lacks data_batch_1.bin.*the Python version is pickled"):
        open_source(f"cifar10:{tmp_path}", default_split="train")
    write(tmp_path, "cifar10")
    whole = (tmp_path / "test_batch.bin").read_bytes()
    (tmp_path / "test_batch.bin").write_bytes(whole[:-1])
    with pytest.raises(UsageError, match="no multiple of 3073"):
        open_source(f"cifar10:{tmp_path}@test", default_split="train")
    (tmp_path / "test_batch.bin").write_bytes(b"\xff" + whole[1:])
    with pytest.raises(UsageError, match="holds the label 255"):
        open_source(f"cifar10:{tmp_path}@test", default_split="train")
    (tmp_path / "batches.meta.txt").write_text("one\n")
    with pytest.raises(UsageError, match="names 1 classes, not 10"):
        open_source(f"cifar10:{tmp_path}@test", default_split="train")
