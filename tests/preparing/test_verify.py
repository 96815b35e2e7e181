"""`prepare --verify`: damage is found, and the file that has it is named."""

import json

import numpy as np
import pytest

from tests.preparing.pictures import run, write_folder
from vit_jax.data import arrayrecord
from vit_jax.data.source import Example
from vit_jax.errors import RunFailed, UsageError


@pytest.fixture
def made(tmp_path):
    """A data set of two splits with two shards each."""
    run(write_folder(tmp_path / "in"), tmp_path / "out", "--shards=2")
    return tmp_path / "out"


def test_whole(made, capsys, tmp_path):
    assert run("--verify", made) == 0
    assert "verified" in capsys.readouterr().out
    assert run(tmp_path / "in", made, "--shards=2", "--verify") == 0
    assert "finished already" in (out := capsys.readouterr().out) and "24 examples are as they were" in out


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_damaged_files_are_named(made):
    shard = "train/00001-of-00002.array_record"
    original = (made / shard).read_bytes()
    _flip(made / shard)
    with pytest.raises(RunFailed, match=rf"{shard}: its content was changed"):
        run("--verify", made)
    (made / shard).write_bytes(original[:-100])
    with pytest.raises(RunFailed, match=rf"{shard}: \d+ bytes, the manifest says \d+"):
        run("--verify", made)
    (made / shard).unlink()
    _flip(made / "test/00000-of-00002.array_record")
    with pytest.raises(RunFailed) as e:
        run("--verify", made)
    first, second = str(e.value).splitlines()
    assert f"{shard}: the file is missing (and 1 more, above)" in first
    assert "test/00000-of-00002.array_record: its content was changed" in second


def test_a_manifest_that_says_something_else(made):
    path = made / "manifest.json"
    manifest = json.loads(path.read_text())
    entry = manifest["splits"]["train"]
    for change, message in (
        ({"class_counts": [4, 3, 5]}, "split train has 3 of class 1, its shards 4"),
        ({"count": 13}, "split train has 13 examples, its shards 12"),
    ):
        manifest["splits"]["train"] = entry | change
        path.write_text(json.dumps(manifest))
        with pytest.raises(RunFailed, match=message):
            run("--verify", made)


def test_data_sets_without_digests(tmp_path):
    examples = [Example(bytes([i]) * 9, i % 3, str(i)) for i in range(9)]
    entry = arrayrecord.write_split(str(tmp_path), "train", examples, num_classes=3, num_shards=2)
    arrayrecord.write_manifest(str(tmp_path), "abc", {"train": entry})
    assert run("--verify", tmp_path) == 0
    arrayrecord.write_manifest(str(tmp_path), "ab", {"train": entry | {"class_counts": [3, 3]}})
    with pytest.raises(RunFailed, match=r"of-00002\.array_record: label 2, the classes are 0 to 1"):
        run("--verify", tmp_path)
    shards = [entry["shards"][0] | {"count": 4}, entry["shards"][1]]
    arrayrecord.write_manifest(str(tmp_path), "abc", {"train": entry | {"shards": shards}})
    with pytest.raises(RunFailed, match=r"00000-of-00002\.array_record: 5 records, the manifest says 4"):
        run("--verify", tmp_path)


def test_multi_label(tmp_path):
    rows = np.array([[1, 0, 1], [0, 0, 0]], np.float32)
    entry = arrayrecord.write_split(
        str(tmp_path), "train", [Example(b"x", row, "n") for row in rows], num_classes=3, num_shards=1
    )
    arrayrecord.write_manifest(str(tmp_path), "abc", {"train": entry})
    assert run("--verify", tmp_path) == 0


def test_nothing_to_verify(tmp_path):
    with pytest.raises(UsageError, match=r"has no manifest\.json"):
        run("--verify", tmp_path)
