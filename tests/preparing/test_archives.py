"""Archives: the same images give the same shards, whatever they are packed in."""

import gzip
import io
import json
import os
import tarfile

import numpy as np
import pytest

from tests.preparing.pictures import contents, picture, read, run, write_folder
from vit_jax.errors import UsageError
from vit_jax.preparing.tars import expand_braces, split_word


def _tar(path, files: dict[str, bytes]):
    """A tar of files in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def _shards(root) -> dict[str, bytes]:
    return {name: data for name, data in contents(root).items() if name.endswith(".array_record")}


@pytest.fixture
def folder(tmp_path):
    """SPLIT/CLASS/ images, and what becomes of them."""
    source = write_folder(tmp_path / "in")
    run(source, tmp_path / "from_folder")
    return source


def test_a_tar_of_folders(folder, tmp_path):
    files = contents(folder)
    backwards = dict(reversed(files.items()))
    backwards |= {"train/cat/.hidden.jpg": b"x", "train/readme.md": b"x", "__MACOSX/train/cat/1.jpg": b"x"}
    _tar(tmp_path / "set.tar", {"./set/" + name: data for name, data in backwards.items()})
    run(tmp_path / "set.tar", tmp_path / "from_tar")
    assert _shards(tmp_path / "from_tar") == _shards(tmp_path / "from_folder")


def test_a_compressed_tar_is_expanded_once_and_cleaned_up(folder, tmp_path):
    plain = _tar(tmp_path / "set.tar", contents(folder))
    (tmp_path / "set.tgz").write_bytes(gzip.compress(plain.read_bytes()))
    run(tmp_path / "set.tgz", tmp_path / "out")
    assert _shards(tmp_path / "out") == _shards(tmp_path / "from_folder")
    assert not (tmp_path / "out/.prepare").exists()
    (tmp_path / "cut.tgz").write_bytes((tmp_path / "set.tgz").read_bytes()[:-500])
    with pytest.raises(UsageError, match=r"cut\.tgz can't be expanded"):
        run(tmp_path / "cut.tgz", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def _class_tars(folder, target, split, *, own_folder=False):
    for name in ("cat", "dog", "owl"):
        files = contents(folder / split / name)
        _tar(target / f"{name}.tar", {(f"{name}/" if own_folder else "") + k: v for k, v in files.items()})
    return target


def test_a_tar_for_every_class(folder, tmp_path):
    run(folder / "train", tmp_path / "train_alone")
    one = _class_tars(folder, tmp_path / "tars", "train")
    run(one, tmp_path / "a")
    assert _shards(tmp_path / "a") == _shards(tmp_path / "train_alone")
    other = _class_tars(folder, tmp_path / "tars_with_folders", "train", own_folder=True)
    run(other, tmp_path / "b")
    assert _shards(tmp_path / "b") == _shards(tmp_path / "train_alone")
    # All of them in one tar, as ImageNet is published.
    _tar(tmp_path / "whole.tar", {p.name: p.read_bytes() for p in sorted(one.iterdir())})
    run(tmp_path / "whole.tar", tmp_path / "c")
    assert _shards(tmp_path / "c") == _shards(tmp_path / "train_alone")
    for split in ("train", "test"):
        _class_tars(folder, tmp_path / "splits" / split, split)
    run(tmp_path / "splits", tmp_path / "d")
    assert _shards(tmp_path / "d") == _shards(tmp_path / "from_folder")
    for split in ("train", "test"):
        files = {p.name: p.read_bytes() for p in sorted((tmp_path / "splits" / split).iterdir())}
        _tar(tmp_path / "two" / f"ILSVRC2012_img_{split}.tar", files)
    run(tmp_path / "two", tmp_path / "e")
    assert _shards(tmp_path / "e") == _shards(tmp_path / "from_folder")


def test_a_class_that_only_another_split_knows(tmp_path):
    _tar(
        tmp_path / "s.tar",
        {"train/a/1.jpg": picture(1), "test/a/1.jpg": picture(2), "test/b/1.jpg": picture(3)},
    )
    with pytest.raises(UsageError, match=r"split train of tar:.* has no image of class 'b'"):
        run(tmp_path / "s.tar", tmp_path / "out")


def test_archives_that_cannot_be_used(tmp_path):
    cut = _tar(tmp_path / "cut.tar", {"a/1.jpg": picture(1), "b/2.jpg": picture(2, (200, 200))})
    cut.write_bytes(cut.read_bytes()[:9000])
    twice = tmp_path / "twice.tar"
    with tarfile.open(twice, "w") as archive:
        for data in (b"x", b"y"):
            info = tarfile.TarInfo("a/1.jpg")
            info.size = 1
            archive.addfile(info, io.BytesIO(data))
    link = tmp_path / "link.tar"
    with tarfile.open(link, "w") as archive:
        info = tarfile.TarInfo("a/1.jpg")
        info.type, info.linkname = tarfile.SYMTYPE, "/elsewhere.jpg"
        archive.addfile(info)
    (tmp_path / "no.tar").write_bytes(b"not an archive" * 100)
    (tmp_path / "pack.zip").write_bytes(b"PK")
    _tar(tmp_path / "empty.tar", {"readme.md": b"x"})
    _tar(tmp_path / "train.tar", {"1.jpg": picture(1)})
    for name, message in (
        ("cut.tar", r"cut\.tar (is cut off in b/2\.jpg|can't be read: unexpected end of data)"),
        ("twice.tar", r"holds a/1\.jpg twice"),
        ("link.tar", r"holds a link, a/1\.jpg .*--dereference"),
        ("no.tar", r"no\.tar can't be read.*whole tar archive"),
        ("pack.zip", r"only tar archives are read .unpack it"),
        ("empty.tar", r"no images in tar:.*empty\.tar"),
        ("train.tar", r"1\.jpg lies outside of class folders .*--labels=FILE"),
        ("gone.tar", r"no such file .*gone\.tar"),
        ("a-{0..3}.tar", r"no such file .*a-0\.tar"),
    ):
        with pytest.raises(UsageError, match=message):
            run(tmp_path / name, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_hard_links_are_files(tmp_path):
    with tarfile.open(tmp_path / "h.tar", "w") as archive:
        info = tarfile.TarInfo("a/1.jpg")
        info.size = len(picture(1))
        archive.addfile(info, io.BytesIO(picture(1)))
        info = tarfile.TarInfo("a/2.jpg")
        info.type, info.linkname = tarfile.LNKTYPE, "a/1.jpg"
        archive.addfile(info)
    run(tmp_path / "h.tar", tmp_path / "out")
    assert [read(tmp_path / "out")[i].image for i in range(2)] == [picture(1)] * 2


def _shard(start: int, label, extension: str) -> dict[str, bytes]:
    files = {}
    for i in range(start, start + 3):
        files[f"{i:04d}.jpg"] = picture(i)
        files[f"{i:04d}.{extension}"] = label(i)
    return files


def test_webdataset_numbers(tmp_path):
    for k in range(8, 11):
        _tar(tmp_path / f"w/train-{k:03d}.tar", _shard(3 * k, lambda i: b"%d\n" % (i % 4), "cls"))
    run(f"{tmp_path}/w/train-{{008..010}}.tar", tmp_path / "out")
    made = read(tmp_path / "out")
    assert made.classes == ("0", "1", "2", "3")
    assert [(made[i].image, made[i].label) for i in range(9)] == [(picture(i), i % 4) for i in range(24, 33)]
    assert made[4].name == "train/train-009/0028.jpg"
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\nowl\nemu\nant\n")
    run(tmp_path / "w", tmp_path / "named", f"--classes={names}")
    assert read(tmp_path / "named").classes == ("cat", "dog", "owl", "emu", "ant")
    assert read(tmp_path / "named").labels().tolist() == made.labels().tolist()
    names.write_text("cat\ndog\n")
    with pytest.raises(UsageError, match="has the class number 3, --classes names 2"):
        run(tmp_path / "w", tmp_path / "other", f"--classes={names}")


def test_webdataset_json_and_text(tmp_path):
    _tar(tmp_path / "j.tar", _shard(0, lambda i: json.dumps({"label": "xyz"[i], "n": 1}).encode(), "json"))
    run(tmp_path / "j.tar", tmp_path / "json")
    assert read(tmp_path / "json").classes == ("x", "y", "z")
    _tar(tmp_path / "m.tar", _shard(0, lambda i: json.dumps({"labels": ["a", "b"][:i]}).encode(), "json"))
    run(f"webdataset:{tmp_path}/m.tar", tmp_path / "multi")
    made = read(tmp_path / "multi")
    assert made.labels().dtype == np.float32
    assert made.labels().tolist() == [[0, 0], [1, 0], [1, 1]]
    _tar(tmp_path / "t.tar", _shard(0, lambda i: b"dog" if i else "été".encode(), "txt"))
    run(tmp_path / "t.tar", tmp_path / "text")
    assert [read(tmp_path / "text")[i].label for i in range(3)] == [1, 0, 0]


def test_webdataset_faults(tmp_path):
    image, name = {"1.jpg": picture(1)}, "w.tar"
    for files, message in (
        (image | {"1.cls": b"0", "2.jpg": picture(2)}, r"w/2 has no label"),
        (image | {"1.cls": b"0", "2.cls": b"1"}, r"w/2 has no image"),
        (image | {"1.cls": b"0", "2.jpg": b"x", "2.cls": b"1", "1.png": b"x"}, r"holds w/1 twice"),
        (image | {"1.png": b"x", "1.cls": b"0"}, r"holds two files w/1\.png"),
        (
            image | {"1.json": b'{"caption": "a cat"}'},
            r"w/1\.json has no label: caption .it needs one of labels",
        ),
        (image | {"1.json": b"{"}, r"w/1\.json can't be read"),
        (image | {"1.json": b'{"label": 1.5}'}, r"w/1\.json has the label 1\.5"),
    ):
        _tar(tmp_path / name, files)
        with pytest.raises(UsageError, match=message):
            run(tmp_path / name, tmp_path / "out")


def test_names():
    assert expand_braces("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert expand_braces("{x,y}-{1..2}") == ["x-1", "x-2", "y-1", "y-2"]
    assert split_word("ILSVRC2012_img_train") == "train"
    assert split_word("imagenet-val-000012") == "val"
    assert split_word("n01440764") == split_word("latest") == split_word("train-test") == ""
    assert os.sep == "/"
