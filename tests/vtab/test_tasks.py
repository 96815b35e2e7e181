"""The table of tasks against the specification, which lies in tests/golden/vtab_tasks.csv."""

import csv
import json
from collections import Counter

import pytest

from vit_jax.data.splits import parse_split
from vit_jax.data.vtab_tasks import GROUPS, TASKS, TRAIN, VAL


@pytest.fixture(scope="module")
def table(golden):
    with (golden / "vtab_tasks.csv").open(newline="") as file:
        return {row["task"]: row for row in csv.DictReader(file)}


def test_the_table_is_the_specification(table):
    assert list(table) == list(TASKS)
    for name, row in table.items():
        task = TASKS[name]
        sizes = dict(part.split("=") for part in row["splits"].split())
        assert (task.name, task.group, task.tfds) == (name, row["group"], row["builder"])
        assert (task.t, task.v, task.e) == (row["train"], row["validation"], row["test"])
        assert task.tv == f"{row['train']}+{row['validation']}"
        assert (task.test_count, task.num_classes) == (int(row["test_examples"]), int(row["classes"]))
        assert task.sizes == {split: int(size) for split, size in sizes.items()}


def test_the_names_are_those_of_the_case(golden):
    case = json.loads((golden / "cases" / "vtab_missing.json").read_text())
    assert set(TASKS) == {*case["results"], *case["missing"]}
    assert Counter(task.group for task in TASKS.values()) == dict(zip(GROUPS, (7, 4, 8), strict=True))
    assert len({task.tfds for task in TASKS.values()}) == 16


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_splits_have_the_sizes_that_they_should_and_never_meet(task):
    taken = {}
    for what, expression, count in (("t", task.t, TRAIN), ("v", task.v, VAL), ("e", task.e, task.test_count)):
        (term,) = parse_split(expression)
        start, stop = term.range(task.sizes[term.name])
        assert stop - start == count, what
        taken[what] = {(term.name, i) for i in range(start, stop)}
    assert not taken["t"] & taken["v"] and not taken["e"] & (taken["t"] | taken["v"])


def test_class_names_are_as_many_as_classes():
    for task in TASKS.values():
        if task.class_names:
            assert len(set(task.class_names)) == task.num_classes, task.name


def test_the_installed_builders_have_these_versions_configs_features_and_downloads(monkeypatch, tmp_path):
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.utils import gcs_utils

    monkeypatch.setattr(gcs_utils, "gcs_dataset_info_files", lambda *_: [])  # no network
    for task in TASKS.values():
        builder = tfds.builder(task.builder, data_dir=tmp_path)
        assert str(builder.version) == task.version, task.name
        features = builder.info.features
        assert type(features[task.image]).__name__ == "Image"
        key = getattr(task.rule, "key", "objects")
        assert key in features, task.name
        if not task.class_names or key in ("label_azimuth", "label_elevation"):
            assert features[key].num_classes == task.num_classes
        if task.name not in (
            "resisc45",
            "retinopathy",
            "caltech101",
            "eurosat",
        ):  # by hand, or other files too
            gib = sum(int(info.size) for info in builder.url_infos.values()) / 2**30
            assert task.download_gib == pytest.approx(gib, abs=0.06), task.name
