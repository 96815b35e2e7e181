"""A process of several that dies, fails or hangs: the others end soon and say why, and the run can go on."""

import os
import signal
import subprocess
import time

import pytest

from tests.integration.command import begun_steps, example_ids, finish, saved_steps, wait_for
from tests.integration.test_bad_examples import FOLDER
from tests.integration.test_processes import SHARDED

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

QUICK = {"distributed.heartbeat_seconds": 10}
SHORT = SHARDED | {"total_steps": 60, "checkpoint.every_steps": 20, "eval.every_steps": None}
AGAIN = "start the same command again on all hosts; it continues from step"


def _killed(err, prefix=""):
    """The step that a survivor says the run goes on from, and the rest of its last words."""
    (line,) = [line for line in err.splitlines() if line.startswith(f"{prefix}error: process")]
    what, _, step = line.removeprefix(prefix).removesuffix(")").rpartition(" ")
    return int(step), what


def test_a_killed_process_is_named_and_the_launcher_starts_all_again(command, finished, tmp_path):
    alone = finished("four_devices_short", SHORT, devices=4)
    run = tmp_path / "run"
    launcher = command.launch(run, SHORT | QUICK, 2, 2, "--restarts=1")
    wait_for(lambda: 20 in saved_steps(run), launcher, "step 20")
    listed = subprocess.run(["ps", "--ppid", str(launcher.pid), "-o", "pid="], capture_output=True, text=True)
    os.kill(max(map(int, listed.stdout.split())), signal.SIGKILL)
    done = finish(launcher)
    assert done.code == 0, done.err
    step, what = _killed(done.err, "[0] ")
    assert what == f"error: process 1 of 2 is gone: no heartbeat for 10 s ({AGAIN}"
    assert "restart 1 of 1" in done.err and f"continuing from step {step} " in done.err
    assert saved_steps(run) == [20, 40, 60]
    assert example_ids(run) == example_ids(alone)


def test_the_death_of_the_main_process_ends_the_other_at_once(command, tmp_path):
    run = tmp_path / "run"
    processes = command.start_group(run, SHORT | QUICK | {"total_steps": 100_000})
    wait_for(lambda: len(saved_steps(run)) >= 2, processes[0], "two checkpoints")
    processes[0].kill()
    killed = time.monotonic()
    done = [finish(process) for process in processes]
    assert time.monotonic() - killed < 30
    assert [d.code for d in done] == [-signal.SIGKILL, 134], done  # launchers start all again on it
    step, what = _killed(done[1].err)
    assert done[1].error.startswith(what) and step in saved_steps(run)
    assert what == f"error: process 0 of 2 is gone: the connection to it broke ({AGAIN}"


def test_an_error_of_one_process_is_told_by_the_others(command, pictures, tmp_path):
    sets = SHARDED | FOLDER | QUICK | {"data.train": f"folder:{pictures}", "eval.every_steps": None}
    processes = command.start_group(tmp_path / "run", sets)
    began = time.monotonic()
    done = [finish(process) for process in processes]
    assert [d.code for d in done] == [1, 1], done
    assert time.monotonic() - began < 60
    bad = str(pictures / "train" / "dark" / "03.png")
    assert all(bad in d.error for d in done)
    told = [d.error.startswith(f"error: process {1 - i} of 2 failed: ") for i, d in enumerate(done)]
    assert sorted(told) == [False, True], done
    assert all("Traceback" not in d.err for d in done)


def test_a_process_that_hangs_shows_in_the_stacks_of_the_others(command, tmp_path):
    run = tmp_path / "run"
    processes = command.start_group(
        run, SHORT | {"watchdog_minutes": 0.05, "distributed.heartbeat_seconds": 100}
    )
    wait_for(lambda: begun_steps(run) >= 5, processes[0], "step 5")
    processes[1].send_signal(signal.SIGSTOP)
    time.sleep(8)
    processes[1].send_signal(signal.SIGCONT)
    done = [finish(process) for process in processes]
    assert [d.code for d in done] == [0, 0], done
    assert "Timeout (0:00:03)!" in done[0].err and "most recent call first" in done[0].err
    assert begun_steps(run) == 60
