"""The scripts of a TPU worker, really run, in a home folder on this machine."""

import os
import subprocess
import sys
import time

import pytest

from launch import bundle, tpu_commands
from launch.accelerators import tpu_slice
from tests.launch.commands import ROOT, SECRET, alive, check_shell


class Worker:
    """A home folder on this machine; runs the lines that gcloud would run on a worker."""

    def __init__(self, home):
        self.home = home
        self.folder = home / "vit_jax_runs/l16"
        (self.folder / "code").mkdir(parents=True)

    def spec(self, program, *words, grace_seconds=20):
        command = (sys.executable, "-I", "-S", "-u", "-c", program, *words)
        env = {"HF_TOKEN": SECRET, "OPTIONS": "a=b $HOME 'c'"}
        return tpu_commands.Spec(
            "l16", "z", "p", tpu_slice("v5e-8"), command=command, env=env, grace_seconds=grace_seconds
        )

    def line(self, text):
        done = subprocess.run(
            ["bash", "-c", text], cwd=self.home, env=os.environ | {"HOME": str(self.home)},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, spec):
        bundle.pack(self.home / "l16-run.tgz", {}, tpu_commands.run_scripts(spec))
        self.line(tpu_commands.run_line(spec, "l16-run.tgz"))

    def status(self, spec):
        name, _, status = self.line(tpu_commands.status_line(spec)).split()
        assert name == tpu_commands.STATUS
        return status

    def wait_for_end(self, spec):
        end = time.monotonic() + 20
        while (status := self.status(spec)) == "running":
            assert time.monotonic() < end
            time.sleep(0.05)
        return status

    def log(self):
        return (self.folder / "log.txt").read_text()

    def wait_for_log(self, text):
        end = time.monotonic() + 20
        while text not in self.log():
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)


@pytest.fixture
def worker(tmp_path):
    worker = Worker(tmp_path)
    yield worker
    if (worker.folder / "stop.sh").exists():
        worker.line(tpu_commands.stop_line(worker.spec("")))


@pytest.mark.multiprocess
def test_scripts_pass_shellcheck(worker):
    for text in tpu_commands.run_scripts(worker.spec("a 'b'")).values():
        check_shell("#!/usr/bin/env bash\n" + text)


@pytest.mark.multiprocess
def test_a_run_is_detached_and_leaves_its_log_and_exit_code(worker):
    spec = worker.spec("import os, sys; print(os.getcwd(), os.environ['OPTIONS'], os.environ['HF_TOKEN'], "
                       "sys.argv[1:]); sys.exit(42)", "a b", "$x", "it's")  # fmt: skip
    assert worker.status(spec) == "gone"
    worker.start(spec)
    assert worker.wait_for_end(spec) == "42"
    assert worker.log() == f"{worker.folder}/code a=b $HOME 'c' {SECRET} ['a b', '$x', \"it's\"]\n"
    assert (worker.folder / "env.sh").stat().st_mode & 0o777 == 0o600
    assert not (worker.folder / "pid").exists() and not (worker.home / "l16-run.tgz").exists()


SAVES = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), os._exit(42)))\n"
    "print('started', os.getpid())\ntime.sleep(60)"
)


@pytest.mark.multiprocess
def test_stop_and_a_second_start_let_the_older_run_save(worker):
    spec = worker.spec(SAVES)
    worker.start(spec)
    worker.wait_for_log("started")
    assert worker.status(spec) == "running"
    worker.start(spec)
    worker.wait_for_log("saved\nstarted")
    worker.line(tpu_commands.stop_line(spec))
    assert worker.log().count("saved") == 2 and worker.status(spec) == "42"
    worker.line(tpu_commands.stop_line(spec))  # nothing to stop is no error


@pytest.mark.multiprocess
def test_a_run_that_does_not_stop_is_killed_with_its_children(worker):
    stubborn = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('at', os.getpid(), flush=True); time.sleep(60)"
    )
    spec = worker.spec(stubborn, grace_seconds=1)
    worker.start(spec)
    worker.wait_for_log("at ")
    pid = int(worker.log().split()[1])
    worker.line(tpu_commands.stop_line(spec))
    end = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert worker.status(spec) == "gone"


@pytest.mark.multiprocess
def test_a_pid_of_another_process_is_left_alone(worker):
    spec = worker.spec("pass")
    worker.start(spec)
    assert worker.wait_for_end(spec) == "0"
    with subprocess.Popen(["sleep", "60"], cwd=worker.home) as other:
        (worker.folder / "pid").write_text(f"{other.pid}\n")
        worker.line(tpu_commands.stop_line(spec))
        assert other.poll() is None
        other.kill()


@pytest.mark.multiprocess
def test_setup_stops_the_older_run_before_its_code_goes(worker):
    spec = worker.spec(SAVES)
    worker.start(spec)
    worker.wait_for_log("started")
    (worker.folder / "code" / "old.py").write_text("")
    bundle.pack(
        worker.home / "l16-code.tgz", {"new.py": ROOT / "setup.py"}, {"setup.sh": "echo installed > done\n"}
    )
    worker.line(tpu_commands.setup_line(spec, "l16-code.tgz"))
    assert worker.log().endswith("saved\n") and worker.status(spec) == "42"
    assert [p.name for p in (worker.folder / "code").iterdir()] == ["new.py"]
    assert (worker.folder / "done").exists()
