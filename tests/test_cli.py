"""Exit codes, and the last line of stderr."""

import subprocess
import sys

import pytest

from vit_jax import cli
from vit_jax.errors import UsageError


def run(main, capsys, argv=()):
    with pytest.raises(SystemExit) as e:
        cli.run(main, list(argv))
    return e.value.code, capsys.readouterr().err


def test_codes_and_messages(capsys):
    def refuse(argv):
        raise UsageError("width 64 isn't divisible by 5 heads", "use 4 or 8")

    def fail(argv):
        raise RuntimeError("disk gone")

    def late(argv):
        with cli.work():
            refuse(argv)

    assert run(lambda argv: 0, capsys) == (0, "")
    assert run(lambda argv: 42, capsys) == (42, "")
    code, err = run(refuse, capsys)
    assert (code, err) == (2, "error: width 64 isn't divisible by 5 heads (use 4 or 8)\n")
    code, err = run(late, capsys)
    assert (code, err) == (1, "error: width 64 isn't divisible by 5 heads (use 4 or 8)\n")
    code, err = run(fail, capsys)
    assert code == 1 and err.splitlines()[-1].startswith("error: RuntimeError: disk gone")
    assert "Traceback" not in err
    code, err = run(fail, capsys, ["--debug"])
    assert "Traceback" in err and err.splitlines()[-1] == "error: RuntimeError: disk gone"


def test_details_come_before_the_error_line(capsys):
    def fail(argv):
        raise RuntimeError("trees differ\n  a\n  b")

    _, err = run(fail, capsys)
    assert err.splitlines()[:1] == ["  a"] and err.splitlines()[-1].startswith(
        "error: RuntimeError: trees differ"
    )


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_help_of_the_console_command(words):
    done = subprocess.run(
        [sys.executable, "-c", "from vit_jax.cli import main; main()", *words], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout and "Traceback" not in done.stderr


def test_unknown_command():
    done = subprocess.run(
        [sys.executable, "-c", "from vit_jax.cli import main; main()", "trian"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "error: unknown command 'trian' (did you mean 'train'? known:"
    )


def test_a_lack_of_memory_says_what_helps(capsys):
    def main(argv):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 489178998984 bytes.\nlong story")

    with pytest.raises(SystemExit) as end:
        cli.run(main, [])
    assert end.value.code == 1
    assert (
        "out of memory" in (last := capsys.readouterr().err.splitlines()[-1]) and "lower global_batch" in last
    )
