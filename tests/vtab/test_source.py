"""`vtab:TASK`: records of the true structure, folders and ArrayRecord, labels and pictures as VTAB has them."""

import pickle

import cv2
import numpy as np
import pytest

from vit_jax.data import arrayrecord
from vit_jax.data.decode import BadImage
from vit_jax.data.preprocess import parse
from vit_jax.data.source import Example
from vit_jax.data.source_vtab import VtabCatalog
from vit_jax.data.sources import open_source
from vit_jax.data.vtab_tasks import TASKS
from vit_jax.errors import UsageError

PROGRAM = parse("decode|resize(16)|value_range(0, 1)")


def _open(name, expression, **options):
    return open_source(f"vtab:{name}@{expression}", default_split="none", **options)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_reads_its_own_records(small_tasks, name):
    task = small_tasks[name]
    catalog = VtabCatalog(name)
    assert catalog.counts() == task.sizes == catalog.own_splits.expected
    sources = {e: _open(name, e) for e in (task.t, task.v, task.tv, task.e)}
    assert [len(source) for source in sources.values()] == [16, 4, 20, task.test_count]
    both = sources[task.tv]
    assert both.labels().tolist() == [*sources[task.t].labels(), *sources[task.v].labels()]
    for source in sources.values():
        assert len(source.classes) == task.num_classes
        assert all(0 <= label < task.num_classes for label in source.labels())
        assert len(set(source.labels())) > 1
    example = both[3]
    image = PROGRAM.host(example.image, None, example.name)
    assert image.shape == (16, 16, 3) and image.dtype == np.uint8
    again = pickle.loads(pickle.dumps(both))[3]
    assert (again.label, again.name) == (example.label, example.name)


def test_labels_are_of_the_feature_that_the_task_is_about(small_tasks):
    # In the small copies example i has the label i modulo the classes, in every feature.
    for first, second, table in (
        ("smallnorb_azimuth", "smallnorb_elevation", lambda i: (i % 18, i % 9)),
        ("clevr_count", "clevr_distance", lambda i: (i % 8, 1 + i % 4)),
    ):
        pairs = set(zip(_open(first, "train").labels(), _open(second, "train").labels(), strict=True))
        assert pairs == {table(i) for i in range(48)}
    pairs = zip(
        _open("dsprites_location", "train").labels(), _open("dsprites_orientation", "train").labels(),
        strict=True,
    )  # fmt: skip
    assert set(pairs) == {(i % 32 // 2, int(i % 40 // 2.5)) for i in range(48)}


def test_gray_sprites_are_black_and_white(small_tasks):
    example = _open("dsprites_location", "train")[0]
    assert example.image.shape == (64, 64, 1) and set(np.unique(example.image)) == {0, 255}
    image = parse("decode").host(example.image, None, example.name)
    assert image.shape == (64, 64, 3) and np.array_equal(image[..., 0], image[..., 2])
    assert cv2.imdecode(np.frombuffer(_open("smallnorb_azimuth", "train")[0].image, np.uint8), -1).ndim == 2


def folders(root, task, *, counts=(4, 2, 3), classes=("b", "a", "10", "2"), size=8):
    """DIR/TASK/{train,val,test}/CLASS/*; the class k of split s is there unless (k, s) is left out."""
    for split, count in zip(("train", "val", "test"), counts, strict=True):
        for k, name in enumerate(classes):
            folder = root / task / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                image = np.full((size, size, 3), (30 + 60 * k + i) % 256, np.uint8)
                assert cv2.imwrite(str(folder / f"{i}.png"), image)
    return root


def test_folders_are_sorted_by_path_and_have_the_classes_of_the_table(tmp_path, caplog):
    root = folders(tmp_path, "cifar100")
    for split, name in (("train", "2"), ("test", "a")):
        for path in (root / "cifar100" / split / name).iterdir():
            path.unlink()
        (root / "cifar100" / split / name).rmdir()
    location = f"cifar100:{root}"
    catalog = VtabCatalog(location)
    assert (catalog.own_splits.t, catalog.own_splits.tv) == ("train", "train+val")
    assert catalog.counts() == {"train": 12, "val": 8, "test": 9}
    both = _open(location, catalog.own_splits.tv)
    assert both.classes[:5] == ("10", "2", "a", "b", "(absent class 4)") and len(both.classes) == 100
    assert both.labels().tolist() == [0] * 4 + [2] * 4 + [3] * 4 + [0] * 2 + [1] * 2 + [2] * 2 + [3] * 2
    names = [both[i].name for i in range(12)]
    assert names == sorted(names) and names[0].endswith("/cifar100/train/10/0.png")
    assert _open(location, "test").labels().tolist() == [0] * 3 + [1] * 3 + [3] * 3
    assert not caplog.text  # 98 made-up classes without an example are no news
    turned = _open(location, "test", classes=both.classes[::-1])
    assert turned.labels().tolist() == [turned[i].label for i in range(9)] == [99] * 3 + [98] * 3 + [96] * 3


def test_an_arrayrecord_folder_takes_its_place(tmp_path, small_tasks):
    root = tmp_path / "kitti"
    entries = {
        split: arrayrecord.write_split(
            str(root), split, (Example(np.full((4, 4, 1), 9 * i, np.uint8), i % 4, str(i)) for i in range(n)),
            num_classes=4, num_shards=1,
        )
        for split, n in (("train", 6), ("val", 3), ("test", 5))
    }  # fmt: skip
    arrayrecord.write_manifest(str(root), ["a", "b", "c", "d"], entries)
    source = _open(f"kitti:{tmp_path}", "train+val")
    assert source.labels().tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]
    # A task without a folder there is tensorflow-datasets'.
    assert len(_open(f"dtd:{tmp_path}", small_tasks["dtd"].tv)) == 20


def test_what_cannot_be_the_data_of_a_task(tmp_path, small_tasks, prepared, monkeypatch):
    with pytest.raises(UsageError, match=r"unknown task 'cifar10'.*did you mean 'cifar100'"):
        VtabCatalog("cifar10")
    with pytest.raises(UsageError, match=r"no folder .*nowhere"):
        VtabCatalog(f"dtd:{tmp_path / 'nowhere'}")
    folders(tmp_path, "patch_camelyon")
    with pytest.raises(UsageError, match=r"4 classes \(classes '10', '2', 'a', 'b'\), Patch Camelyon has 2"):
        VtabCatalog(f"patch_camelyon:{tmp_path}")
    (tmp_path / "eurosat" / "train" / "a").mkdir(parents=True)
    with pytest.raises(UsageError, match="has no val, test"):
        VtabCatalog(f"eurosat:{tmp_path}")
    (prepared / "resisc45" / "3.0.0").rename(prepared / "resisc45" / "2.9.0")
    try:
        with pytest.raises(UsageError, match=r"version 3\.0\.0 isn't prepared.*2\.9\.0"):
            VtabCatalog("resisc45")
    finally:
        (prepared / "resisc45" / "2.9.0").rename(prepared / "resisc45" / "3.0.0")


def test_sprites_that_are_no_sprites_are_named(small_tasks, monkeypatch):
    source = _open("dsprites_location", "train")
    record = source._inner._records[5]
    png = cv2.imencode(".png", np.full((64, 64), 200, np.uint8))[1].tobytes()
    monkeypatch.setattr(source._inner, "_records", {5: record | {"image": png}})
    monkeypatch.setattr(type(source._inner), "__len__", lambda _: 48)
    with pytest.raises(BadImage, match=r"dsprites:2\.0\.0/train/5: holds the pixel value 200"):
        source[5]
