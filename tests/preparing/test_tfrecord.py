"""Sets of tensorflow-datasets: stored as ArrayRecord, and as TFRecord, which is read without TensorFlow."""

import json
import struct
import sys

import cv2
import numpy as np
import pytest
from array_record.python import array_record_module

from tests.preparing.pictures import read, run
from vit_jax.errors import RunFailed, UsageError
from vit_jax.preparing.tfrecord import masked_crc, record_places


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The same little set, as ArrayRecord and as TFRecord; the second written by hand from the first's messages."""
    import tensorflow_datasets as tfds

    class LittleSet(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "label": tfds.features.ClassLabel(names=["cat", "dog"]),
                "file_name": tfds.features.Text(),
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, _):
            return {"train": self._generate_examples(9), "test": self._generate_examples(4)}

        def _generate_examples(self, count):
            for i in range(count):
                png = cv2.imencode(".png", np.full((4, 5, 3), i, np.uint8))[1].tobytes()
                yield i, {"image": png, "label": i % 2, "file_name": f"{i}.png"}

    folder = tmp_path_factory.mktemp("tfds")
    LittleSet(data_dir=folder / "records", file_format="array_record").download_and_prepare()
    old, new = (folder / kind / "little_set/1.0.0" for kind in ("records", "tfrecord"))
    new.mkdir(parents=True)
    for path in old.iterdir():
        if path.name == "dataset_info.json":
            (new / path.name).write_text(
                json.dumps(json.loads(path.read_text()) | {"fileFormat": "tfrecord"})
            )
        elif "array_record" not in path.name:
            (new / path.name).write_bytes(path.read_bytes())
        else:
            reader = array_record_module.ArrayRecordReader(str(path))
            data = b"".join(map(_frame, reader.read_all()))
            (new / path.name.replace("array_record", "tfrecord")).write_bytes(data)
    return folder


def _frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked_crc(length) + data + masked_crc(data)


def test_checksum():
    # CRC-32C of "123456789" is E3069283; rotated right by 15 bits, plus A282EAD8.
    assert masked_crc(b"123456789") == struct.pack("<I", (0x2507C60D + 0xA282EAD8) & 0xFFFFFFFF)


def test_both_formats_give_the_same(stored, tmp_path, monkeypatch):
    for kind in ("records", "tfrecord"):
        monkeypatch.setenv("TFDS_DATA_DIR", str(stored / kind))
        run("tfds:little_set", tmp_path / kind, "--shards=2")
        run(stored / kind / "little_set/1.0.0", tmp_path / f"{kind}_by_path")
    assert "tensorflow" not in sys.modules
    for split, count in (("train", 9), ("test", 4)):
        one, other = (read(tmp_path / kind, split) for kind in ("records", "tfrecord"))
        assert [one[i] for i in range(count)] == [other[i] for i in range(count)]
        assert one.classes == ("cat", "dog")
        assert sorted(e.name for e in map(one.__getitem__, range(count))) == [
            f"{split}/{i}.png" for i in range(count)
        ]
        assert len(read(tmp_path / "tfrecord_by_path", split)) == count


def test_damage(stored, tmp_path, monkeypatch):
    folder = stored / "tfrecord" / "little_set/1.0.0"
    (path,) = folder.glob("*train.tfrecord*")
    whole = path.read_bytes()
    second = int(record_places(str(path))[1, 0])
    monkeypatch.setenv("TFDS_DATA_DIR", str(stored / "tfrecord"))
    try:
        path.write_bytes(whole[: second + 20] + b"\0\0" + whole[second + 22 :])
        with pytest.raises(
            RunFailed, match=r"tfrecord.*record at byte \d+ can't be used: its checksum is wrong"
        ):
            run("tfds:little_set", tmp_path / "a")
        run("tfds:little_set", tmp_path / "b", "--on-bad-image=skip")
        assert len(read(tmp_path / "b")) == 8
        for data, message in (
            (whole[:-3], "is cut off"),
            (b"x" + whole, "isn't TFRecord at byte 0"),
            (whole + whole, "holds 18 records, its info says 9"),
        ):
            path.write_bytes(data)
            with pytest.raises(UsageError, match=message):
                run("tfds:little_set", tmp_path / "c")
        path.unlink()
        with pytest.raises(UsageError, match=r"can't be read: No such file"):
            run("tfds:little_set", tmp_path / "c")
    finally:
        path.write_bytes(whole)
