"""Batch scripts for SLURM: golden files, and the script run by bash beside stand-ins for srun and scontrol."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from launch import slurm
from tests.launch.commands import (
    HARD_COMMAND,
    HARD_ENV,
    SECRET,
    call,
    check_golden,
    check_shell,
    dry_run,
    refusal,
)

JOB = ["--name=l16", "--nodes=4"]
# Runs two tasks; as srun does it stops the other after a failure, and ends with the highest code.
SRUN = f"""\
#!{sys.executable} -IS
import os, subprocess, sys, time
words = sys.argv[1:]
assert "--kill-on-bad-exit=1" in words
while words[0].startswith("--"):
    del words[0]
tasks = [subprocess.Popen(words, env=os.environ | {{"SLURM_PROCID": str(i)}}) for i in range(2)]
stopped = False
while None in (codes := [task.poll() for task in tasks]):
    if any(codes) and not stopped:
        [task.terminate() for task in tasks]
        stopped = True
    time.sleep(0.02)
sys.exit(max(128 - code if code < 0 else code for code in codes))
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("slurm", [*JOB, "--partition=gpu", "--time=24:00:00", "--compile-cache=/shared/cache"]),
        (
            "slurm_one_task",
            [*JOB, "--tasks-per-node=1", "--gpus-per-node=4", "--cpus-per-task=48", "--flags=deterministic",
             "--max-restarts=3", "--grace-seconds=60", "--setup=module load cuda", "--sbatch=--comment=a b"],
        ),
    ],
)  # fmt: skip
def test_dry_run_of_submit(name, words):
    text = dry_run("slurm", "submit", *words)
    check_golden(f"{name}.sh", text)
    check_shell(text)


def test_a_script_by_itself_is_the_one_that_is_submitted():
    done = call("slurm", "script", *JOB, *HARD_ENV, "--", *HARD_COMMAND)
    assert done.returncode == 0 and SECRET not in done.stdout
    check_shell(done.stdout)
    assert dry_run("slurm", "submit", *JOB) == f"sbatch --parsable <<'EOF'\n{done.stdout}EOF\n"


def test_directives_that_decide_about_devices_signals_and_restarts():
    text = slurm.script(slurm.Spec("l16", ("train",), nodes=2, gpus_per_node=8, tasks_per_node=8))
    directives = re.findall("^#SBATCH (.*)$", text, re.MULTILINE)
    for wanted in ("--nodes=2", "--ntasks-per-node=8", "--gres=gpu:8", "--exclusive", "--mem=0", "--requeue",
                   "--open-mode=append", "--signal=TERM@300", "--cpus-per-task=12"):  # fmt: skip
        assert wanted in directives
    assert "gpus-per-task" not in text and "JAX_LOCAL_DEVICE_IDS" not in text
    assert "--kill-on-bad-exit=1" in text
    one = slurm.script(slurm.Spec("l16", ("train",), gpus_per_node=4, tasks_per_node=1))
    assert "export JAX_LOCAL_DEVICE_IDS=0,1,2,3\n" in one


@pytest.fixture
def cluster(tmp_path):
    """Starts a script as SLURM would, two tasks; returns the process."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", f'#!/bin/sh\necho "$@" >> {tmp_path}/scontrol\n')):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    def start(*command, **variables):
        text = slurm.script(slurm.Spec("l16", command, max_restarts=3, env={"HF_TOKEN": SECRET}))
        return subprocess.Popen(
            ["bash", "-c", text], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {
                "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "12", "SLURM_JOB_NAME": "l16",
                "SLURM_SUBMIT_DIR": str(tmp_path), "HF_TOKEN": SECRET, **variables,
            },
        )  # fmt: skip

    return start


def task(code):
    return (
        sys.executable,
        "-I",
        "-S",
        "-u",
        "-c",
        f"import os, signal, sys, time; me = os.environ['SLURM_PROCID']\n{code}",
    )


def requeued(tmp_path):
    path = tmp_path / "scontrol"
    return path.exists() and path.read_text() == "requeue 12\n"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("program", "code", "again"),
    [
        ("pass", 0, False),
        ("sys.exit(42)", 42, True),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, True),
        ("sys.exit(1)", 1, False),
        # srun's own code is 143, of the task that it stopped because of the first one.
        ("sys.exit(3) if me == '0' else time.sleep(30)", 3, False),
        ("sys.exit(134) if me == '0' else time.sleep(30)", 134, True),
    ],
)
def test_queued_again_when_the_first_failure_asks_for_it(cluster, tmp_path, program, code, again):
    process = cluster(*task(program))
    out, err = process.communicate(timeout=20)
    assert process.returncode == code, out + err
    assert requeued(tmp_path) == again
    assert not list(tmp_path.glob("*.code")) and SECRET not in out + err


@pytest.mark.multiprocess
def test_the_number_of_restarts_is_limited(cluster, tmp_path):
    process = cluster(*task("sys.exit(42)"), SLURM_RESTART_COUNT="3")
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 42 and not requeued(tmp_path)
    assert out == "launch: exit code 42 after 3 restarts\n"


@pytest.mark.multiprocess
def test_sigterm_reaches_the_tasks_which_save_and_leave(cluster, tmp_path):
    program = (
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), os._exit(42)))\n"
        "os.write(1, b'ready\\n')  # in one piece\n"
        "time.sleep(30)"
    )
    process = cluster(*task(program))
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    # SLURM signals the tasks, that is here the shells below srun, and not the script.
    for pid in children_of(children_of(process.pid)[0]):
        os.kill(pid, signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 42 and requeued(tmp_path), out + err


def children_of(pid):
    end = time.monotonic() + 10
    while time.monotonic() < end:
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
        ).stdout
        if found.split():
            return [int(word) for word in found.split()]
    raise AssertionError(f"{pid} has no children")


@pytest.mark.multiprocess
def test_arguments_arrive_as_they_were_given(cluster):
    hard = ["a b", "it's", "$HOME", "`x`", '"q"', "", "*", "\\"]
    process = cluster(*task("print(sys.argv[1:]) if me == '0' else None"), *hard)
    out, err = process.communicate(timeout=20)
    assert out == f"{hard}\n", err


def test_secrets_must_be_in_the_environment_of_the_job(cluster):
    process = cluster("true", HF_TOKEN="")
    _, err = process.communicate(timeout=20)
    assert process.returncode != 0 and "HF_TOKEN: export it before sbatch" in err


def test_submit_gives_sbatch_the_script_and_the_secrets(tmp_path):
    program = tmp_path / "sbatch"
    program.write_text(
        f'#!/bin/sh\ncat > {tmp_path}/script\necho "$HF_TOKEN" > {tmp_path}/token\necho "12;main"\n'
    )
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = call("slurm", "submit", *JOB, *HARD_ENV, "--", *HARD_COMMAND, env=env)
    assert done.returncode == 0 and done.stdout == "job 12;main: log in l16-12.log\n", done.stderr
    assert (tmp_path / "token").read_text() == f"{SECRET}\n"
    assert (tmp_path / "script").read_text() == call(
        "slurm", "script", *JOB, *HARD_ENV, "--", *HARD_COMMAND
    ).stdout
    program.write_text("#!/bin/sh\necho no such partition >&2\nexit 1\n")
    done = call("slurm", "submit", *JOB, "--", "x", env=env)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: sbatch ended with 1 (")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["submit", *JOB, "--name=" + "n" * 61], "has 61 characters (at most 60"),
        (["submit", *JOB, "--tasks-per-node=2"], "--tasks-per-node=2 (1, or one per GPU: 8)"),
        (["submit", *JOB, "--nodes=0"], "--nodes is at least 1"),
        (["submit", *JOB, "--sbatch=qos=high"], "give an option with its dashes"),
        (["submit", *JOB, "--flags=speed"], "known: deterministic, fsdp"),
        (["submit", "--nodes=1"], "required: --name"),
        (["sbatch"], "unknown subcommand 'sbatch' (one of submit, script)"),
    ],
)  # fmt: skip
def test_refusals(words, error):
    assert error in refusal("slurm", *words, "--dry-run", "--", "train")


def test_away_from_a_cluster_nothing_is_started(tmp_path):
    assert "no program 'sbatch'" in refusal("slurm", "submit", *JOB, "--", "x", env={"PATH": str(tmp_path)})


def test_help_of_all():
    for words in (["--help"], ["submit", "--help"], ["script", "--help"]):
        assert call("slurm", *words).returncode == 0
