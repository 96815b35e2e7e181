"""IDX files, ArrayRecord folders and TFDS folders: written here, read back."""

import gzip
import json
import pickle
import socket
import struct

import cv2
import numpy as np
import pytest

from vit_jax.data import arrayrecord
from vit_jax.data.decode import BadImage
from vit_jax.data.source import Example
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError

_RNG = np.random.default_rng(5)


def _write_idx(path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    data = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def test_idx(tmp_path):
    images = _RNG.integers(0, 256, (6, 5, 4), dtype=np.uint8)
    labels = np.array([2, 0, 1, 2, 2, 0])
    _write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    _write_idx(tmp_path / "train-labels-idx1-ubyte.gz", labels)
    _write_idx(tmp_path / "t10k-images-idx3-ubyte", images[:2])
    _write_idx(tmp_path / "t10k-labels-idx1-ubyte", labels[:2])
    train = open_source(f"idx:{tmp_path}", default_split="train")
    assert train.classes == ("0", "1", "2")
    assert train.labels().tolist() == labels.tolist()
    for i in range(6):
        assert np.array_equal(train[i].image, images[i][..., None])
        assert train[i].label == labels[i]
    # Classes of the test split are those of train, though it lacks one.
    test = open_source(f"idx:{tmp_path}@test", default_split="train", classes=train.classes)
    assert (len(test), test.classes) == (2, train.classes)


def test_idx_faults(tmp_path):
    with pytest.raises(UsageError, match=r"no IDX files in .*train-images-idx3-ubyte"):
        open_source(f"idx:{tmp_path}", default_split="train")
    _write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 4, 4)))
    _write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(2))
    with pytest.raises(UsageError, match=r"images \[3, 4, 4\], labels \[2\]"):
        open_source(f"idx:{tmp_path}", default_split="train")
    with pytest.raises(UsageError, match=r"no split 'test'.*it has train"):
        open_source(f"idx:{tmp_path}@test", default_split="train")
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"states shape \[3, 4, 4\] but holds 47 bytes"):
        open_source(f"idx:{tmp_path}", default_split="train")
    path.write_bytes(b"GIF89a")
    with pytest.raises(UsageError, match="isn't an IDX file"):
        open_source(f"idx:{tmp_path}", default_split="train")
    path.rename(path.with_suffix(".gz"))
    with pytest.raises(UsageError, match="can't be read"):
        open_source(f"idx:{tmp_path}", default_split="train")


def _write(root, examples, *, classes, num_shards=3, split="train") -> None:
    entry = arrayrecord.write_split(
        str(root), split, examples, num_classes=len(classes), num_shards=num_shards
    )
    arrayrecord.write_manifest(str(root), classes, {split: entry})


def test_arrayrecord_round_trip(tmp_path):
    classes = ["été", "猫", "none"]
    image = _RNG.integers(0, 256, (3, 2, 1), dtype=np.uint8)
    examples = [Example(bytes([i]) * (i + 1), i % 2, f"été/{i}.jpg") for i in range(10)]
    examples[4] = Example(image, 1, "array")
    _write(tmp_path, iter(examples), classes=classes)
    source = open_source(f"arrayrecord:{tmp_path}", default_split="train")
    assert source.classes == tuple(classes)
    assert [source[i].name for i in range(10)] == [e.name for e in examples]
    assert [source[i].label for i in range(10)] == [e.label for e in examples] == source.labels().tolist()
    assert source[7] == examples[7]
    assert np.array_equal(source[4].image, image)
    assert pickle.loads(pickle.dumps(source))[9] == examples[9]
    with pytest.raises(IndexError):
        source[10]
    turned = open_source(f"arrayrecord:{tmp_path}@train[5:]", default_split="train", classes=classes[::-1])
    assert [turned[i].label for i in range(5)] == [1, 2, 1, 2, 1]


def test_arrayrecord_fewer_examples_than_shards(tmp_path, caplog):
    _write(tmp_path, [Example(b"x", 0, "a"), Example(b"y", 0, "b")], classes=["k", "l"], num_shards=5)
    source = open_source(f"arrayrecord:{tmp_path}", default_split="train")
    assert [source[i].name for i in range(2)] == ["a", "b"]
    assert "has no example of class 'l'" in caplog.text


def test_arrayrecord_multi_label(tmp_path):
    labels = np.array([[1, 0, 1], [0, 0, 0]], np.float32)
    _write(tmp_path, [Example(b"x", row, str(i)) for i, row in enumerate(labels)], classes=["a", "b", "c"])
    source = open_source(f"arrayrecord:{tmp_path}", default_split="train")
    assert source.labels().dtype == np.float32
    np.testing.assert_array_equal(source.labels(), labels)
    turned = open_source(f"arrayrecord:{tmp_path}", default_split="train", classes=("c", "x", "b", "a"))
    np.testing.assert_array_equal(turned[0].label, np.array([1, 0, 0, 1], np.float32))


def test_arrayrecord_faults(tmp_path):
    with pytest.raises(UsageError, match=r"has no manifest\.json .*python -m vit_jax\.prepare SOURCE"):
        open_source(f"arrayrecord:{tmp_path}", default_split="train")
    _write(tmp_path, [Example(b"x", 0, str(i)) for i in range(6)], classes=["a"])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["splits"]["train"]["class_counts"] == [6]
    with pytest.raises(UsageError, match=r"no split 'test'.*it has train"):
        open_source(f"arrayrecord:{tmp_path}@test", default_split="train")
    manifest["splits"]["train"]["count"] = 7
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="holds 6 records, its manifest says 7"):
        open_source(f"arrayrecord:{tmp_path}", default_split="train")
    (tmp_path / "train" / "00001-of-00003.array_record").unlink()
    with pytest.raises(UsageError, match=r"lacks the shard .*00001-of-00003"):
        open_source(f"arrayrecord:{tmp_path}", default_split="train")
    (tmp_path / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(UsageError, match="isn't a manifest of"):
        open_source(f"arrayrecord:{tmp_path}", default_split="train")


def test_arrayrecord_names_a_damaged_record(tmp_path):
    examples = [Example(_RNG.bytes(5000), 0, str(i)) for i in range(8)]
    _write(tmp_path, examples, classes=["a"], num_shards=1)
    shard = tmp_path / "train" / "00000-of-00001.array_record"
    data = bytearray(shard.read_bytes())
    data[data.index(examples[3].image) + 2500] ^= 1
    shard.write_bytes(data)
    source = open_source(f"arrayrecord:{tmp_path}", default_split="train")
    with pytest.raises(BadImage, match=r"arrayrecord:.*/train/3: damaged record"):
        source[3]
    assert source[2] == examples[2]
    assert source[4] == examples[4]


@pytest.fixture
def offline(monkeypatch):
    """No socket can be opened."""

    def refuse(*args, **kwargs):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    """A data folder with one set of ten images, prepared as ArrayRecord by tensorflow-datasets."""
    import tensorflow_datasets as tfds

    class TinySet(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.2.0")

        def _info(self):
            names = tfds.features.ClassLabel(names=["cat", "dog"])
            features = {"image": tfds.features.Image(shape=(None, None, 3)), "label": names, "id": np.int64}
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                supervised_keys=("image", "label"),
            )

        def _split_generators(self, _):
            return {"train": self._generate_examples(10), "test": self._generate_examples(4)}

        def _generate_examples(self, count):
            for i in range(count):
                png = cv2.imencode(".png", np.full((4, 5, 3), i, np.uint8))[1].tobytes()
                yield i, {"image": png, "label": i % 2, "id": i}

    folder = tmp_path_factory.mktemp("tfds")
    TinySet(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def test_tfds(tfds_dir, monkeypatch, offline):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_dir))
    source = open_source("tfds:tiny_set", default_split="train")
    assert (len(source), source.classes) == (10, ("cat", "dog"))
    pixels = []
    for i in range(10):
        example = source[i]
        assert example.name == f"tfds:tiny_set/train/{i}"
        pixel = int(cv2.imdecode(np.frombuffer(example.image, np.uint8), cv2.IMREAD_COLOR)[0, 0, 0])
        assert example.label == pixel % 2
        pixels.append(pixel)
    assert sorted(pixels) == list(range(10))
    part = open_source("tfds:tiny_set:1.2.0@train[:50%]", default_split="train", classes=("dog", "x", "cat"))
    assert [part[i].label for i in range(5)] == [2 if p % 2 == 0 else 0 for p in pixels[:5]]
    assert pickle.loads(pickle.dumps(source))[3] == source[3]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tfds:mnist", r"isn't prepared: no folder .*tfds build mnist --file_format=array_record"),
        ("tfds:tiny_set:9.9.9", r"version 9\.9\.9 isn't prepared.*1\.2\.0"),
        ("tfds:tiny_set@validation", "no split 'validation'.*it has train, test"),
    ],
)
def test_tfds_faults_use_no_network(spec, message, tfds_dir, monkeypatch, offline):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_dir))
    with pytest.raises(UsageError, match=message):
        open_source(spec, default_split="train")


def test_tfds_stored_as_tfrecord(tfds_dir, tmp_path, monkeypatch, offline):
    old = tfds_dir / "tiny_set" / "1.2.0"
    new = tmp_path / "tiny_set" / "1.2.0"
    new.mkdir(parents=True)
    info = json.loads((old / "dataset_info.json").read_text())
    (new / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    for name in ("features.json", "label.labels.txt"):
        (new / name).write_bytes((old / name).read_bytes())
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    message = r"stored as tfrecord.*convert it with: python -m vit_jax\.prepare tfds:tiny_set DESTINATION"
    with pytest.raises(UsageError, match=message):
        open_source("tfds:tiny_set", default_split="train")
