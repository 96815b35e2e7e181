"""Several processes on one machine: their variables, their lines, how they end."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from launch import command, local
from launch.command import RESTART_CODES
from tests.launch.commands import ROOT, alive

PYTHON = (sys.executable, "-I", "-S", "-u", "-c")


def spec(processes=2, devices=4, **options):
    return local.Spec(("train", "a b"), processes, devices, **options)


def start(code, *flags, processes=2, env=None):
    """The launcher around a Python program, which finds its number in `me`."""
    program = "import os, signal, sys, time\nme = int(os.environ['JAX_PROCESS_ID'])\n" + code
    return subprocess.Popen(
        [sys.executable, "-m", "launch.local", f"--processes={processes}", *flags, "--", *PYTHON, program],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | (env or {}),
    )  # fmt: skip


def finish(process, seconds=30):
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out, err


def run(code, *flags, **options):
    return finish(start(code, *flags, **options))


def wait_until(condition, what):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_variables_of_each_process():
    env = local.process_env(spec(env={"A": "b=$c d"}), 1, 4321, {})
    assert env == {
        "A": "b=$c d",
        "JAX_PLATFORMS": "cpu",
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:4321",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
        "PYTHONUNBUFFERED": "1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }


@pytest.mark.parametrize("where", ["inherited", "given"])
def test_other_xla_flags_stay_and_the_device_count_is_replaced(where):
    flags = {"XLA_FLAGS": "--xla_a=1 --xla_force_host_platform_device_count=8 --xla_b=2"}
    given, inherited = (flags, {"XLA_FLAGS": "--xla_c=3"}) if where == "given" else ({}, flags)
    env = local.process_env(spec(env=given), 0, 1, inherited)
    assert env["XLA_FLAGS"] == "--xla_a=1 --xla_b=2 --xla_force_host_platform_device_count=4"


def test_on_gpus_each_process_has_its_own():
    env = local.process_env(spec(devices=2, platform="cuda"), 1, 1, {"XLA_FLAGS": "--xla_a=1"})
    assert env["JAX_PLATFORMS"] == "cuda" and env["JAX_LOCAL_DEVICE_IDS"] == "2,3"
    assert "XLA_FLAGS" not in env


def test_dry_run_is_a_line_of_shell_for_each_process_without_secrets():
    first, second = local.dry_run(spec(env={"HF_TOKEN": "hush", "B": "$x 'y'"}), 7, {})
    assert first == (
        """env 'HF_TOKEN=***' 'B=$x '"'"'y'"'"'' JAX_PLATFORMS=cpu JAX_COORDINATOR_ADDRESS=127.0.0.1:7 """
        "JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=0 PYTHONUNBUFFERED=1 "
        "XLA_FLAGS=--xla_force_host_platform_device_count=4 train 'a b'"
    )
    assert second == first.replace("PROCESS_ID=0", "PROCESS_ID=1")


@pytest.mark.multiprocess
def test_lines_are_whole_behind_their_number_and_streams_apart():
    code, out, err = run(
        "for i in range(200):\n"
        "  sys.stdout.write(f'o{me}-{i} '); sys.stdout.flush(); sys.stdout.write('x' * 50 + '\\n')\n"
        "  sys.stderr.write(f'e{me}-{i}\\r'); sys.stderr.flush()\n"
        "sys.stdout.write('no newline')",
        processes=3,
    )
    assert code == 0
    assert sorted(out.splitlines()) == sorted(
        [f"[{p}] o{p}-{i} {'x' * 50}" for p in range(3) for i in range(200)]
        + [f"[{p}] no newline" for p in range(3)]
    )
    assert sorted(err.splitlines()) == sorted(f"[{p}] e{p}-{i}" for p in range(3) for i in range(200))


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("pass", 0),
        ("sys.exit(42)", 42),
        ("sys.exit(42 if me else 0)", 42),
        ("sys.exit([0, 3][me])", 3),
        ("time.sleep(0.5 * (1 - me)); sys.exit([1, 134][me])", 134),  # the first to occur, not process 0's
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.abort() if me else None", 134),
    ],
)
def test_exit_code_is_the_first_failure(program, expected):
    assert run(program)[0] == expected


@pytest.mark.multiprocess
def test_after_a_failure_the_others_get_their_time_and_no_more():
    # Process 0 ends by itself within the grace; process 2 ignores SIGTERM and isn't waited for.
    began = time.monotonic()
    code, out, err = run(
        "if me == 1: sys.exit(7)\n"
        "if me == 2: signal.signal(signal.SIGTERM, lambda *_: print('asked'))\n"
        "end = time.monotonic() + (0.5 if me == 0 else 60)\n"
        "while time.monotonic() < end: time.sleep(0.01)\n"
        "print('by itself')",
        "--grace-seconds=1",
        processes=3,
    )
    assert code == 7
    assert "[0] by itself" in out and "[2] asked" in out and "[2] by itself" not in out
    assert "process 1 ended with 7; stopping those that still run" in err
    assert 6 <= time.monotonic() - began < 20  # grace, then five seconds from SIGTERM to SIGKILL


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_once_to_all_and_a_second_one_kills(number):
    process = start(
        f"signal.signal({int(number)}, lambda *_: print('got it'))\n"
        "print('ready')\nend = time.monotonic() + 60\nwhile time.monotonic() < end: time.sleep(0.01)\n",
        "--restarts=3",
    )
    seen = [process.stdout.readline() for _ in range(2)]
    process.send_signal(number)
    seen += [process.stdout.readline() for _ in range(2)]
    assert sorted(seen) == [f"[{p}] {word}\n" for p in (0, 1) for word in ("got it", "ready")]
    assert process.poll() is None
    process.send_signal(number)
    code, out, _ = finish(process)
    assert (code, out) == (137, "")  # no third start either


@pytest.mark.multiprocess
@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_launcher(death):
    # Each process has a helper that holds its output open.
    process = start(
        "import subprocess\n"
        "helper = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(os.getpid(), helper.pid)\ntime.sleep(60)\n"
    )
    pids = [list(map(int, process.stdout.readline().split()[1:])) for _ in range(2)]
    mains, helpers = zip(*pids, strict=True)
    assert all(alive(pid) for pid in mains + helpers)
    process.send_signal(death)
    if death == signal.SIGTERM:
        assert finish(process)[0] == 143
        wait_until(lambda: not any(alive(pid) for pid in mains + helpers), "all are gone")
    else:
        wait_until(lambda: not any(alive(pid) for pid in mains), "the processes are gone")
        for pid in helpers:
            os.kill(pid, signal.SIGKILL)
        finish(process)


@pytest.mark.multiprocess
@pytest.mark.parametrize("code", RESTART_CODES)
def test_restarts_on_the_codes_that_ask_for_it(code, tmp_path):
    # The first two starts end with the code, the third with 0.
    program = (
        f"open(f'{tmp_path}/{{me}}', 'a').write(os.environ['JAX_COORDINATOR_ADDRESS'] + '\\n')\n"
        f"sys.exit({code} if len(open(f'{tmp_path}/{{me}}').readlines()) < 3 else 0)"
    )
    ended, _, err = run(program, "--restarts=5")
    assert ended == 0 and f"exit code {code}: restart 2 of 5" in err
    # Both processes of a start meet at one address.
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text()
    assert len((tmp_path / "0").read_text().splitlines()) == 3


@pytest.mark.multiprocess
def test_restarts_end_with_their_number_and_other_codes_never_restart(tmp_path):
    program = f"open('{tmp_path}/starts', 'a').write('x')\nsys.exit(int(os.environ['CODE']))"
    assert run(program, "--restarts=2", processes=1, env={"CODE": "42"})[0] == 42
    assert (tmp_path / "starts").read_text() == "xxx"
    for code in ("1", "2"):
        assert run(program, "--restarts=2", processes=1, env={"CODE": code})[0] == int(code)
    assert (tmp_path / "starts").read_text() == "xxxxx"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--processes=2"], r"no command to run \(.* after --"),
        (["--processes=0", "--", "true"], r"--processes=0 \(--processes is at least 1\)"),
        (["--processes=two", "--", "true"], r"invalid int value: 'two'"),
        (["--proceses=2", "--", "true"], r"unknown flag --proceses \(did you mean '--processes'"),
        (["train", "--", "true"], r"unexpected 'train' \("),
        (["--env=1x=2", "--", "true"], r"--env='1x' is no name of a variable"),
        (["--env=SURELY_UNSET_HERE", "--", "true"], r"no such variable here \(export SURELY_UNSET_HERE"),
        (["--", "surely-no-program"], r"no program 'surely-no-program' \("),
        (["--compile-cache=c", "--", "true", "--config.compile_cache=d"], r"--compile-cache and --config"),
    ],
)
def test_refusals(flags, error):
    done = subprocess.run(
        [sys.executable, "-m", "launch.local", *flags], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and re.search(error, line), line


def test_the_installed_command_starts_the_launchers_of_its_own_clone(tmp_path):
    code = (
        "import sys; from vit_jax import cli\n"
        "try: cli.main()\n"
        "finally: print(sys.modules['vit_jax.launch.local'].__file__, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "launch", "local", "--dry-run", "--", "train", "a b"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith(" train 'a b'\n"), done.stderr
    assert done.stderr.splitlines()[-1] == str(ROOT / "launch" / "local.py")
    refused = subprocess.run(
        [sys.executable, "-c", "from vit_jax import cli; cli.main()", "launch", "loca"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: unknown launcher 'loca' (did you mean 'local'?"), refused.stderr


def test_the_exit_codes_are_those_of_the_commands():
    """Launchers import nothing of vit_jax, so both sides state them."""
    from vit_jax import distributed

    ours = (
        distributed.EXIT_OK,
        distributed.EXIT_FAILED,
        distributed.EXIT_REFUSED,
        distributed.EXIT_PREEMPTED,
    )
    assert ours == (command.EXIT_OK, command.EXIT_FAILED, command.EXIT_REFUSED, command.EXIT_PREEMPTED)
