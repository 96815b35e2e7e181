"""What all tests of the command share: a compilation cache, and finished runs that others are compared with."""

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
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


@pytest.fixture
def pictures(tmp_path):
    """24 images to train, 10 to test; one of each is cut short."""
    rng = np.random.default_rng(0)
    root = tmp_path / "pictures"
    for split, count in (("train", 12), ("test", 5)):
        for name in ("dark", "light"):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                level = 200 if name == "light" else 20
                image = rng.integers(level, level + 50, (8, 8, 3)).astype(np.uint8)
                assert cv2.imwrite(str(root / split / name / f"{i:02d}.png"), image)
        broken = root / split / "dark" / "03.png"
        broken.write_bytes(broken.read_bytes()[:60])
    return root
