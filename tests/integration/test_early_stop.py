"""The training command stops early, keeps the best checkpoint, and remembers after an interruption."""

import json

import numpy as np
import pytest

from tests.integration.command import (
    assert_same_run,
    cut,
    finish,
    metrics,
    saved_steps,
    state,
)

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

# A learning rate that makes nothing of the model: the loss rises sooner or later.
HOPELESS = {
    "optim.lr": 3.0,
    "total_steps": 200,
    "eval.every_steps": 5,
    "data.val": "digits@test[:64]",
    "data.test": "digits@test[64:128]",
    "early_stop.metric": "eval/val/loss",
    "early_stop.patience": 3,
}


def test_it_stops_remembers_and_keeps_the_best(command, tmp_path):
    run = tmp_path / "run"
    done = command.run(run, HOPELESS, devices=4)
    assert done.code == 0, done.err
    losses = {step: line["eval/val/loss"] for step, line in metrics(run).items() if "eval/val/loss" in line}
    steps = sorted(losses)
    best, last = min(steps, key=losses.get), steps[-1]
    assert last == best + 15 < 200 and saved_steps(run)[-1] == last
    reason = (
        f"stopped early: eval/val/loss no better in 3 evaluations, best at step {best}: {losses[best]:.6g}"
    )
    assert done.result.startswith(f"done step={last} ") and done.result.endswith(f"({reason})")
    assert "eval/test/accuracy=" in done.result
    assert f"done, {reason.replace(': ', ' (', 1)})" in done.err
    assert json.loads((run / "run.json").read_text())["starts"][-1]["end"]["how"].startswith(
        "done, stopped early"
    )
    assert int(state(run, folder="best")["step"]) == best

    again = command.run(run, HOPELESS, devices=4)  # it stays stopped
    assert (again.code, again.result) == (0, done.result)
    assert saved_steps(run)[-1] == last

    crashed = cut(run, tmp_path / "crashed", saved_steps(run)[0])
    assert (again := command.run(crashed, HOPELESS, devices=4)).code == 0, again.err
    assert again.result == done.result
    assert_same_run(crashed, run)

    two = tmp_path / "two"
    both = [finish(process) for process in command.start_group(two, HOPELESS | {"total_steps": last + 40})]
    assert [process.code for process in both] == [0, 0], both
    assert saved_steps(two)[-1] % 5 == 0 and "(stopped early: " in both[0].out
    assert np.isfinite(metrics(two)[saved_steps(two)[-1]]["eval/test/loss"])
