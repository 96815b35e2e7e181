"""A whole run by the command: what it leaves, that it repeats bit for bit, and where it can start from."""

import json
import shutil

import pytest

from tests.integration.command import (
    assert_same_run,
    assert_same_state,
    cut,
    example_ids,
    json_lines,
    metrics,
    saved_steps,
    state,
)


def test_a_run_leaves_its_records_and_a_second_one_is_equal_bit_for_bit(command, finished, tmp_path):
    sets = {"tensorboard": True}
    unbroken = finished("plain")
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    assert "Warning" not in done.err and "Traceback" not in done.err
    assert_same_run(tmp_path / "run", unbroken)

    folder = tmp_path / "run"
    assert saved_steps(folder) == [10, 20, 30]
    assert json.loads((folder / "config.json").read_text())["total_steps"] == 30
    assert (folder / "classes.txt").read_text() == "".join(f"{i}\n" for i in range(10))
    (start,) = json.loads((folder / "run.json").read_text())["starts"]
    assert start["devices"]["count"] == 1 and start["versions"]["jax"]
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    lines = metrics(folder)
    assert list(lines) == [1, 5, 10, 15, 20, 25, 30]
    assert {"train/loss", "train/lr", "train/grad_norm", "train/skipped"} <= lines[5].keys()
    assert lines[15]["eval/test/count"] == lines[30]["eval/test/count"] == 360
    assert lines[30]["eval/test/accuracy"] == lines[30]["eval/test/correct"] / 360
    rates = [
        line["train/img_per_sec"] for line in json_lines(folder / "metrics.jsonl") if "train/loss" in line
    ]
    assert all(rate > 0 for rate in rates)
    assert list(example_ids(folder)) == list(range(30))
    epoch = {i for ids in example_ids(folder).values() for i in ids}
    assert len(epoch) == 480  # no example twice in the first epoch

    accuracy = f"{lines[30]['eval/test/accuracy']:.6g}"
    assert done.result.startswith(f"done step=30 eval/test/accuracy={accuracy} ")

    again = command.run(folder, sets)
    assert again.code == 0
    assert "already finished at step 30" in again.err
    assert again.result == done.result
    assert saved_steps(folder) == [10, 20, 30]


@pytest.mark.slow
def test_the_compilation_cache_changes_no_bit(command, finished, tmp_path):
    assert command.run(tmp_path / "run", {"compile_cache": None, "total_steps": 30}).code == 0
    assert_same_state(state(tmp_path / "run"), state(finished("plain")))


def test_resume_goes_on_from_a_step_of_another_run(command, finished, tmp_path):
    unbroken = finished("plain")
    done = command.run(tmp_path / "run", {"resume": f"{unbroken}@20"})
    assert done.code == 0, done.err
    assert f"resuming from step 20 of {unbroken}/checkpoints" in done.err
    assert_same_state(state(tmp_path / "run"), state(unbroken))
    assert list(example_ids(tmp_path / "run")) == list(range(20, 30))
    assert metrics(tmp_path / "run")[30] == metrics(unbroken)[30]

    # Its own checkpoints come first from now on.
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "30")
    assert saved_steps(tmp_path / "run") == []
    again = command.run(tmp_path / "run", {"resume": f"{unbroken}@10", "total_steps": 30})
    assert again.code == 0, again.err
    assert_same_state(state(tmp_path / "run"), state(unbroken))


def test_init_takes_the_parameters_alone(command, finished, tmp_path):
    unbroken = finished("plain")
    # With a learning rate of zero what was read comes out again.
    sets = {"init": f"{unbroken}@10", "total_steps": 2, "warmup_steps": 0, "optim.lr": 0.0}
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    left, right = state(tmp_path / "run"), state(unbroken, 10)
    params = [name for name in right if name.startswith("params/")]
    assert len(params) == 24
    for name in params:
        assert left[name].tobytes() == right[name].tobytes(), name
    assert left["step"] == 2 and right["step"] == 10
    assert any(
        left[name].tobytes() != right[name].tobytes() for name in right if name.startswith("opt_state/")
    )


def test_another_total_is_refused_without_a_word_and_named_with_it(command, golden, finished, tmp_path):
    case = json.loads((golden / "cases" / "schedule_resume.json").read_text())
    saved, total = case["saved"], case["resumed_with"]["total_steps"]
    sets = {
        "total_steps": saved["total_steps"],
        "warmup_steps": saved["warmup_steps"],
        "optim.lr": saved["base_lr"],
        "checkpoint.every_steps": saved["step"],
        "eval.every_steps": None,
        "log_every_steps": 1,
    }
    run = cut(finished("of_100_steps", sets), tmp_path / "run", saved["step"])
    assert saved_steps(run) == [50]
    refused = command.run(run, sets | {"total_steps": total})
    assert refused.code == 2
    assert "total_steps is 100 there, 200 here" in refused.error
    assert "allow_total_change=true" in refused.error

    done = command.run(run, sets | {"total_steps": total, "allow_total_change": True})
    assert done.code == 0, done.err
    (line,) = [line for line in done.err.splitlines() if "total_steps was" in line]
    assert "total_steps was 100, is 200" in line
    assert "at step 50 becomes 0.0256066 instead of 0.015" in line
    lrs = metrics(run)
    # Step n was computed with the rate of n - 1 updates made.
    assert lrs[51]["train/lr"] == pytest.approx(case["lr_after_if_f_of_new_total"], rel=1e-6)
    assert saved_steps(run)[-1] == total
