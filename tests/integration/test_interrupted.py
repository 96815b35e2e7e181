"""A run that is killed or told to stop, at any moment, and started again ends like one that wasn't."""

import json
import signal
import time

import numpy as np
import pytest

from tests.integration.command import (
    assert_same_run,
    begun_steps,
    finish,
    json_lines,
    metrics,
    saved_steps,
    wait_for,
)

# The signal is noticed within two seconds: steps enough for that, and saves on the way.
LONG = {
    "total_steps": 1500,
    "warmup_steps": 100,
    "checkpoint.every_steps": 300,
    "eval.every_steps": 750,
    "log_every_steps": 100,
}
# Evaluations of some seconds.
SLOW_EVALUATION = {
    "total_steps": 20,
    "checkpoint.every_steps": 10,
    "eval.every_steps": 10,
    "eval.global_batch": 1,
    "data.test": "digits@train+test",
}


def _kill_while_saving(process, workdir):
    """Kills the process for certain in the middle of a save, after one that was completed."""
    folder = workdir / "checkpoints"

    def saving():
        return saved_steps(workdir) and any("orbax-checkpoint-tmp" in path.name for path in folder.iterdir())

    while True:
        wait_for(saving, process, "save")
        process.send_signal(signal.SIGSTOP)
        if saving():
            break
        process.send_signal(signal.SIGCONT)  # just finished: wait for the next
    process.kill()
    assert finish(process).code == -signal.SIGKILL


def _kill(process, after_seconds=0.0):
    time.sleep(after_seconds)
    process.kill()
    return finish(process)


def _to_the_end(command, workdir, sets=None):
    done = command.run(workdir, sets)
    assert done.code == 0, done.err
    assert done.result.startswith("done step=")
    json_lines(workdir / "metrics.jsonl")
    return done


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_a_random_step(command, finished, tmp_path, seed):
    unbroken = finished("plain")
    rng = np.random.default_rng(seed)
    step = int(rng.integers(1, 30))
    process = command.start(tmp_path / "run")
    wait_for(lambda: begun_steps(tmp_path / "run") >= step, process, f"step {step}")
    _kill(process, rng.uniform(0, 0.02))
    _to_the_end(command, tmp_path / "run")
    assert_same_run(tmp_path / "run", unbroken)


def test_killed_while_saving(command, finished, tmp_path):
    unbroken = finished("plain")
    process = command.start(tmp_path / "run")
    _kill_while_saving(process, tmp_path / "run")
    intact = saved_steps(tmp_path / "run")[-1]
    assert intact in (10, 20)
    done = _to_the_end(command, tmp_path / "run")
    (line,) = [line for line in done.err.splitlines() if "damaged" in line]
    assert line.endswith(
        f"checkpoint step {intact + 10} damaged: incomplete, its save was cut off; using step {intact}"
    )
    assert saved_steps(tmp_path / "run") == [10, 20, 30]
    assert_same_run(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_killed_again_and_again_at_any_moment(command, finished, tmp_path):
    """From the first import to the last evaluation; in all ten kills, then to the end."""
    unbroken = finished("long", LONG)
    rng = np.random.default_rng(7)
    begun, kills = time.monotonic(), 0
    whole = command.run(tmp_path / "timed", LONG).seconds
    run = tmp_path / "run"
    while kills < 10:
        assert time.monotonic() - begun < 600
        process = command.start(run, LONG)
        done = _kill(process, rng.uniform(0, whole))
        if done.code == 0:  # too late; once more from the start
            assert_same_run(run, unbroken)
            run = tmp_path / f"run{kills}"
            continue
        assert done.code == -signal.SIGKILL
        kills += 1
    _to_the_end(command, run, LONG)
    assert_same_run(run, unbroken)


def _stop(process, code=42):
    process.terminate()
    done = finish(process)
    assert done.code == code, done.err
    assert done.seconds < 10
    return done


def test_sigterm_saves_the_step_it_is_at(command, finished, tmp_path):
    unbroken = finished("long", LONG)
    step = int(np.random.default_rng(3).integers(1, 300))
    process = command.start(tmp_path / "run", LONG)
    wait_for(lambda: begun_steps(tmp_path / "run") >= step, process, f"step {step}")
    done = _stop(process)
    stopped_at = saved_steps(tmp_path / "run")[-1]
    assert step <= stopped_at < 1500
    assert f"told to stop (SIGTERM): saving step {stopped_at}" in done.err
    assert done.result == f"preempted step={stopped_at}: saved; the same command continues"
    assert f"preempted at step {stopped_at} of 1500: {stopped_at} steps, {16 * stopped_at} images" in done.err
    again = _to_the_end(command, tmp_path / "run", LONG)
    assert f"continuing from step {stopped_at} " in again.err
    assert f"done at step 1500 of 1500: {1500 - stopped_at} steps" in again.err
    starts = json.loads((tmp_path / "run" / "run.json").read_text())["starts"]
    assert [start["end"]["how"] for start in starts] == ["preempted", "done"]
    best = starts[1]["end"]["best"]["eval/test/accuracy"]
    assert best["value"] == max(
        v["eval/test/accuracy"] for v in metrics(unbroken).values() if "eval/test/loss" in v
    )
    assert_same_run(tmp_path / "run", unbroken)


@pytest.mark.parametrize(
    ("begun", "stopped_at"),
    [
        pytest.param(10, 10, id="right after a save, noticed in the evaluation"),
        pytest.param(20, 20, id="in the last step, noticed in the last evaluation", marks=pytest.mark.slow),
    ],
)
def test_sigterm_while_evaluating(command, finished, tmp_path, begun, stopped_at):
    unbroken = finished("slow_evaluation", SLOW_EVALUATION)
    process = command.start(tmp_path / "run", SLOW_EVALUATION)
    wait_for(lambda: begun_steps(tmp_path / "run") >= begun, process, f"step {begun}")
    _stop(process)
    assert saved_steps(tmp_path / "run")[-1] == stopped_at
    done = _to_the_end(command, tmp_path / "run", SLOW_EVALUATION)
    assert f"continuing from step {stopped_at} " in done.err
    assert_same_run(tmp_path / "run", unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_sigterm_at_any_moment_of_two_starts(command, finished, tmp_path, seed):
    unbroken = finished("long", LONG)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        already = begun_steps(tmp_path / "run")
        process = command.start(tmp_path / "run", LONG)
        step = already + int(rng.integers(0, 400))
        wait_for(lambda step=step: begun_steps(tmp_path / "run") > step, process, f"step {step}")
        time.sleep(rng.uniform(0, 0.5))
        _stop(process)
    _to_the_end(command, tmp_path / "run", LONG)
    assert_same_run(tmp_path / "run", unbroken)
