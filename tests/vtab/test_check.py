"""`--check-data`: a line per task that says what was found, or how to get it; and the exit code."""

import dataclasses
import json
import re

import pytest

from tests.vtab.test_source import folders
from vit_jax import files, vtab
from vit_jax.data import source_vtab
from vit_jax.data.vtab_tasks import TASKS
from vit_jax.errors import UsageError
from vit_jax.vtab1k.check import check, how_to_prepare


def test_all_nineteen_are_ready_where_they_are_prepared(small_tasks, monkeypatch, capsys):
    for task in small_tasks.values():
        found = check(task, "")
        assert found.ready and found.counts == task.sizes, found.line()
    monkeypatch.setattr(vtab, "TASKS", small_tasks)
    assert vtab.main(["--check-data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[name, "ready"] for name in TASKS]
    assert lines[16].endswith("tfds:kitti:3.3.0: train 48, validation 10, test 12, 4 classes")


def test_nothing_there_names_the_way_to_each(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(files, "has_package", lambda name: name not in ("h5py", "tensorflow"))
    assert vtab.main(["--check-data"]) == 1
    lines = dict(zip(TASKS, capsys.readouterr().out.splitlines(), strict=True))
    assert all(line.split()[:2] == [name, "missing"] for name, line in lines.items())
    for name, line in lines.items():
        build = f"tfds build {TASKS[name].tfds} --file_format=array_record --data_dir={tmp_path}/none"
        assert build in line and re.search(r"download [\d.]+ GiB, disk about [\d.]+ GiB", line)
    assert "pip install tensorflow h5py" in lines["patch_camelyon"]
    assert (
        "pip install tensorflow;" in lines["svhn"]
        and "download 18 GiB, disk about 39 GiB" in lines["clevr_count"]
    )
    assert f"NWPU-RESISC45.rar into the manual folder ({tmp_path}/none/downloads/manual)" in lines["resisc45"]


def test_a_disk_that_is_too_small_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    huge = dataclasses.replace(TASKS["sun397"], download_gib=1e9)
    assert re.search(r"disk about 2200000000 GiB, [\d.]+ GiB are free", how_to_prepare(huge))
    assert "are free" not in how_to_prepare(dataclasses.replace(huge, download_gib=1e-9))


def test_counts_of_another_version_are_refused(small_tasks, monkeypatch):
    kitti = dataclasses.replace(small_tasks["kitti"], sizes=TASKS["kitti"].sizes)
    monkeypatch.setattr(source_vtab, "TASKS", {**small_tasks, "kitti": kitti})
    found = check(kitti, "")
    assert not found.ready and found.splits is None
    assert "train 48, not 6347, validation 10, not 423, test 12, not 711" in found.line()


def test_folders_are_counted_against_the_table(tmp_path, monkeypatch, capsys):
    folders(tmp_path, "kitti", counts=(200, 50, 3), size=4)
    found = check(TASKS["kitti"], str(tmp_path))
    assert not found.ready and found.differences == ("test 12, not 711",)
    assert vtab.main(["--check-data", f"--data-dir={tmp_path}", "--task=kitti"]) == 1
    assert capsys.readouterr().out.startswith("kitti                differs  ")
    monkeypatch.setattr(source_vtab, "TASKS", {"kitti": dataclasses.replace(TASKS["kitti"], test_count=12)})
    assert vtab.main(["--check-data", f"--data-dir={tmp_path}", "--task=kitti"]) == 0
    assert "kitti: train 800, val 200, test 12, 4 classes" in capsys.readouterr().out
    (tmp_path / "kitti" / "val" / "a" / "0.png").unlink()
    assert check(TASKS["kitti"], str(tmp_path)).differences == ("val 199, not 200",)


def test_a_class_that_has_no_folder_is_counted(tmp_path):
    folders(tmp_path, "dtd", counts=(200, 50, 470), size=2)
    assert check(TASKS["dtd"], str(tmp_path)).differences == ("4 of 47 classes have a folder",)


def test_what_cannot_be_read_is_named_and_never_raised(tmp_path, small_tasks, prepared):
    folders(tmp_path, "kitti", counts=(2, 2, 2))
    (tmp_path / "kitti" / "test" / "10" / "0.png").write_bytes(b"no image")
    assert "kitti/test/10/0.png: not an image" in check(TASKS["kitti"], str(tmp_path)).line()
    shard = next((prepared / "dmlab" / "2.0.1").glob("dmlab-validation*"))
    content = shard.read_bytes()
    try:
        shard.write_bytes(b"cut")
        assert check(small_tasks["dmlab"], "").splits is None
    finally:
        shard.write_bytes(content)
    assert check(small_tasks["dmlab"], "").ready


def test_a_set_in_another_format_is_to_be_converted(prepared, small_tasks):
    info = prepared / "dtd" / "3.0.1" / "dataset_info.json"
    content = info.read_text()
    info.write_text(json.dumps(json.loads(content) | {"fileFormat": "tfrecord"}))
    try:
        line = check(small_tasks["dtd"], "").line()
    finally:
        info.write_text(content)
    assert "is stored as tfrecord, not as array_record" in line and "download" not in line
    assert (
        f"tfds convert_format --dataset_version_dir={prepared}/dtd/3.0.1 --out_file_format=array_record "
        "--out_dir=DIR/dtd/3.0.1, then set TFDS_DATA_DIR=DIR"
    ) in line


@pytest.mark.parametrize("word", ["cifar10", "kitti,dtdd"])
def test_unknown_tasks_are_refused(word):

    with pytest.raises(UsageError, match="unknown task"):
        vtab.main(["--check-data", f"--task={word}"])
