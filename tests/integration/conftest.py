"""What all tests of the command share: a compilation cache, and finished runs that others are compared with."""

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command import Command


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Path:
    """A folder for this test session, the same in all its workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def command(shared) -> Command:
    """The training command."""
    return Command(str(shared / "compiled"))


@pytest.fixture(scope="session")
def finished(shared, command) -> Callable[..., Path]:
    """A function (name, sets, devices) -> workdir of a run that nothing interrupted; made once per session."""

    def get(name: str, sets: Mapping[str, Any] | None = None, devices: int = 1) -> Path:
        workdir = shared / name
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (shared / f"{name}.done").exists():
                done = command.run(workdir, sets, devices=devices)
                assert done.code == 0, done.err
                (shared / f"{name}.done").write_text(done.out)
        return workdir

    return get
