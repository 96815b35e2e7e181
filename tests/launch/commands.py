"""Runs the launchers' commands and compares what they print with the files in golden/."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
SECRET = "hush-hush"
# A command and variables with all that a shell, YAML or Kubernetes could stumble over.
HARD_COMMAND = [
    "python",
    "-m",
    "vit_jax.train",
    "--config=my configs/l16.py:a='b'",
    '--workdir=gs://b/$x "y"',
]
HARD_ENV = ["--env=OPTIONS=a=b $HOME $(HOME) 'c'", f"--env=HF_TOKEN={SECRET}"]


def dry_run(launcher, *words, command=HARD_COMMAND, env=HARD_ENV):
    """What `python -m launch.LAUNCHER WORDS --dry-run -- COMMAND` prints; no secret may be in it."""
    done = call(launcher, *words, *env, "--dry-run", "--", *command)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done.stdout


def call(launcher, *words, env=None, cwd=ROOT):
    """The finished command, which finds no program of a cloud or scheduler."""
    return subprocess.run(
        [sys.executable, "-m", f"launch.{launcher}", *words],
        cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}), capture_output=True, text=True,
    )  # fmt: skip


def refusal(launcher, *words, **options):
    """The one line of a refused command, without `error: `."""
    done = call(launcher, *words, **options)
    assert done.returncode == 2 and not done.stdout, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and line.endswith(")"), line
    return line.removeprefix("error: ")


def check_golden(name, text):
    """Compares; to accept a change that was meant, write the printed text into the file."""
    assert text == (GOLDEN / name).read_text(), f"golden/{name} differs from:\n{text}"


def check_shell(text):
    """Whether bash reads the text, and shellcheck too where it is installed.

    SC2016 says that $ in single quotes stays $, which is what they are there for.
    """
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(
            ["shellcheck", "--shell=bash", "--exclude=SC2016", "-"],
            input=text,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stdout


def alive(pid):
    """Whether a process of this number runs; a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
