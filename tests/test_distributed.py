"""Start-up, preemption and exit codes, in processes of their own: jax starts up once per process."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vit_jax import distributed
from vit_jax.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent

LOOP = """
import sys, time
from vit_jax import distributed
distributed.initialize(init_timeout_s=60, heartbeat_timeout_s=30, shutdown_timeout_s=20)
import jax, jax.numpy as jnp
x = jnp.zeros(())
print("ready", jax.process_index(), jax.process_count(), flush=True)
for step in range(6000):
    x = (x + 1).block_until_ready()
    if distributed.preempted():
        distributed.barrier("saved")
        print("preempted at", step, flush=True)
        distributed.shutdown()
        sys.exit(distributed.EXIT_PREEMPTED)
    time.sleep(0.01)
print("ran to the end")
"""


def _start(program: str, **variables: str) -> subprocess.Popen:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)} | variables
    return subprocess.Popen(
        [sys.executable, "-c", program], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_sigterm_alone_is_seen_and_exits_42():
    process = _start(LOOP)
    assert process.stdout.readline().split() == ["ready", "0", "1"]
    process.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 42, err
    assert out.startswith("preempted at")
    assert time.monotonic() - sent < 10


def test_a_proxy_for_the_outer_world_does_not_stop_a_lone_process():
    process = _start(
        LOOP.replace("6000", "2"), http_proxy="http://127.0.0.1:9", HTTPS_PROXY="http://127.0.0.1:9"
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out.endswith("ran to the end\n"), err
    assert "proxy" not in err


@pytest.mark.multiprocess
def test_sigterm_to_one_of_two_is_seen_by_both_at_one_step():
    variables = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{_port()}", "JAX_NUM_PROCESSES": "2"}
    processes = [_start(LOOP, JAX_PROCESS_ID=str(i), **variables) for i in range(2)]
    for i, process in enumerate(processes):
        assert process.stdout.readline().split() == ["ready", str(i), "2"]
    processes[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [42, 42], outputs
    # Gloo writes lines of its own to stdout.
    steps = [[line for line in out.splitlines() if line.startswith("preempted at")] for out, _ in outputs]
    assert len(steps[0]) == 1
    assert steps[0] == steps[1]


@pytest.mark.multiprocess
def test_a_process_whose_peer_never_comes_says_so():
    process = _start(
        LOOP.replace("init_timeout_s=60", "init_timeout_s=2"),
        JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{_port()}",
        JAX_NUM_PROCESSES="2",
        JAX_PROCESS_ID="0",
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "process 0 of 2 still waits for the other processes" in err


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"JAX_NUM_PROCESSES": "4"}, "JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID is not"),
        ({"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_PROCESS_ID": "0"}, "JAX_NUM_PROCESSES is not"),
        (
            {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "0"},
            "JAX_NUM_PROCESSES='two'",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
            "JAX_PROCESS_ID=2 does not fit",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "host", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"},
            "JAX_COORDINATOR_ADDRESS='host'",
        ),
    ],
)
def test_senseless_variables_are_refused(monkeypatch, variables, words):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=words):
        distributed.initialize(init_timeout_s=5, heartbeat_timeout_s=5, shutdown_timeout_s=5)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}, False),  # a batch script outside srun
        (
            {
                "SLURM_JOB_ID": "1",
                "SLURM_STEP_NODELIST": "n[1-4]",
                "SLURM_NTASKS": "4",
                "SLURM_PROCID": "0",
                "SLURM_LOCALID": "0",
            },
            True,
        ),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),  # a notebook in a pod is alone
    ],
)
def test_only_marks_of_several_processes_count_as_a_cluster(monkeypatch, variables, expected):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "TPU_", "MEGASCALE_", "KUBERNETES_", "JOB_COMPLETION")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert distributed._in_cluster() is expected


def test_nothing_is_preempted_and_no_barrier_stands_before_initialize():
    assert distributed.preempted() is False
    distributed.barrier("alone")
    distributed.shutdown()
