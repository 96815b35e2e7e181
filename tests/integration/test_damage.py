"""Every file of the newest checkpoint, damaged in turn: named, passed over, and the run ends as if nothing were."""

import json
import shutil

import jax
import numpy as np
import pytest

from tests.integration.command import assert_same_run, assert_same_state, cut, saved_steps, state
from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax.checkpoint import Checkpoints
from vit_jax.data.dataset import open_dataset
from vit_jax.paths import named_leaves
from vit_jax.workdir import read_config


def _flip(path):
    content = bytearray(path.read_bytes())
    if not content:  # an empty mark: nothing to flip, so something to add
        content = bytearray(b"\0")
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if content else b"?")


DAMAGES = {"flipped": _flip, "truncated": _truncate, "deleted": lambda path: path.unlink()}


def _files(step_folder):
    return sorted(path for path in step_folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def target(finished):
    """The abstract state of the run, on one device."""
    config = config_lib.from_dict(read_config(finished("plain")))
    data = open_dataset(config.data, seed=config.seed, num_classes=config.num_classes)
    return job_lib.build(config, data.facts(), jax.devices()[:1]).abstract_state


def _check(damage, number, folder, target, expected, caplog):
    """Damages one file of step 30 in a copy and restores as a restart does."""
    path = _files(folder / "30")[number]
    name = str(path.relative_to(folder / "30"))
    DAMAGES[damage](path)
    caplog.clear()
    checkpoints = Checkpoints(folder, keep=3, keep_every_steps=None)
    step, restored = checkpoints.restore_latest(target)
    checkpoints.close()
    messages = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]
    what = f"{name} {damage}"
    if step == 30:
        # Of a file that nothing is read from, an empty mark of a step for instance, its being there is enough.
        assert damage != "deleted" and path.name in ("commit_success.txt", "_CHECKPOINT_METADATA"), what
        assert messages == [], what
    else:
        assert step == 20, what
        (message,) = messages
        assert message.startswith("checkpoint step 30 damaged: "), what
        assert message.endswith("; using step 20") and "\n" not in message, what
        assert saved_steps(folder.parent) == [10, 20], what  # set aside, to be saved again
    assert_same_state({k: np.asarray(v) for k, v in named_leaves(restored).items()}, expected[step])


def _restore_all(cases, finished, tmp_path, target, caplog):
    run = finished("plain")
    expected = {step: state(run, step) for step in (20, 30)}
    for number, damage in cases(len(_files(run / "checkpoints" / "30"))):
        workdir = tmp_path / f"{damage}-{number}"
        shutil.copytree(run / "checkpoints", workdir / "checkpoints")
        _check(damage, number, workdir / "checkpoints", target, expected, caplog)
        shutil.rmtree(workdir)


def test_each_file_damaged_in_one_way(finished, tmp_path, target, caplog):
    ways = list(DAMAGES)
    _restore_all(
        lambda count: [(n, ways[n % len(ways)]) for n in range(count)], finished, tmp_path, target, caplog
    )


@pytest.mark.slow
def test_each_file_damaged_in_every_way(finished, tmp_path, target, caplog):
    _restore_all(
        lambda count: [(n, way) for n in range(count) for way in DAMAGES], finished, tmp_path, target, caplog
    )


def _largest(folder):
    return max(_files(folder / "state"), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize(
    ("damage", "pick", "why"),
    [
        pytest.param("flipped", _largest, "state/", id="a bit of an array"),
        pytest.param(
            "deleted", lambda f: f / "commit_success.txt", "commit", id="no commit mark", marks=pytest.mark.slow
        ),
        pytest.param(
            "deleted", lambda f: f / "digests.json", "digests.json is missing", id="no record",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "truncated", lambda f: f / "state" / "_METADATA", "state/_METADATA", id="half the metadata",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_the_command_goes_on_from_the_step_before(command, finished, golden, tmp_path, damage, pick, why):
    scenarios = json.loads((golden / "cases" / "resume_scenarios.json").read_text())["scenarios"]
    assert any(case["id"] == "killed-save" for case in scenarios)
    unbroken = finished("plain")
    run = cut(unbroken, tmp_path / "run", 30)
    DAMAGES[damage](pick(run / "checkpoints" / "30"))
    done = command.run(run)
    assert done.code == 0 and "Traceback" not in done.err
    (line,) = [line for line in done.err.splitlines() if "damaged" in line]
    assert "checkpoint step 30 damaged: " in line and why in line and line.endswith("; using step 20")
    assert "continuing from step 20 " in done.err
    assert saved_steps(run) == [10, 20, 30]
    assert_same_run(run, unbroken)


def test_nothing_intact_is_an_error_that_says_so(command, finished, tmp_path):
    run = cut(finished("plain"), tmp_path / "run", 30)
    for step in (10, 20, 30):
        _truncate(_largest(run / "checkpoints" / str(step)))
    done = command.run(run)
    assert done.code == 2 and "Traceback" not in done.err
    assert f"no intact checkpoint in {run}/checkpoints: step 30: " in done.error
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["10", "20", "30"]
