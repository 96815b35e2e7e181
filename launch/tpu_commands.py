"""Command lines of gcloud for queued resources, and the scripts that run on every worker of their slices.

On a worker all is in ~/vit_jax_runs/NAME: code/, venv/, the scripts, log.txt, pid while it runs, exit_code after.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from .accelerators import Slice
from .shell import SUPERVISE

# States of a queued resource that never leads to slices again: it is to be deleted and created anew.
DEAD = ("FAILED", "SUSPENDED")
# A line of status.sh starts so, with the worker's name and its exit code, `running` or `gone`.
STATUS = "vit_jax-status"


@dataclass(frozen=True)
class Spec:
    """A run on queued resources. capacity: "" (on demand), "spot" or "reserved"; valid_for: such as 6h, or ""."""

    name: str
    zone: str
    project: str
    machine: Slice | None = None  # needed to create, set up and run
    slices: int = 1
    runtime: str = ""
    capacity: str = ""
    valid_for: str = ""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: int = 300

    @property
    def place(self) -> list[str]:
        return [f"--zone={self.zone}", f"--project={self.project}"]

    @property
    def nodes(self) -> list[str]:
        """Names of the slices."""
        return [self.name] if self.slices == 1 else [f"{self.name}-{i}" for i in range(self.slices)]

    @property
    def folder(self) -> str:
        return f"vit_jax_runs/{self.name}"


def create(spec: Spec) -> list[str]:
    """Asks for the slices."""
    names = (
        [f"--node-id={spec.name}"]
        if spec.slices == 1
        else [f"--node-count={spec.slices}", f"--node-prefix={spec.name}"]
    )
    return [
        *_queued("create", spec), f"--accelerator-type={spec.machine.accelerator_type}",
        f"--runtime-version={spec.runtime or spec.machine.generation.runtime}", *names,
        *([f"--{spec.capacity}"] if spec.capacity else []),
        *([f"--valid-until-duration={spec.valid_for}"] if spec.valid_for else []), "--quiet",
    ]  # fmt: skip


def describe(spec: Spec) -> list[str]:
    """Asks for the state."""
    return [*_queued("describe", spec), "--format=json(state)"]


def delete(spec: Spec) -> list[str]:
    """Gives the slices back, or the place in the queue."""
    return [*_queued("delete", spec), "--force", "--quiet"]


def scp(spec: Spec, path: str) -> list[list[str]]:
    """Copies a file to the home of every worker; a line for each slice."""
    return [[*_tpu_vm("scp"), path, f"{node}:", "--worker=all", *spec.place] for node in spec.nodes]


def ssh(spec: Spec, line: str, worker: str = "all") -> list[list[str]]:
    """Runs a line of shell on every worker, as one alone would wait for the others; a line for each slice."""
    return [
        [*_tpu_vm("ssh"), node, f"--worker={worker}", *spec.place, f"--command={line}"] for node in spec.nodes
    ]


def setup_line(spec: Spec, bundle: str) -> str:
    """On a worker: stops an older run of the same name, unpacks the code and installs it."""
    return (
        f"mkdir -p {spec.folder} && {{ {stop_line(spec)}; }} && cd {spec.folder} && rm -rf code "
        f"&& tar -xzf ~/{bundle} && rm ~/{bundle} && bash setup.sh"
    )


def run_line(spec: Spec, bundle: str) -> str:
    """On a worker: stops an older run of the same name too, and starts this one, detached."""
    return f"cd {spec.folder} && tar -xzf ~/{bundle} && rm ~/{bundle} && bash start.sh"


def status_line(spec: Spec) -> str:
    """On a worker: one line that says how its process is."""
    return f'bash {spec.folder}/status.sh 2>/dev/null || echo {STATUS} "$(hostname)" gone'


def stop_line(spec: Spec) -> str:
    """On a worker: SIGTERM to its process, by the pid file alone; SIGKILL when the grace is over."""
    return f"if [ -e {spec.folder}/stop.sh ]; then bash {spec.folder}/stop.sh; fi"


def tail_line(spec: Spec) -> str:
    """On a worker: follows its log."""
    return f"tail -n 100 -F {spec.folder}/log.txt"


def setup_script(spec: Spec, wheel: str = "") -> str:
    """Installs code/, or the wheel in it, into venv/."""
    numactl = [
        "if ! command -v numactl > /dev/null; then",
        "  sudo apt-get update --quiet",
        "  sudo apt-get install --yes --quiet numactl",
        "fi",
    ]
    install = (
        f"../venv/bin/python -m pip install --quiet --force-reinstall {shlex.quote(f'./{wheel}[tpu]')}"
        if wheel
        else "../venv/bin/python -m pip install --quiet -e '.[tpu]'"
    )
    return _script(
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        *(numactl if _on_one_socket(spec) else []),
        "find_python() { command -v python3.13 || command -v python3.12 || command -v python3.11; }",
        "if ! find_python > /dev/null; then",
        "  sudo apt-get update --quiet",
        "  sudo apt-get install --yes --quiet python3.11 python3.11-venv",
        "fi",
        'if [ ! -x venv/bin/python ]; then "$(find_python)" -m venv venv; fi',
        "cd code",
        "../venv/bin/python -m pip install --quiet --upgrade pip",
        install,
    )


def run_scripts(spec: Spec) -> dict[str, str]:
    """The scripts of a run by name. env.sh holds the variables, secrets included."""
    bound = ["numactl", "--membind=0", "--cpunodebind=0"] if _on_one_socket(spec) else []
    # The number may be another process's by now, after a reboot: ours works in this folder.
    alive = '[ -s pid ] && [ "$(readlink "/proc/$(cat pid)/cwd")" = "$(pwd -P)" ]'
    return {
        "env.sh": env_script(spec.env),
        "run.sh": _script(
            'cd "$(dirname "$0")" || exit 1',
            'echo "$$" > pid',
            "# shellcheck source=/dev/null",
            ". ./env.sh",
            'PATH="$PWD/venv/bin:$PATH"',
            'ulimit -n "$(ulimit -Hn)"',
            f"set -- env --chdir=code {shlex.join([*bound, *spec.command])}",
            SUPERVISE.rstrip("\n"),
            'echo "$code" > exit_code.new',
            "mv exit_code.new exit_code",
            "rm -f pid",
        ),
        "start.sh": _script(
            "set -euo pipefail",
            'cd "$(dirname "$0")"',
            "bash stop.sh",
            "rm -f exit_code",
            "setsid nohup bash run.sh >> log.txt 2>&1 < /dev/null &",
            "until [ -s pid ] || [ -s exit_code ]; do sleep 0.1; done",
        ),
        "stop.sh": _script(
            'cd "$(dirname "$0")" || exit 1',
            f"alive() {{ {alive}; }}",
            'alive && kill -TERM "$(cat pid)"',
            f"for _ in $(seq {spec.grace_seconds}); do alive || break; sleep 1; done",
            'if alive; then kill -KILL -- "-$(cat pid)"; fi',
            "rm -f pid",
        ),
        "status.sh": _script(
            'cd "$(dirname "$0")" || exit 1',
            "if [ -s exit_code ]; then",
            f'  echo "{STATUS} $(hostname) $(cat exit_code)"',
            f"elif {alive}; then",
            f'  echo "{STATUS} $(hostname) running"',
            "else",
            f'  echo "{STATUS} $(hostname) gone"',
            "fi",
        ),
    }


def env_script(env: Mapping[str, str]) -> str:
    """Exports of variables."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())


def _queued(word: str, spec: Spec) -> list[str]:
    return ["gcloud", "compute", "tpus", "queued-resources", word, spec.name, *spec.place]


def _tpu_vm(word: str) -> list[str]:
    return ["gcloud", "compute", "tpus", "tpu-vm", word]


def _on_one_socket(spec: Spec) -> bool:
    """Hosts of these generations have two sockets, the chips at the first."""
    return spec.machine.generation.word in ("v4", "v5p")


def _script(*lines: str) -> str:
    return "\n".join(["#!/usr/bin/env bash", *lines]) + "\n"
