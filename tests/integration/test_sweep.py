"""`train --sweep`: a grid on the dev split, the best on the whole training set, and going on after a stop."""

import json
import shutil
import signal

import pytest

from tests.integration.command import finish, metrics, state, wait_for

GRID = {
    "sweep.lr": "(0.0001,0.05)",
    "sweep.train": "train[:98%]",
    "sweep.dev": "train[98%:]",
    "optim.name": "sgd",
    "warmup_steps": 2,
    "eval.every_steps": None,
    "mixup_alpha": 0.0,
}
NAMES = [f"lr={lr},steps={steps}" for steps in (10, 20) for lr in ("0.0001", "0.05")]


def test_the_best_of_the_grid_trains_on_everything(command, tmp_path):
    run = tmp_path / "run"
    done = command.run(run, GRID, flags=("--sweep",))
    assert done.code == 0, done.err
    record = json.loads((run / "sweep.json").read_text())
    accuracies = record["eval/val/accuracy"]
    assert sorted(accuracies) == ["lr=0.0001", "lr=0.05"]
    for name, accuracy in accuracies.items():
        config = json.loads((run / "sweep" / name / "config.json").read_text())
        assert (config["data"]["train"], config["data"]["val"], config["data"]["test"]) == (
            "digits@train[:98%]", "digits@train[98%:]", "",
        )  # fmt: skip
        steps = metrics(run / "sweep" / name)
        assert steps[config["total_steps"]]["eval/val/accuracy"] == accuracy
        assert steps[config["total_steps"]]["eval/val/count"] == 29
    assert accuracies[record["best"]] == max(accuracies.values())

    final = json.loads((run / "config.json").read_text())
    assert f"lr={final['optim']['lr']:g}" == record["best"]
    assert final["data"]["train"] == "digits@train" and final["data"]["val"] == ""
    lines = done.out.splitlines()
    assert f"sweep {record['best']} eval/val/accuracy={max(accuracies.values()):.6g}  <- best" in lines
    assert lines[-1].startswith(f"done step={final['total_steps']} eval/test/accuracy=")

    # What is known is of this config alone.
    done = command.run(run, GRID | {"seed": 7}, flags=("--sweep",))
    assert done.code == 2 and "sweep.json is of another config: seed is 0 there, 7 here" in done.error
    done = command.run(run, GRID | {"sweep.lr": "(0.2,)"}, flags=("--sweep",))
    assert done.code == 2 and "which this grid lacks" in done.error


@pytest.mark.slow
def test_stopped_in_its_third_trial_it_goes_on_there_and_ends_with_the_same_parameters(command, tmp_path):
    grid = GRID | {"sweep.steps": "(10,20)"}
    run, again = tmp_path / "run", tmp_path / "again"
    assert command.run(run, grid, flags=("--sweep",)).code == 0
    process = command.start(again, grid, flags=("--sweep",))
    wait_for((again / "sweep" / NAMES[2] / "config.json").exists, process, "the third trial")
    process.send_signal(signal.SIGTERM)
    assert finish(process).code == 42
    assert len(json.loads((again / "sweep.json").read_text())["eval/val/accuracy"]) == 2
    shutil.rmtree(again / "sweep" / NAMES[0])  # known already: not run again
    done = command.run(again, grid, flags=("--sweep",))
    assert done.code == 0, done.err
    assert not (again / "sweep" / NAMES[0]).exists()
    left, right = state(run), state(again)
    assert all(left[name].tobytes() == right[name].tobytes() for name in left if name.startswith("params/"))


def test_a_sweep_without_a_grid_or_a_dev_split_is_refused(command, tmp_path):
    for sets, words in (
        ({}, "--sweep without a grid"),
        (GRID | {"data.mixture": "(('digits',1),)", "data.train": ""}, "--sweep with data.mixture"),
        ({"sweep.lr": "(0.1,)"}, "--sweep without sweep.train"),
        (GRID | {"sweep.lr": "(0.1,-1)"}, "sweep.lr holds -1"),
    ):
        done = command.run(tmp_path / "run", sets, flags=("--sweep",))
        assert done.code == 2 and words in done.error
