"""Data on storage that fsspec knows: `memory://` stands in for a bucket."""

import fsspec
import numpy as np
import pytest

from vit_jax.data.arrayrecord import write_manifest, write_split
from vit_jax.data.decode import BadImage
from vit_jax.data.source import Example
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """An empty store, and a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = fsspec.filesystem("memory")
    yield store
    store.rm("/bucket", recursive=True)


def _upload(store, folder, to):
    for path in folder.rglob("*"):
        if path.is_file():
            store.pipe(f"/bucket/{to}/{path.relative_to(folder)}", path.read_bytes())


def test_a_folder_of_images_reads_as_it_would_here(bucket, tmp_path):
    root = tmp_path / "set"
    for name in ("train/b/1.png", "train/b/deep/2.JPG", "train/a/3.png", "train/a/.hidden.png", "train/a/x.txt",
                 "val/a/.trash/7.png", "val/a/4.png", "train/__MACOSX/5.png"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    _upload(bucket, root, "set")
    for split in ("train", "val"):
        here = open_source(f"folder:{root}@{split}", default_split="train")
        there = open_source(f"folder:memory://bucket/set@{split}", default_split="train")
        assert there.classes == here.classes
        assert [e.image for e in map(there.__getitem__, range(len(there)))] == [
            e.image for e in map(here.__getitem__, range(len(here)))
        ]
        assert np.array_equal(there.labels(), here.labels())
    assert there[0].name == "memory://bucket/set/val/a/4.png"
    bucket.rm("/bucket/set/val/a/4.png")
    with pytest.raises(BadImage, match=r"set/val/a/4\.png"):
        there[0]


def test_what_is_missing_there_is_named(bucket):
    bucket.pipe("/bucket/x", b"")
    with pytest.raises(UsageError, match="memory://bucket/none: no such folder"):
        open_source("folder:memory://bucket/none", default_split="train")
    with pytest.raises(UsageError, match="can't read memory://bucket/none: no such file or bucket"):
        open_source("arrayrecord:memory://bucket/none", default_split="train")


def test_arrayrecord_shards_are_copied_once(bucket, tmp_path):
    root = tmp_path / "set"
    examples = [Example(np.full((2, 2, 3), i, np.uint8), i % 2, f"e{i}") for i in range(5)]
    splits = {s: write_split(root, s, examples, num_classes=2, num_shards=2) for s in ("train", "test")}
    write_manifest(root, ["a", "b"], splits)
    _upload(bucket, root, "set")
    there = open_source("arrayrecord:memory://bucket/set", default_split="train")
    assert [there[i].name for i in range(5)] == [f"e{i}" for i in range(5)]
    copies = sorted((tmp_path / "cache").rglob("*.array_record"))
    assert len(copies) == 2  # of the split in use
    before = [path.stat().st_mtime_ns for path in copies]
    open_source("arrayrecord:memory://bucket/set", default_split="train")
    assert [path.stat().st_mtime_ns for path in copies] == before
