"""`launch.tpu_vm up` with a fake cloud: lost slices, preemptions, failures, and its limits."""

import json

import pytest

from launch import tpu_commands, tpu_loop
from launch.accelerators import tpu_slice
from launch.command import RESTART_CODES, Failed


class FakeCloud:
    """A runner that plays gcloud: states and workers' statuses follow a script, each last one stays."""

    def __init__(self, states, statuses):
        self.states, self.results = list(states), list(statuses)
        self.calls = []

    def __call__(self, argvs, *, quiet=False):
        words = argvs[0]
        if "describe" in words:
            state = self._next(self.states)
            if state == "NOT_FOUND":
                return [tpu_loop.Result(1, "", "ERROR: NOT_FOUND: no such resource")]
            if state == "?":
                return [tpu_loop.Result(1, "", "timeout")]
            return [tpu_loop.Result(0, json.dumps({"state": {"state": state}}))]
        line = words[-1].removeprefix("--command=")
        if "status.sh" in line:
            lines = self._next(self.results)
            if lines is None:
                return [tpu_loop.Result(255)]
            return [
                tpu_loop.Result(
                    0, "".join(f"{tpu_commands.STATUS} w{i} {s}\n" for i, s in enumerate(lines.split()))
                )
            ]
        self.calls.append("stop" if "stop.sh" in line else words[4])
        return [tpu_loop.Result(0) for _ in argvs]

    def _next(self, values):
        return values.pop(0) if len(values) > 1 else values[0]


def play(states, statuses, max_restarts=3):
    """What the loop did in order, and how it ended."""
    fake, seconds = FakeCloud(states, statuses), [0.0]
    spec = tpu_commands.Spec("l16", "z", "p", tpu_slice("v5e-16"), command=("train",))

    def sleep(s):
        seconds[0] += s
        assert seconds[0] < 1e5, fake.calls

    def prepare():
        fake.calls.append("start")
        return True

    clock = tpu_loop.Clock(30.0, sleep, lambda: seconds[0])
    try:
        tpu_loop.up(tpu_loop.Cloud(spec, fake), prepare, clock, max_restarts=max_restarts)
    except Failed as e:
        return fake.calls, str(e)
    return fake.calls, "done"


def test_up_creates_waits_starts_and_watches_to_the_end():
    states = ["NOT_FOUND", "NOT_FOUND", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    assert play(states, ["running running", "0 running", "0 0"]) == (["create", "start"], "done")


@pytest.mark.parametrize("dead", ["FAILED", "SUSPENDED"])
def test_dead_resources_are_deleted_and_asked_for_again(dead):
    again = ["delete", "create", "start"]
    assert play([dead, dead, "ACTIVE"], ["0 0"]) == (again, "done")
    # While it waits, and while it runs, suspending first.
    assert play(["NOT_FOUND", "NOT_FOUND", dead, dead, "ACTIVE"], ["0 0"]) == (["create", *again], "done")
    states = ["NOT_FOUND", "NOT_FOUND", "ACTIVE", "ACTIVE", "SUSPENDING", dead, dead, "ACTIVE"]
    assert play(states, ["running running", "0 0"]) == (["create", "start", *again], "done")


@pytest.mark.parametrize("code", RESTART_CODES)
def test_codes_that_ask_for_it_restart_on_the_same_slices(code):
    calls = play(["ACTIVE"], ["gone gone", f"{code} running", f"{code} {code}", "0 0"])
    assert calls == (["start", "start"], "done")


@pytest.mark.parametrize(
    ("statuses", "code"), [("1 1", 1), ("134 2", 2), ("0 1", 1), ("143 1", 1), ("127 127", 127)]
)
def test_other_codes_end_the_run(statuses, code):
    calls, end = play(["ACTIVE"], ["gone gone", statuses])
    assert calls == ["start"] and end == f"l16 ended with {code} (launch.tpu_vm tail shows the log)"


def test_a_worker_that_is_gone_excuses_the_codes_of_the_others():
    assert play(["ACTIVE"], ["gone gone", "1 gone", "0 0"]) == (["start", "start"], "done")


def test_errors_of_workers_whose_slices_were_just_lost_are_no_failures():
    # The code 1 is seen before the suspension is.
    states = ["ACTIVE", "ACTIVE", "ACTIVE", "ACTIVE", "SUSPENDED", "SUSPENDED", "ACTIVE"]
    assert play(states, ["gone gone", "1 1", "0 0"]) == (["start", "delete", "create", "start"], "done")


def test_the_number_of_restarts_is_limited():
    calls, end = play(["ACTIVE"], ["gone gone", "42 42"], max_restarts=2)
    assert calls == ["start"] * 3
    assert end == "l16: exit code 42, after 2 restarts (raise --max-restarts to go on)"
    calls, end = play(["FAILED"], ["gone"], max_restarts=1)  # no endless asking for what never comes
    assert calls == ["delete", "create"] * 2 and "the slices were lost, after 1 restarts" in end


def test_a_run_that_goes_on_already_is_watched_only():
    assert play(["ACTIVE"], ["running running", "running 0", "0 0"]) == ([], "done")


def test_workers_that_hang_after_a_failure_are_stopped():
    calls, end = play(["ACTIVE"], ["gone gone", "1 running"])
    assert calls == ["start", "stop"] and end.startswith("l16 ended with 1 ")
    assert play(["ACTIVE"], ["gone gone", *["42 running"] * 9, "0 0"])[0] == ["start", "stop", "start"]


def test_workers_out_of_reach_count_as_lost_after_a_while():
    states = ["ACTIVE"] * 8 + ["NOT_FOUND", "ACTIVE"]
    calls, end = play(states, ["gone gone", *[None] * 5, "0 0"])
    assert (calls, end) == (["start", "delete", "create", "start"], "done")
    assert play(["ACTIVE"], ["gone gone", *[None] * 4, "running running", None, "0 0"]) == (["start"], "done")


def test_a_gcloud_that_never_answers_is_a_failure():
    assert play(["?"], ["gone"]) == (
        [],
        "gcloud doesn't tell the state (try `launch.tpu_vm describe` with the same flags)",
    )
