"""Image folders, one test per odd layout."""

import os
import pickle
import shutil

import numpy as np
import pytest

from tests.data.odd_files import expected, path, unpack
from vit_jax.data.decode import BadImage
from vit_jax.data.preprocess import parse
from vit_jax.data.sources import open_source
from vit_jax.errors import UsageError

_DECODE = parse("decode")


def _counts(source) -> list[int]:
    return np.bincount(source.labels(), minlength=len(source.classes)).tolist()


def _decode_all(source) -> list[np.ndarray]:
    examples = [source[i] for i in range(len(source))]
    return [_DECODE.host(e.image, None, e.name) for e in examples]


def test_classes_come_from_train_and_map_by_name(tmp_path, caplog):
    want = expected("empty-val-class")
    root = unpack("empty_val_class", tmp_path)
    train = open_source(f"folder:{root}", default_split="train")
    assert list(train.classes) == want["classes"]
    assert _counts(train) == want["train_counts"]
    assert not caplog.records
    validation = open_source(f"folder:{root}@validation", default_split="train", classes=train.classes)
    assert validation.classes == train.classes
    assert _counts(validation) == want["validation_counts"]
    (record,) = caplog.records
    assert "has no example of class 'cow'" in record.getMessage()
    for i in range(len(validation)):
        example = validation[i]
        folder = os.path.basename(os.path.dirname(example.name))
        assert example.label == want["classes"].index(folder)


def test_empty_folder_lost_altogether_changes_no_label(tmp_path):
    root = unpack("empty_val_class", tmp_path)
    train = open_source(f"folder:{root}", default_split="train")
    os.rmdir(os.path.join(root, "validation", "cow"))
    validation = open_source(f"folder:{root}@validation", default_split="train", classes=train.classes)
    assert _counts(validation) == expected("empty-val-class")["validation_counts"]


def test_class_which_train_lacks(tmp_path):
    root = unpack("empty_val_class", tmp_path)
    # An empty folder needs no class.
    os.mkdir(os.path.join(root, "validation", "bat"))
    shutil.copytree(os.path.join(root, "validation", "ant"), os.path.join(root, "validation", "fox"))
    train = open_source(f"folder:{root}", default_split="train")
    with pytest.raises(
        UsageError, match=r"validation has class 'fox', which the class map \(5 classes\) lacks"
    ):
        open_source(f"folder:{root}@validation", default_split="train", classes=train.classes)


def test_hidden_and_foreign_files_are_ignored(tmp_path, caplog):
    want = expected("hidden-dirs")
    source = open_source(f"folder:{unpack('hidden_dirs', tmp_path)}", default_split="train")
    assert len(source) == want["images"]
    assert list(source.classes) == want["classes"]
    (record,) = caplog.records
    assert "class 'empty'" in record.getMessage()


def test_numeric_classes_are_ordered_as_strings(tmp_path):
    root = unpack("numeric_classes", tmp_path)
    train = open_source(f"folder:{root}", default_split="train")
    assert list(train.classes) == expected("numeric-folders")["string_order"]
    validation = open_source(f"folder:{root}@validation", default_split="train", classes=train.classes)
    assert validation.labels().tolist() == list(range(12))


def test_archives_are_refused_at_once(tmp_path):
    with pytest.raises(
        UsageError, match=r"is an archive, which isn't supported .unpack .*classes\.zip first"
    ):
        open_source(f"folder:{path('zipped_classes.zip')}", default_split="train")
    (tmp_path / "train").mkdir()
    shutil.copy(path("zipped_classes.zip"), tmp_path / "train")
    with pytest.raises(UsageError, match=r"no images in .*unpack zipped_classes\.zip first"):
        open_source(f"folder:{tmp_path}", default_split="train")


def test_every_extension_in_any_case(tmp_path):
    want = expected("extensions")
    source = open_source(f"folder:{unpack('extensions', tmp_path)}", default_split="train")
    assert list(source.classes) == want["classes"]
    images = _decode_all(source)
    assert len(images) == want["n"]
    assert all(image.shape[2] == 3 and image.dtype == np.uint8 for image in images)


def test_nothing_found_says_what_was_searched(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "notes.txt").write_text("x")
    with pytest.raises(
        UsageError, match=r"no images in .*train: searched 1 class folders \(class 'a'\).*\.jpg"
    ):
        open_source(f"folder:{tmp_path}", default_split="train")
    (tmp_path / "train" / "loose.JPG").write_bytes(b"")
    with pytest.raises(UsageError, match="1 images lie beside the class folders"):
        open_source(f"folder:{tmp_path}", default_split="train")


def test_names_survive_byte_for_byte(tmp_path):
    want = expected("unicode-names")
    root = unpack("unicode_names", tmp_path)
    source = open_source(f"folder:{root}", default_split="train")
    assert list(source.classes) == want["classes"]
    assert len(_decode_all(source)) == want["n"]
    listed = {
        os.path.join(os.fsencode(d), f) for d, _, files in os.walk(root) for f in map(os.fsencode, files)
    }
    assert {os.fsencode(source[i].name) for i in range(len(source))} == listed


def test_name_that_is_not_utf8(tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"train", b"caf\xe9")
    os.makedirs(folder)
    shutil.copy(path("gray_L.png"), os.path.join(folder, b"\xff.png"))
    source = open_source(f"folder:{tmp_path}", default_split="train")
    assert os.fsencode(source.classes[0]) == b"caf\xe9"
    assert os.fsencode(source[0].name).endswith(b"/\xff.png")
    assert _decode_all(source)[0].shape == (64, 96, 3)


def test_class_with_one_image(tmp_path):
    source = open_source(f"folder:{unpack('one_image_class', tmp_path)}", default_split="train")
    assert dict(zip(source.classes, _counts(source), strict=True)) == expected("one-image-class")["counts"]


def test_nested_folders_count_for_the_first_level(tmp_path):
    root = unpack("nested", tmp_path)
    os.symlink("..", os.path.join(root, "train", "plant", "circle"))
    source = open_source(f"folder:{root}@train", default_split="train")
    assert _counts(source)[0] == expected("nested")["first_level"]["animal"]
    os.remove(os.path.join(root, "train", "plant", "circle"))
    source = open_source(f"folder:{root}@train", default_split="train")
    assert dict(zip(source.classes, _counts(source), strict=True)) == expected("nested")["first_level"]
    assert source[0].name.endswith("train/animal/cat/00.jpg")


def test_root_without_splits(tmp_path):
    root = os.path.join(unpack("nested", tmp_path), "train")
    source = open_source(f"folder:{root}", default_split="train")
    assert _counts(source) == [6, 3]
    assert source.split == "all"
    assert len(open_source(f"folder:{root}@all[:3]", default_split="train")) == 3
    with pytest.raises(UsageError, match=r"no split 'train'.*use @all, or a part such as @all\[:90%\]"):
        open_source(f"folder:{root}@train", default_split="train")


def test_missing_split_lists_what_is_there(tmp_path):
    root = unpack("empty_val_class", tmp_path)
    for spec, default in ((f"folder:{root}@val", "train"), (f"folder:{root}", "test")):
        with pytest.raises(UsageError, match=r"no split.*it has train, validation"):
            open_source(spec, default_split=default)


def test_gif_called_jpg_gives_its_first_frame(tmp_path):
    want = expected("gif")
    source = open_source(f"folder:{unpack('gif_as_jpg', tmp_path)}", default_split="train")
    images = _decode_all(source)
    assert len(images) == want["folder_files"]
    assert images[3].shape == (30, 40, 3)
    assert source[3].name.endswith("a/9.jpg")
    assert (images[3] == want["first_frame_rgb"]).all()


def test_gray_folder_for_one_or_three_channels(tmp_path):
    want = expected("channels-1")
    source = open_source(f"folder:{unpack('gray_folder', tmp_path)}", default_split="train")
    assert (len(source), list(source.classes)) == (want["n"], want["classes"])
    gray = parse("decode(channels=1)|resize(8)")
    assert gray.host(source[0].image, None).shape == (8, 8, 1)
    assert gray.normalize[0].shape == (1,)
    assert parse("decode|resize(8)").host(source[0].image, None).shape == (8, 8, 3)


def test_vanished_file_and_dead_link_are_named(tmp_path):
    root = unpack("nested", tmp_path)
    os.symlink("nowhere.jpg", os.path.join(root, "train", "animal", "dead.jpg"))
    source = open_source(f"folder:{root}", default_split="train")
    bad = []
    for i in range(len(source)):
        try:
            source[i]
        except BadImage as e:
            bad.append(e.name)
    assert [os.path.basename(name) for name in bad] == ["dead.jpg"]


def test_memory_is_bytes_per_file_and_pickles(tmp_path):
    source = open_source(f"folder:{unpack('numeric_classes', tmp_path)}", default_split="train")
    assert source.memory_bytes() == len(source) * (len("00.jpg") + 8) + 12 * 8
    assert pickle.loads(pickle.dumps(source))[5] == source[5]
