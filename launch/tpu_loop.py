"""Keeps a run on queued resources going: waits for capacity, starts it, watches it, and starts it again."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from . import tpu_commands as commands
from .command import RESTART_CODES, Failed
from .tpu_commands import DEAD, STATUS, Spec

# So many answers in a row may fail before the slices count as lost, or gcloud as broken.
_PATIENCE = 5
# After the first worker that failed, the others get so long to end by themselves.
_OTHERS_S = 180.0
LOST = "lost"


@dataclass(frozen=True)
class Result:
    """How a program ended."""

    code: int
    out: str = ""
    err: str = ""


class Runner(Protocol):
    """Runs programs side by side; with `quiet` what they print is only returned."""

    def __call__(self, argvs: Sequence[Sequence[str]], *, quiet: bool = False) -> list[Result]: ...


def run_programs(argvs: Sequence[Sequence[str]], *, quiet: bool = False) -> list[Result]:
    """The Runner of real programs; says what it runs unless quiet."""
    pipe = subprocess.PIPE if quiet else None
    if not quiet:
        for argv in argvs:
            print("+ " + shlex.join(argv), file=sys.stderr, flush=True)
    started = [
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        for argv in argvs
    ]
    texts = [process.communicate() for process in started]
    return [
        Result(process.returncode, out or "", err or "")
        for process, (out, err) in zip(started, texts, strict=True)
    ]


class Cloud:
    """The queued resource of a run and its workers."""

    def __init__(self, spec: Spec, runner: Runner) -> None:
        self.spec = spec
        self._run = runner

    def state(self) -> str:
        """Of the queued resource; "NOT_FOUND", or "UNKNOWN" when gcloud doesn't say."""
        (result,) = self._run([commands.describe(self.spec)], quiet=True)
        if result.code:
            return "NOT_FOUND" if "NOT_FOUND" in result.err else "UNKNOWN"
        try:
            return json.loads(result.out)["state"]["state"]
        except (ValueError, KeyError, TypeError):
            return "UNKNOWN"

    def statuses(self) -> list[str] | None:
        """Of each worker's process: an exit code, "running" or "gone"; None when some can't be reached."""
        results = self._run(commands.ssh(self.spec, commands.status_line(self.spec)), quiet=True)
        found = [
            [line.split()[2] for line in result.out.splitlines() if line.startswith(f"{STATUS} ")]
            for result in results
        ]
        if not all(found) or any(result.code for result in results):
            return None
        return [status for slice_statuses in found for status in slice_statuses]

    def create(self) -> None:
        self.must([commands.create(self.spec)], "look at its message above")

    def delete(self) -> None:
        self.must([commands.delete(self.spec)], "delete it by hand: it counts against the quota")

    def upload_and(self, path: str, line: str) -> bool:
        """Copies a bundle to all workers and runs a line there; whether all went well."""
        copied = self._run(commands.scp(self.spec, path))
        return not any(r.code for r in copied) and not any(
            r.code for r in self._run(commands.ssh(self.spec, line))
        )

    def stop(self) -> bool:
        """Stops the workers' processes; whether all could be told."""
        return not any(r.code for r in self._run(commands.ssh(self.spec, commands.stop_line(self.spec))))

    def must(self, argvs: Sequence[Sequence[str]], remedy: str) -> None:
        """Runs programs.

        Raises:
          Failed: one failed.
        """
        for argv, result in zip(argvs, self._run(argvs), strict=True):
            if result.code:
                raise Failed(f"{shlex.join(argv[:5])} … ended with {result.code}", remedy)


@dataclass(frozen=True)
class Clock:
    """Time, to be replaced in tests. poll_s: between two looks."""

    poll_s: float = 30.0
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic


def wait_active(cloud: Cloud, clock: Clock) -> str:
    """Waits until the queued resource has its slices, or never will; returns the last state."""
    unknown, shown = 0, ""
    while True:
        state = cloud.state()
        unknown = unknown + 1 if state == "UNKNOWN" else 0
        if unknown >= _PATIENCE:
            raise Failed("gcloud doesn't tell the state", "try `launch.tpu_vm describe` with the same flags")
        if state != shown:
            say(f"{cloud.spec.name}: {state}")
            shown = state
        if state == "ACTIVE" or state == "NOT_FOUND" or state in DEAD:
            return state
        clock.sleep(clock.poll_s)


def up(cloud: Cloud, prepare: Callable[[], bool], clock: Clock, *, max_restarts: int) -> None:
    """Brings the run to its end, through lost slices and preemptions.

    Args:
      prepare: installs and starts the command on all workers; whether that went well.

    Raises:
      Failed: the command failed with a code that a restart would repeat, or max_restarts are used up.
    """
    restarts = 0
    watching = cloud.state() == "ACTIVE" and "running" in (cloud.statuses() or [])
    if watching:
        say(f"{cloud.spec.name} runs already: watching it (stop it first to start another command)")
    while True:
        outcome: int | str = LOST
        if watching or _start(cloud, prepare, clock):
            outcome = watch(cloud, clock)
        watching = False
        if outcome == 0:
            say(f"{cloud.spec.name} is done; its slices still cost: launch.tpu_vm delete gives them back")
            return
        if outcome != LOST and outcome not in RESTART_CODES:
            raise Failed(f"{cloud.spec.name} ended with {outcome}", "launch.tpu_vm tail shows the log")
        why = "the slices were lost" if outcome == LOST else f"exit code {outcome}"
        if restarts == max_restarts:
            raise Failed(
                f"{cloud.spec.name}: {why}, after {restarts} restarts", "raise --max-restarts to go on"
            )
        restarts += 1
        say(f"{cloud.spec.name}: {why}: restart {restarts} of {max_restarts}")


def watch(cloud: Cloud, clock: Clock) -> int | str:
    """Waits for the end of the command on all workers; its exit code, or LOST."""
    unreachable, deadline = 0, None
    while True:
        state = cloud.state()
        if state in DEAD or state == "NOT_FOUND":
            return LOST
        statuses = cloud.statuses() if state == "ACTIVE" else None
        unreachable = unreachable + 1 if statuses is None else 0
        if statuses is not None:
            over = set(statuses) - {"running"}
            if "running" not in over | set(statuses):
                # A worker of spot slices dies before they are reported as such.
                if over == {"0"}:
                    return 0
                clock.sleep(clock.poll_s)
                return LOST if cloud.state() != "ACTIVE" else verdict(statuses)
            if over - {"0"}:
                deadline = deadline or clock.now() + _OTHERS_S
                if clock.now() >= deadline:
                    cloud.stop()
                    return LOST if cloud.state() != "ACTIVE" else verdict(statuses)
        elif state == "ACTIVE" and unreachable >= _PATIENCE:
            say(f"{cloud.spec.name} can't be reached")
            cloud.delete()
            return LOST
        clock.sleep(clock.poll_s)


def verdict(statuses: Sequence[str]) -> int:
    """One exit code for all workers, some of which failed.

    A worker that is gone took the others with it, whatever their codes; else a code that a restart would repeat
    counts first.
    """
    if "gone" in statuses:
        return 137
    codes = [int(s) for s in statuses if s not in ("0", "running")]
    return next((c for c in codes if c not in RESTART_CODES), codes[0])


def say(what: str) -> None:
    """A line for the user."""
    print(f"launch: {what}", file=sys.stderr, flush=True)


def _start(cloud: Cloud, prepare: Callable[[], bool], clock: Clock) -> bool:
    """Gets slices and starts the command on them; False when the slices were lost on the way."""
    state = cloud.state()
    if state in DEAD:
        say(f"{cloud.spec.name}: {state}: deleting it and asking again")
        cloud.delete()
        state = "NOT_FOUND"
    if state == "NOT_FOUND":
        cloud.create()
    if wait_active(cloud, clock) != "ACTIVE":
        return False
    if prepare():
        return True
    if cloud.state() != "ACTIVE":
        return False
    raise Failed(f"{cloud.spec.name}: the workers couldn't be set up", "look at the messages above")
