"""Several processes on this machine, as they would run on the hosts of a slice.

    python -m launch.local --processes=2 --devices-per-process=4 -- python -m vit_jax.train --config=… --workdir=…

Each process gets its own virtual CPU devices (or GPUs, with --platform=cuda), the address of a coordinator on a
free port, and the numbers that vit_jax reads. Its lines are printed behind its number. SIGTERM and Ctrl-C go
to all, once; a second signal kills them. The exit code is the first one that isn't 0 (128 + n for a death by
signal n); the others then get --grace-seconds to end by themselves.
"""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from .command import (
    RESTART_CODES,
    Parser,
    add_run_flags,
    at_least,
    environment,
    masked,
    need_program,
    parse,
    run,
    with_cache,
)

_DEVICES_FLAG = "--xla_force_host_platform_device_count"
_POLL_S = 0.02
_KILL_AFTER_S = 5.0  # from SIGTERM, which a process without its peers can't obey, to SIGKILL
# Becomes the command, after asking Linux to kill it when the launcher dies without a word (kill -9).
_GUARD = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Spec:
    """What to run, how often, on which devices."""

    command: tuple[str, ...]
    processes: int
    devices_per_process: int
    platform: str = "cpu"
    env: dict[str, str] = field(default_factory=dict)


def process_env(spec: Spec, process: int, port: int, inherited: dict[str, str]) -> dict[str, str]:
    """The variables that one process has beside the inherited ones."""
    env = dict(spec.env) | {
        "JAX_PLATFORMS": spec.platform,
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": str(spec.processes),
        "JAX_PROCESS_ID": str(process),
        "PYTHONUNBUFFERED": "1",
    }
    if spec.platform == "cpu":
        others = env.get("XLA_FLAGS", inherited.get("XLA_FLAGS", ""))
        kept = re.sub(rf"{_DEVICES_FLAG}=\S*", "", others).split()
        env["XLA_FLAGS"] = " ".join([*kept, f"{_DEVICES_FLAG}={spec.devices_per_process}"])
    else:
        first = process * spec.devices_per_process
        env["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(first, first + spec.devices_per_process)))
    return env


def dry_run(spec: Spec, port: int, inherited: dict[str, str]) -> list[str]:
    """A line of shell for each process."""
    return [
        shlex.join(
            ["env", *(f"{k}={v}" for k, v in masked(process_env(spec, i, port, inherited)).items()), *spec.command]
        )
        for i in range(spec.processes)
    ]  # fmt: skip


class Lines:
    """Prints whole lines of several processes, each behind its process's number.

    A progress bar's redraws end with a carriage return and count as lines. When nobody reads our output any more
    the processes go on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def follow(self, process: int, source: BinaryIO, target: BinaryIO) -> threading.Thread:
        """Starts copying, to the end of the source."""
        thread = threading.Thread(target=self._copy, args=(process, source, target), daemon=True)
        thread.start()
        return thread

    def _copy(self, process: int, source: BinaryIO, target: BinaryIO) -> None:
        rest = b""
        while chunk := os.read(source.fileno(), 65536):
            *lines, rest = re.split(rb"[\r\n]", rest + chunk)
            self._print(process, lines, target)
        self._print(process, [rest], target)
        source.close()

    def _print(self, process: int, lines: list[bytes], target: BinaryIO) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            target.write(b"".join(b"[%d] %s\n" % (process, line) for line in lines if line))
            target.flush()


class Signals:
    """Counts the SIGTERM and SIGINT that reach the launcher while it runs, and restores the handlers after."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def __enter__(self) -> "Signals":
        self._before = {
            number: signal.signal(number, lambda number, _: self.received.append(number))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Group:
    """The running processes; each leads a process group of its own, so that its helpers end with it."""

    def __init__(self, spec: Spec) -> None:
        """Starts them."""
        lines, port, inherited = Lines(), _free_port(), dict(os.environ)
        self._processes: list[subprocess.Popen] = []
        self.codes: dict[int, int] = {}  # of those that ended, in the order in which they did
        for i in range(spec.processes):
            self._processes.append(_start(spec.command, inherited | process_env(spec, i, port, inherited)))
        self._readers = [
            lines.follow(i, source, target)
            for i, p in enumerate(self._processes)
            for source, target in ((p.stdout, sys.stdout.buffer), (p.stderr, sys.stderr.buffer))
        ]

    def poll(self) -> bool:
        """Notes who has ended; whether some still run."""
        for i, process in self._running():
            # Seen but not yet reaped: until then nobody else can get its number.
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                _kill_group(process)  # helpers that it left behind
                code = process.wait()
                self.codes[i] = 128 - code if code < 0 else code
        return len(self.codes) < len(self._processes)

    def send(self, number: int) -> None:
        """Passes a signal on to each process that runs, not to its helpers: it ends them in its own order."""
        for _, process in self._running():
            process.send_signal(number)

    def kill(self) -> None:
        """Ends all that run, helpers included."""
        for _, process in self._running():
            _kill_group(process)

    def close(self) -> None:
        """Ends what still runs and prints the last lines."""
        self.kill()
        while self.poll():
            time.sleep(_POLL_S)
        for reader in self._readers:
            reader.join(timeout=_KILL_AFTER_S)  # a helper that left its group may hold the pipe

    def _running(self) -> list[tuple[int, subprocess.Popen]]:
        return [(i, process) for i, process in enumerate(self._processes) if i not in self.codes]


def supervise(group: Group, signals: Signals, grace_s: float) -> int:
    """Waits for the end of all processes; returns the first exit code that isn't 0, else 0."""
    passed_on, deadline, asked = 0, None, False
    try:
        while group.poll():
            if len(signals.received) > passed_on:
                if passed_on == 0:
                    group.send(signals.received[0])
                else:
                    group.kill()
                passed_on = len(signals.received)
            if deadline is None and any(group.codes.values()):
                deadline = time.monotonic() + grace_s
            if deadline is not None and time.monotonic() > deadline:
                if asked:
                    group.kill()
                else:
                    failed = _first_failure(group.codes)
                    _say(f"process {failed} ended with {group.codes[failed]}; stopping those that still run")
                    group.send(signal.SIGTERM)
                    deadline, asked = time.monotonic() + _KILL_AFTER_S, True
            time.sleep(_POLL_S)
    finally:
        group.close()
    failed = _first_failure(group.codes)
    return 0 if failed is None else group.codes[failed]


def launch(spec: Spec, *, grace_s: float, restarts: int) -> int:
    """Runs all processes, again after a code that asks for it unless told to stop; returns the exit code."""
    with Signals() as signals:
        for attempt in range(restarts + 1):
            code = supervise(Group(spec), signals, grace_s)
            if code not in RESTART_CODES or signals.received or attempt == restarts:
                break
            _say(f"exit code {code}: restart {attempt + 1} of {restarts}")
    return code


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code of the processes."""
    parser = Parser("python -m launch.local", __doc__)
    parser.add_argument("--processes", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--devices-per-process", type=int, default=1, help="devices of each (default 1)")
    parser.add_argument(
        "--platform", default="cpu", help="cpu (default), or cuda for the GPUs of this machine"
    )
    parser.add_argument(
        "--grace-seconds", type=float, default=90.0,
        help="after the first failure the others get so long to notice it, by their heartbeats (default 90)",
    )  # fmt: skip
    parser.add_argument(
        "--restarts", type=int, default=0,
        help=f"start all again, at most so often, after the codes {', '.join(map(str, RESTART_CODES))} (default 0)",
    )  # fmt: skip
    add_run_flags(parser)
    flags, command = parse(parser, argv)
    at_least(flags, processes=1, devices_per_process=1, grace_seconds=0, restarts=0)
    spec = Spec(
        with_cache(command, flags.compile_cache), flags.processes, flags.devices_per_process, flags.platform,
        environment(flags.env, flags.compile_cache),
    )  # fmt: skip
    if flags.dry_run:
        print("\n".join(dry_run(spec, _free_port(), dict(os.environ))))
        return 0
    need_program(
        command[0], "give a command that can be run, such as -- python -m vit_jax.train", spec.env.get("PATH")
    )
    return launch(spec, grace_s=flags.grace_seconds, restarts=flags.restarts)


def _start(command: Sequence[str], env: dict[str, str]) -> subprocess.Popen:
    guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())] if sys.platform == "linux" else []
    return subprocess.Popen(
        [*guard, *command], env=env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C at the terminal reaches us alone, and is passed on once
    )  # fmt: skip


def _kill_group(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _first_failure(codes: dict[int, int]) -> int | None:
    return next((i for i, code in codes.items() if code), None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _say(what: str) -> None:
    print(f"launch: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
