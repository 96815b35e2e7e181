"""Starts the real training command on a model that compiles in seconds, and reads what a run leaves."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.checkpoint import Reader
from vit_jax.paths import named_leaves
from vit_jax.records import read_records

ROOT = Path(__file__).resolve().parents[2]

# Random numbers of every kind in use: order, mixup, dropout.
TINY = {
    "total_steps": 30,
    "warmup_steps": 3,
    "global_batch": 16,
    "model.name": "mu/4",
    "model.width": 16,
    "model.depth": 1,
    "model.mlp_dim": 32,
    "model.num_heads": 2,
    "model.dropout": 0.1,
    "checkpoint.every_steps": 10,
    "eval.every_steps": 15,
    "log_every_steps": 5,
    "log_example_ids": True,
    "tensorboard": False,
}


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def result(self) -> str:
        """The last line of stdout."""
        return self.out.splitlines()[-1]

    @property
    def error(self) -> str:
        """The last line of stderr."""
        return self.err.splitlines()[-1]


@dataclass(frozen=True)
class Command:
    """`python -m vit_jax.train` with the tiny model; `cache` makes all but the first start quick."""

    cache: str

    def argv(self, workdir: Path, sets: Mapping[str, Any] | None = None) -> list[str]:
        """The arguments after the command's name."""
        keys = TINY | {"compile_cache": self.cache} | dict(sets or {})
        overrides = [f"--config.{key}={value}" for key, value in keys.items() if value is not None]
        return ["--config=configs/quickstart.py", f"--workdir={workdir}", *overrides]

    def start(
        self,
        workdir: Path,
        sets: Mapping[str, Any] | None = None,
        *,
        devices: int = 1,
        flags: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen:
        """Starts it; sets are config keys on top of TINY, None to leave a key of TINY out."""
        return subprocess.Popen(
            [sys.executable, "-m", "vit_jax.train", *self.argv(workdir, sets), *flags],
            cwd=ROOT,
            env=environment(devices) | dict(env or {}),
            text=True,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )

    def start_group(
        self,
        workdir: Path,
        sets: Mapping[str, Any] | None = None,
        *,
        processes: int = 2,
        devices: int = 2,
    ) -> list[subprocess.Popen]:
        """Starts several processes of one run, with so many devices each, to be treated one by one."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": str(processes)}
        return [
            self.start(workdir, sets, devices=devices, env=env | {"JAX_PROCESS_ID": str(i)})
            for i in range(processes)
        ]

    def launch(
        self, workdir: Path, sets: Mapping[str, Any] | None, processes: int, devices: int, *flags: str
    ) -> subprocess.Popen:
        """Starts the processes of a run by the launcher, as users do."""
        launcher = [
            "-m",
            "launch.local",
            f"--processes={processes}",
            f"--devices-per-process={devices}",
            *flags,
        ]
        argv = [
            sys.executable,
            *launcher,
            "--",
            sys.executable,
            "-m",
            "vit_jax.train",
            *self.argv(workdir, sets),
        ]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, cwd=ROOT, env=environment(1), text=True, **pipes)

    def run(self, workdir: Path, sets: Mapping[str, Any] | None = None, **options: Any) -> Done:
        """Runs it to its end."""
        began = time.monotonic()
        return finish(self.start(workdir, sets, **options), began)


def terminal_text(terminal: int) -> str:
    """All that comes from a pseudo-terminal until its other end is closed; closes it."""
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the other end was closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(terminal)
    return shown.decode()


def environment(devices: int) -> dict[str, str]:
    """Variables of a fresh process with so many CPU devices."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    return env | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def finish(process: subprocess.Popen, began: float | None = None) -> Done:
    """Waits for the end of a started command; seconds count from `began`, or from now."""
    began = time.monotonic() if began is None else began
    try:
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()  # nothing once it has ended
    return Done(process.returncode, out, err or "", time.monotonic() - began)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, what: str) -> None:
    """Waits until the condition holds; fails if the process ends before."""
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, f"ended before {what}: {process.communicate()}"
        if time.monotonic() > end:
            process.kill()
            raise AssertionError(f"no {what}: {process.communicate()}")
        time.sleep(0.002)


def begun_steps(workdir: Path) -> int:
    """Steps dispatched so far, repeats counted again."""
    path = workdir / "examples.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def json_lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a file; each must be one strict JSON object."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    text = path.read_text()
    assert text.endswith("\n")
    lines = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert all(isinstance(line, dict) and isinstance(line["step"], int) for line in lines)
    return lines


def _records(workdir: Path, name: str) -> list[dict[str, Any]]:
    path = workdir / f"{name}.jsonl"
    return json_lines(path) if path.exists() else list(read_records(workdir, name))


def metrics(workdir: Path) -> dict[int, dict[str, float | None]]:
    """Step -> what it computed, the last line of a step winning; what a clock measured is left out."""
    steps: dict[int, dict[str, float | None]] = {}
    for line in _records(workdir, "metrics"):
        kept = {
            k: v
            for k, v in line.items()
            if not k.startswith("time/") and k not in ("step", "train/img_per_sec", "train/mfu")
        }
        steps.setdefault(line["step"], {}).update(kept)
    return steps


def example_ids(workdir: Path) -> dict[int, list[int]]:
    """Step -> example ids, the last line of a step winning."""
    return {line["step"]: line["ids"] for line in _records(workdir, "examples")}


def saved_steps(workdir: Path) -> list[int]:
    """Complete steps of a run."""
    return Reader(workdir / "checkpoints").steps()


def state(workdir: Path, step: int | None = None, folder: str = "checkpoints") -> dict[str, np.ndarray]:
    """Path -> array of everything in a checkpoint, the newest by default."""
    return named_leaves(Reader(workdir / folder).restore_arrays(step)[1])


def assert_same_state(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert left.keys() == right.keys()
    assert {"params/head/kernel", "step"} <= left.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        assert array.tobytes() == right[name].tobytes(), name


def assert_same_run(broken: Path, unbroken: Path) -> None:
    """A run that was interrupted ends like one that wasn't: state, order of examples, and all metrics."""
    assert_same_state(state(broken), state(unbroken))
    assert example_ids(broken) == example_ids(unbroken)
    found = metrics(broken)
    for step, values in metrics(unbroken).items():
        assert values == {key: found.get(step, {}).get(key) for key in values}, f"metrics of step {step}"


def cut(run: Path, workdir: Path, step: int) -> Path:
    """A copy of a finished run as a crash after the save of `step` would have left it, its logs longer."""
    shutil.copytree(run, workdir)
    for newer in [s for s in saved_steps(workdir) if s > step]:
        shutil.rmtree(workdir / "checkpoints" / str(newer))
    return workdir
