"""A full disk in the middle of a run: one error line, what was saved stays, and the run goes on with more room."""

import resource
import shutil
import subprocess

import pytest

from tests.integration.command import assert_same_run, finish, saved_steps

PAGE = 4096


@pytest.fixture
def small_disk(finished, tmp_path):
    """A file system of its own with room for one checkpoint and the better part of a second."""
    run = finished("plain")

    def size(folder):
        return sum(-(-path.stat().st_size // PAGE) * PAGE for path in folder.rglob("*") if path.is_file())

    step = size(run / "checkpoints" / "30")
    rest = size(run) - 3 * step
    folder = tmp_path / "disk"
    folder.mkdir()
    options = f"size={int(1.6 * step) + rest}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"can't mount a small file system: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_ends_the_run_and_more_room_continues_it(command, finished, small_disk, tmp_path):
    run = small_disk / "run"
    done = command.run(run)
    assert done.code == 1, done.err
    assert "Traceback" not in done.err
    assert "saving checkpoint step 20 to " in done.error and "No space left on device" in done.error
    assert "saved before and intact: 10;" in done.error
    assert saved_steps(run) == [10]

    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    again = command.run(run)
    assert again.code == 0, again.err
    assert "continuing from step 10 " in again.err
    shutil.copytree(run, tmp_path / "run")
    assert_same_run(tmp_path / "run", finished("plain"))


@pytest.mark.slow
def test_a_limit_of_file_sizes_is_no_traceback_either(command, finished, tmp_path):
    """As with a quota, some file of the run can't be written to its end."""
    run = tmp_path / "run"
    process = command.start(run, {"compile_cache": None})
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    done = finish(process)
    assert done.code == 1, done.err
    assert "Traceback" not in done.err
    assert done.error.startswith("error: ") and "File too large" in done.error
    again = command.run(run)
    assert again.code == 0, again.err
    assert_same_run(run, finished("plain"))
