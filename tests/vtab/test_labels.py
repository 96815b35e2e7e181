"""The label rules against the reference implementation's labels, and on the borders by hand."""

import json
import pickle

import numpy as np
import pytest

from vit_jax.data import vtab_labels
from vit_jax.data.vtab_labels import Binned, Feature, Modulo
from vit_jax.data.vtab_tasks import TASKS


@pytest.fixture(scope="module")
def reference(golden):
    with np.load(golden / "vtab_labels.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def clevr(*depths):
    return {"objects": {"pixel_coords": np.array([[0.0, 0.0, d] for d in depths], np.float32)}}


def kitti(types, depths):
    places = np.array([[0.0, 0.0, z] for z in depths], np.float32).reshape(-1, 3)
    return {"objects": {"type": np.array(types, np.int64), "location": places}}


def test_clevr_as_the_reference(reference):
    rows = zip(reference["clevr/pixel_coords"], reference["clevr/num_objects"], strict=True)
    records = [{"objects": {"pixel_coords": coords[:count]}} for coords, count in rows]
    assert [TASKS["clevr_count"].rule(r) for r in records] == reference["clevr/count_all"].tolist()
    found = [TASKS["clevr_distance"].rule(r) for r in records]
    assert found == reference["clevr/closest_object_distance"].tolist()
    assert set(found) == set(range(TASKS["clevr_distance"].num_classes))


def test_kitti_as_the_reference(reference):
    rows = zip(
        reference["kitti/type"], reference["kitti/location"], reference["kitti/num_objects"], strict=True
    )
    records = [{"objects": {"type": kind[:n], "location": place[:n]}} for kind, place, n in rows]
    found = [TASKS["kitti"].rule(r) for r in records]
    assert found == reference["kitti/closest_vehicle_distance"].tolist()
    assert set(found) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("task", "key", "values", "labels"),
    [
        ("dsprites_location", "label_x_position", "dsprites/location_value", "dsprites/location_label"),
        ("dsprites_orientation", "label_orientation", "dsprites/orientation_value",
         "dsprites/orientation_label"),
        ("smallnorb_azimuth", "label_azimuth", None, "smallnorb/label_azimuth"),
        ("smallnorb_elevation", "label_elevation", None, "smallnorb/label_elevation"),
        ("dmlab", "label", None, "dmlab/label"),
    ],
)  # fmt: skip
def test_single_features_as_the_reference(reference, task, key, values, labels):
    wanted = reference[labels].tolist()
    given = range(len(wanted)) if values is None else reference[values]
    found = [TASKS[task].rule({key: np.int64(value)}) for value in given]
    assert found == wanted
    assert sorted(set(found)) == list(range(TASKS[task].num_classes))


@pytest.mark.parametrize(
    ("depth", "label"), [(0.5, 0), (8.0, 0), (8.0001, 1), (9.0, 2), (9.9, 4), (10.0, 4), (50.0, 5)]
)
def test_clevr_borders(depth, label):
    assert vtab_labels.clevr_distance(clevr(depth, 60.0, 99.0)) == label


def test_clevr_counts_from_three():
    assert [vtab_labels.clevr_count(clevr(*[9.0] * n)) for n in range(3, 11)] == list(range(8))


def test_kitti_cases(golden):
    case = json.loads((golden / "cases" / "vtab_kitti.json").read_text())
    for record in case["records"]:
        assert vtab_labels.kitti_distance(kitti(record["types"], record["z"])) == record["label"]
    task = TASKS["kitti"]
    assert task.sizes == case["sizes"]
    assert (task.t, task.v) == (case["train800"], case["val200"])


def test_binned_and_modulo_borders():
    assert [Binned("o", 2.5)({"o": o}) for o in (0, 2, 3, 4, 5, 39)] == [0, 0, 1, 1, 2, 15]
    assert [Modulo("label", 10)({"label": n}) for n in (1, 9, 10, 0)] == [1, 9, 0, 0]
    assert Feature("label")({"label": np.uint8(7)}) == 7


def test_every_rule_travels_to_worker_processes():
    for task in TASKS.values():
        assert pickle.loads(pickle.dumps(task.rule)) == task.rule
