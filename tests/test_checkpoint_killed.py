"""What a killed save leaves behind, and what a user gets to read about damage; in processes of their own."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_checkpoint import _assert_equal, _mesh, _open, _restore, _state, _target, _truncate

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with steps 20 and 30."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = _open(folder)
    for step in (20, 30):
        assert checkpoints.save(step, _state(step))
    checkpoints.close()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


KILLED = """
import os, signal, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
from tests.test_checkpoint import _open, _state
from vit_jax import manifest
checkpoints = _open(sys.argv[1])
if sys.argv[2] == "before the record":
    manifest.write = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
checkpoints.save(int(sys.argv[3]), _state(int(sys.argv[3])))
if sys.argv[2] == "at once":
    os.kill(os.getpid(), signal.SIGKILL)
checkpoints.wait()
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("when", ["at once", "before the record"])
def test_a_killed_save_is_named_cleared_away_and_repeated(folder, when, caplog):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, folder, when, "40"], check=False, cwd=ROOT, timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    checkpoints = _open(folder)
    step, state = checkpoints.restore_latest(_target(_state(), _mesh(8)))
    assert step == 30
    _assert_equal(state, _state(30))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["checkpoint step 40 damaged: incomplete, its save was cut off; using step 30"]
    assert sorted(path.name for path in folder.iterdir()) == ["20", "30"]
    assert checkpoints.save(40, _state(40))
    checkpoints.close()
    assert _restore(folder)[0] == 40


@pytest.mark.multiprocess
def test_killed_in_the_very_first_save_starts_over(tmp_path, caplog):
    folder = tmp_path / "checkpoints"
    subprocess.run(
        [sys.executable, "-c", KILLED, folder, "before the record", "10"], check=False, cwd=ROOT, timeout=120
    )
    assert _restore(folder) is None
    assert "step 10 damaged: incomplete" in caplog.text and "starting from the beginning" in caplog.text
    assert list(folder.iterdir()) == []


REPORTED = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
from tests.test_checkpoint import _restore
print(_restore(sys.argv[1])[0])
"""


def test_the_line_reaches_a_user_who_configured_no_logging_and_nothing_else_does(folder):
    _truncate(next(path for path in (folder / "30" / "state" / "d").iterdir()))
    done = subprocess.run(
        [sys.executable, "-c", REPORTED, folder],
        check=False,
        cwd=ROOT,
        timeout=120,
        text=True,
        capture_output=True,
    )
    assert done.stdout == "20\n"
    (line,) = done.stderr.splitlines()
    assert "checkpoint step 30 damaged: state/d/" in line and line.endswith("; using step 20")
