"""Two processes with two devices each, on this machine: they compute what one does, and stop together."""

import signal
import socket
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

SHARDED = {"mesh.replica": 2, "mesh.fsdp": 2, "fsdp_min_size": 1, "log_every_steps": 1}
LONG = SHARDED | {
    "total_steps": 200,
    "warmup_steps": 20,
    "checkpoint.every_steps": 50,
    "eval.every_steps": None,
}


def _start_two(command, workdir, sets):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    return [command.start(workdir, sets, devices=2, env=env | {"JAX_PROCESS_ID": str(i)}) for i in range(2)]


def _agree(left, right, steps):
    for step in steps:
        for key in ("train/loss", "train/lr", "eval/test/loss"):
            if key in right[step]:
                assert left[step][key] == pytest.approx(right[step][key], rel=1e-5), (step, key)


def test_two_processes_compute_what_one_does(command, finished, tmp_path):
    alone = finished("four_devices", SHARDED, devices=4)
    processes = _start_two(command, tmp_path / "run", SHARDED)
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
    processes = _start_two(command, run, LONG)
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


def test_killing_one_ends_the_other(command, tmp_path):
    sets = LONG | {"distributed.heartbeat_seconds": 10, "total_steps": 100_000, "log_every_steps": 1000}
    processes = _start_two(command, tmp_path / "run", sets)
    wait_for(lambda: begun_steps(tmp_path / "run") >= 20, processes[0], "step 20")
    processes[1].kill()
    done = [finish(process) for process in processes]
    assert done[1].code == -signal.SIGKILL
    # Our own error, or the abort of jax's coordination service: a launcher starts both again.
    assert done[0].code in (1, -signal.SIGABRT, 134), done[0].err
