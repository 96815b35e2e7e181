"""Several processes on this machine: they compute what one does, stop together, and go on in another number."""

import signal
import time

import pytest

from tests.collectives import own_lines
from tests.integration.command import (
    assert_same_state,
    begun_steps,
    example_ids,
    finish,
    json_lines,
    metrics,
    saved_steps,
    state,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

# Both ways of mixing examples, whose partners may be in another process.
SHARDED = {"mesh.replica": 2, "mesh.fsdp": 2, "fsdp_min_size": 1, "log_every_steps": 1, "cutmix_alpha": 1.0}
LONG = SHARDED | {
    "total_steps": 200,
    "warmup_steps": 20,
    "checkpoint.every_steps": 50,
    "eval.every_steps": None,
}


def _agree(left, right, steps, rel=1e-5):
    for step in steps:
        for key in ("train/loss", "train/lr", "eval/test/loss"):
            if key in right[step]:
                assert left[step][key] == pytest.approx(right[step][key], rel=rel), (step, key)


def test_two_processes_compute_what_one_does(command, finished, tmp_path):
    alone = finished("four_devices", SHARDED, devices=4)
    processes = command.start_group(tmp_path / "run", SHARDED)
    main, other = [finish(process) for process in processes]
    assert (main.code, other.code) == (0, 0), main.err + other.err
    assert own_lines(main.out)[-1].startswith("done step=30 eval/test/accuracy=")
    assert own_lines(other.out) == []
    run = tmp_path / "run"
    assert saved_steps(run) == [10, 20, 30]
    assert example_ids(run) == example_ids(alone)
    _agree(metrics(run), metrics(alone), range(1, 31))
    assert metrics(run)[30]["eval/test/count"] == 360
    keys = [line["step"] for line in json_lines(run / "metrics.jsonl") if "train/loss" in line]
    assert keys == list(range(1, 31))  # one process writes


def test_sigterm_to_one_stops_both_and_one_process_goes_on(command, finished, tmp_path):
    alone = finished("four_devices_long", LONG, devices=4)
    run = tmp_path / "run"
    processes = command.start_group(run, LONG)
    wait_for(lambda: begun_steps(run) >= 20, processes[0], "step 20")
    processes[1].send_signal(signal.SIGTERM)
    sent = time.monotonic()
    done = [finish(process) for process in processes]
    assert [d.code for d in done] == [42, 42], done
    assert time.monotonic() - sent < 15
    stopped_at = saved_steps(run)[-1]
    assert own_lines(done[0].out) == [f"preempted step={stopped_at}: saved; the same command continues"]

    before = state(run)
    again = command.run(run, LONG, devices=4)
    assert again.code == 0, again.err
    assert f"continuing from step {stopped_at} " in again.err
    if stopped_at % 50 == 0 and stopped_at in saved_steps(run):
        assert_same_state(state(run, stopped_at), before)
    assert example_ids(run) == example_ids(alone)
    _agree(metrics(run), metrics(alone), range(1, min(stopped_at + 10, 200)))


def test_four_processes_compute_what_one_does(command, finished, tmp_path):
    """103 examples in batches of 24 over 8 devices: some processes see more of them than others."""
    sets = SHARDED | {"mesh.fsdp": 4, "data.test": "digits@test[:103]", "eval.global_batch": 24}
    alone = finished("eight_devices_103", sets, devices=8)
    done = finish(command.launch(tmp_path / "run", sets, 4, 2))
    assert done.code == 0, done.err
    run = tmp_path / "run"
    assert metrics(run)[30]["eval/test/count"] == 103
    assert metrics(run)[30]["eval/test/correct"] == metrics(alone)[30]["eval/test/correct"]
    assert example_ids(run) == example_ids(alone)
    _agree(metrics(run), metrics(alone), range(1, 31))


def test_sigterm_while_evaluating_stops_both(command, tmp_path):
    sets = SHARDED | {
        "total_steps": 20, "eval.every_steps": 10, "eval.global_batch": 4, "data.test": "digits@train+test",
        "log_every_steps": 5,
    }  # fmt: skip
    run = tmp_path / "run"
    processes = command.start_group(run, sets)
    wait_for(lambda: begun_steps(run) >= 10, processes[0], "step 10")
    processes[1].send_signal(signal.SIGTERM)
    done = [finish(process) for process in processes]
    assert [d.code for d in done] == [42, 42], done
    assert saved_steps(run) == [10]
    assert "told to stop (SIGTERM): saving step 10" in done[0].err


# Steps enough to be stopped twice: the signal is noticed within two seconds.
ELASTIC = {
    "fsdp_min_size": 1,
    "total_steps": 240,
    "warmup_steps": 20,
    "checkpoint.every_steps": 80,
    "eval.every_steps": None,
    "log_every_steps": 1,
}


def test_a_run_goes_on_with_other_processes_devices_and_mesh(command, finished, tmp_path):
    unbroken = finished("elastic", ELASTIC | {"mesh.replica": 2, "mesh.fsdp": 4}, devices=8)
    run, stops = tmp_path / "run", []
    for processes, devices, mesh, at in ((4, 2, (2, 4, 1), 10), (2, 2, (1, 2, 2), 80)):
        sets = ELASTIC | dict(zip(("mesh.replica", "mesh.fsdp", "mesh.tensor"), mesh, strict=True))
        process = command.launch(run, sets, processes, devices)
        wait_for(lambda at=at: begun_steps(run) >= at, process, f"step {at}")
        process.send_signal(signal.SIGTERM)
        done = finish(process)
        assert done.code == 42, done.err
        stops.append(saved_steps(run)[-1])
        assert f"preempted step={stops[-1]}: saved" in done.out
    before = state(run)
    last = command.run(run, ELASTIC | {"mesh.fsdp": 4, "mesh.tensor": 2}, devices=8)
    assert last.code == 0, last.err
    assert f"continuing from step {stops[1]} " in last.err
    assert_same_state(state(run, stops[1]), before)
    assert example_ids(run) == example_ids(unbroken)
    # What other meshes add up in another order differs in the last bits of float32, and training carries it on.
    _agree(metrics(run), metrics(unbroken), range(1, stops[0] + 10))
    _agree(metrics(run), metrics(unbroken), range(1, 241), rel=1e-3)
