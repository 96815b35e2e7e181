"""Classes from a table: one a picture, or any number, as training with a sigmoid reads them."""

import json

import numpy as np
import pytest

from tests.preparing.pictures import picture, read, run
from vit_jax.errors import UsageError


@pytest.fixture
def photos(tmp_path):
    """Three pictures in no class folders."""
    (tmp_path / "in/more").mkdir(parents=True)
    for i, name in enumerate(("a.jpg", "b.jpg", "more/c.jpg")):
        (tmp_path / "in" / name).write_bytes(picture(i))
    return tmp_path / "in"


def _table(tmp_path, text: str, name: str = "labels.csv") -> str:
    (tmp_path / name).write_text(text)
    return f"--labels={tmp_path / name}"


def test_one_class_each(photos, tmp_path):
    run(photos, tmp_path / "out", _table(tmp_path, "path,class\nmore/c.jpg,dog\na.jpg,cat\n./b.jpg,dog\n"))
    made = read(tmp_path / "out")
    assert made.classes == ("cat", "dog")
    assert [(made[i].name, made[i].label) for i in range(3)] == [
        ("a.jpg", 0),
        ("b.jpg", 1),
        ("more/c.jpg", 1),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", "a.jpg,cat;owl\nb.jpg,\nmore/c.jpg,dog\n"),
        ("l.csv", "image,cat,dog,owl\na.jpg,1,0,1\nb.jpg,0,0,0\nmore/c.jpg,0,1,0\n"),
        ("l.json", json.dumps({"a.jpg": ["owl", "cat"], "b.jpg": [], "more/c.jpg": "dog"})),
    ],
)
def test_label_vectors(photos, tmp_path, name, text):
    run(photos, tmp_path / "out", _table(tmp_path, text, name), "--verify")
    made = read(tmp_path / "out")
    assert made.classes == ("cat", "dog", "owl")
    assert made.multi_label and made[1].label.dtype == np.float32
    np.testing.assert_array_equal(made.labels(), np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], np.float32))
    entry = json.loads((tmp_path / "out/manifest.json").read_text())["splits"]["train"]
    assert entry["class_counts"] == [1, 1, 1]


def test_vectors_on_request_and_numbers(photos, tmp_path):
    labels = _table(tmp_path, json.dumps({"a.jpg": 2, "b.jpg": 0, "more/c.jpg": 2}), "n.json")
    run(photos, tmp_path / "out", labels, "--multi-label")
    made = read(tmp_path / "out")
    assert made.classes == ("0", "1", "2")
    assert made.labels().tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1]]


def test_splits_and_pictures_that_arent_listed(photos, tmp_path, caplog):
    (photos / "train").mkdir()
    (photos / "test").mkdir()
    (photos / "train/1.jpg").write_bytes(picture(7))
    (photos / "test/2.jpg").write_bytes(picture(8))
    run(photos, tmp_path / "out", _table(tmp_path, "train/1.jpg,x\n2.jpg,y\n"))
    assert (read(tmp_path / "out")[0].label, read(tmp_path / "out", "test")[0].label) == (0, 1)
    assert "3 images of folder:" in caplog.text and "left out" in caplog.text


def test_faults(photos, tmp_path):
    for name, text, message in (
        ("l.csv", "a.jpg,x\nz.jpg,y\n", r"names 1 images that folder:.* hasn't, such as z\.jpg"),
        ("l.csv", "a.jpg,x\na.jpg,y\n", r"line 2: a\.jpg is there twice"),
        ("l.csv", "a.jpg,x,y\n", r"line 1 has 3 columns|isn't a path"),
        ("l.csv", "p,x,y\na.jpg,1,2\n", r"line 2 isn't a path and 2 times 0 or 1"),
        ("l.csv", "path,class\n", r"names no image"),
        ("l.json", "[1]", "holds no object"),
        ("l.json", "{", "isn't JSON"),
        ("l.json", '{"a.jpg": 0.5}', r"a\.jpg has the classes 0\.5"),
    ):
        with pytest.raises(UsageError, match=message):
            run(photos, tmp_path / "out", _table(tmp_path, text, name))
    with pytest.raises(UsageError, match=r"gone\.csv can't be read"):
        run(photos, tmp_path / "out", "--labels=gone.csv")
    with pytest.raises(UsageError, match="--multi-label without --labels"):
        run(photos, tmp_path / "out", "--multi-label")
    with pytest.raises(UsageError, match="--labels with digits"):
        run("digits", tmp_path / "out", _table(tmp_path, "a.jpg,x\n"))
