"""Images that are there twice: exactly, nearly, and across splits."""

import json

import cv2
import numpy as np
import pytest

from tests.preparing.pictures import run
from vit_jax.errors import UsageError
from vit_jax.preparing.duplicates import Image, difference_hash, miniature, near_pairs


def _photo(seed: int) -> np.ndarray:
    """Smooth colours, as in a photograph, uint8 [64, 80, 3]."""
    small = np.random.default_rng(seed).integers(0, 256, (7, 8, 3), dtype=np.uint8)
    return cv2.resize(small, (80, 64), interpolation=cv2.INTER_CUBIC)


def test_the_hash_alone_is_not_enough():
    """Two pictures of equal brightness in other colours: the hash takes one for the other."""
    gray = cv2.cvtColor(_photo(5), cv2.COLOR_RGB2GRAY)
    plain = np.repeat(gray[:, :, None] // 2 + 60, 3, axis=2)
    tinted = plain.copy()
    tinted[:, :40, 0] += 50  # red up and green down, by what keeps the gray
    tinted[:, :40, 1] -= 25
    one, other = (
        Image("train", "n", 0, b"", difference_hash(image), miniature(image)) for image in (plain, tinted)
    )
    apart = np.bitwise_count(np.frombuffer(one.bits, np.uint8) ^ np.frombuffer(other.bits, np.uint8)).sum()
    assert apart <= 8
    assert one.like(one) and not one.like(other)


def _write(path, image, *options):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image, options)


def test_report(tmp_path, capsys):
    root = tmp_path / "in"
    for seed in range(8):
        _write(root / f"train/{'ab'[seed % 2]}/{seed}.png", _photo(seed))
    _write(root / "train/b/copy_of_0.bmp", _photo(0))  # the same pixels in another file, of another class
    _write(root / "test/a/copy_of_2.png", _photo(2))
    _write(root / "test/b/like_3.jpg", cv2.resize(_photo(3), (40, 32)), cv2.IMWRITE_JPEG_QUALITY, 60)
    _write(root / "test/b/new.png", _photo(99))
    _write(root / "test/b/other_colours.png", np.roll(_photo(4), 1, axis=2))
    for i in range(2):
        _write(root / f"train/a/flat{i}.png", np.full((8, 8 + i, 3), 9, np.uint8))
    assert run(root, tmp_path / "out", "--find-duplicates", "--shards=2") == 0
    found = json.loads((tmp_path / "out/duplicates.json").read_text())
    names = [sorted(image["name"] for image in group) for group in found["exact"]]
    assert sorted(names) == [
        ["test/a/copy_of_2.png", "train/a/2.png"],
        ["train/a/0.png", "train/b/copy_of_0.bmp"],
    ]
    near = [sorted(image["name"] for image in group) for group in found["near"]]
    assert near == [["test/b/like_3.jpg", "train/b/3.png"]]
    assert found["summary"]["exact"] == {
        "groups": 2, "images": 4, "other_label": 1, "leaks": {"test in train": 1}
    }  # fmt: skip
    printed = capsys.readouterr().out
    assert "exact: 1 images of test have the pixels of one of train" in printed
    assert "near: 1 images of test differ in at most 8 of 128 bits from one of train" in printed
    # The report is no part of the data set, and can be had of one that is there.
    assert run("--verify", "--find-duplicates", "--near-bits=0", tmp_path / "out") == 0
    with pytest.raises(UsageError, match="--near-bits=17"):
        run("--find-duplicates", "--near-bits=17", tmp_path / "out")


def test_near_pairs_are_all_found():
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 256, (300, 16), dtype=np.uint8)
    for i in range(100):  # pairs that differ in 0 to 12 chosen bits
        bits = np.unpackbits(hashes[i])
        bits[rng.choice(128, i % 13, replace=False)] ^= 1
        hashes[100 + i] = np.packbits(bits)
    apart = np.bitwise_count(hashes[:, None] ^ hashes[None]).sum(-1)
    for distance in (0, 3, 8):
        wanted = {(i, j) for i, j in zip(*np.nonzero(apart <= distance), strict=True) if i < j}
        assert set(near_pairs(hashes, distance)) == wanted
        assert len(wanted) >= 8 * (distance + 1) - 1


def test_hash_of_flat_and_of_gray_images():
    assert difference_hash(np.full((9, 9, 3), 7, np.uint8)) is None
    gray = _photo(1)[:, :, :1]
    assert difference_hash(gray) == difference_hash(np.repeat(gray, 3, axis=2))
