"""The same run on other devices: any mesh takes it up, bit for bit at the switch, and goes on to the same end."""

import json

import jax
import numpy as np
import pytest

from tests.integration.command import assert_same_state, cut, example_ids, metrics, saved_steps, state
from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax.checkpoint import Reader
from vit_jax.data.dataset import open_dataset
from vit_jax.paths import named_leaves
from vit_jax.workdir import read_config

SHARDED = {"mesh.replica": 1, "mesh.fsdp": 8, "fsdp_min_size": 1, "log_every_steps": 1}


def _same_numbers(run, reference, steps):
    """Sums over other numbers of devices round otherwise."""
    left, right = metrics(run), metrics(reference)
    for step in steps:
        for key in ("train/loss", "train/lr"):
            assert left[step][key] == pytest.approx(right[step][key], rel=1e-5), (step, key)
        if "eval/test/loss" in right[step]:
            assert left[step]["eval/test/loss"] == pytest.approx(right[step]["eval/test/loss"], rel=1e-5)
            assert left[step]["eval/test/count"] == 360
            assert abs(left[step]["eval/test/correct"] - right[step]["eval/test/correct"]) <= 1
    assert example_ids(run) == example_ids(reference)


@pytest.mark.parametrize(
    ("devices", "mesh"),
    [(1, (1, 1, 1)), (2, (1, 2, 1)), (4, (1, 4, 1)), (4, (2, 1, 2)), (8, (2, 2, 2)), (8, (8, 1, 1))],
)
def test_saved_on_eight_devices_restored_on_others(finished, golden, devices, mesh):
    """The case restart-devices: values bit-equal, shardings those of the new mesh."""
    scenarios = json.loads((golden / "cases" / "resume_scenarios.json").read_text())["scenarios"]
    assert any(case["id"] == "restart-devices" for case in scenarios)
    run = finished("sharded", SHARDED, devices=8)
    config = config_lib.from_dict(read_config(run))
    config.mesh.replica, config.mesh.fsdp, config.mesh.tensor = mesh
    data = open_dataset(config.data, seed=config.seed, num_classes=config.num_classes)
    job = job_lib.build(config, data.facts(), jax.devices()[:devices])
    restored = named_leaves(Reader(run / "checkpoints").restore(20, job.abstract_state))
    wanted = named_leaves(job.abstract_state)
    assert all(restored[name].sharding == wanted[name].sharding for name in wanted)
    split = [name for name, leaf in restored.items() if not leaf.sharding.is_fully_replicated]
    assert bool(split) == (mesh[1] * mesh[2] > 1)
    assert_same_state({name: np.asarray(leaf) for name, leaf in restored.items()}, state(run, 20))


def test_eight_devices_compute_what_one_does(finished):
    _same_numbers(
        finished("sharded", SHARDED, devices=8),
        finished("one_device", {"log_every_steps": 1}),
        range(1, 31),
    )


@pytest.mark.parametrize(
    ("devices", "mesh"),
    [
        pytest.param(1, (1, 1, 1)),
        pytest.param(2, (1, 2, 1), marks=pytest.mark.slow),
        pytest.param(4, (1, 4, 1), marks=pytest.mark.slow),
        pytest.param(4, (2, 1, 2), marks=pytest.mark.slow),
        pytest.param(8, (2, 2, 2), marks=pytest.mark.slow),
    ],
)
def test_the_run_goes_on_with_other_devices_in_its_own_workdir(command, finished, tmp_path, devices, mesh):
    unbroken = finished("sharded", SHARDED, devices=8)
    run = cut(unbroken, tmp_path / "run", 10)
    (run / "metrics.jsonl").unlink()
    sets = SHARDED | dict(zip(("mesh.replica", "mesh.fsdp", "mesh.tensor"), mesh, strict=True))
    done = command.run(run, sets, devices=devices)
    assert done.code == 0, done.err
    assert "continuing from step 10 " in done.err
    assert saved_steps(run) == [10, 20, 30]
    assert_same_state(state(run, 10), state(unbroken, 10))
    _same_numbers(run, unbroken, range(11, 31))
    starts = json.loads((run / "run.json").read_text())["starts"]
    assert [start["devices"]["count"] for start in starts] == [8, devices]
    assert "mesh.fsdp" in starts[1]["changed"] or mesh[1] == 8
