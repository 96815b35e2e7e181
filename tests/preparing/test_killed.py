"""The command killed at random moments and started again writes what an unbroken one writes."""

import random
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from tests.integration.command import ROOT, environment, finish
from tests.preparing.pictures import contents

pytestmark = pytest.mark.slow

_KILLS = 5


def _start(source, out):
    return subprocess.Popen(
        [sys.executable, "-m", "vit_jax.prepare", str(source), str(out), "--shards=12", "--shuffle=3",
         "--resize-short-side=150"],
        cwd=ROOT, env=environment(1), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_killed_and_started_again(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(1500):
        folder = tmp_path / f"in/train/{i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        image = cv2.resize(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8), (450, 300))
        assert cv2.imwrite(str(folder / f"{i}.jpg"), image)
    began = time.monotonic()
    done = finish(_start(tmp_path / "in", tmp_path / "whole"))
    assert done.code == 0, done.err
    took = time.monotonic() - began
    draw, killed, out = random.Random(1), 0, tmp_path / "broken"
    while killed < _KILLS:
        process = _start(tmp_path / "in", out)
        # Not before it works, and then at any moment of what a whole run takes.
        while process.poll() is None and not (out / ".prepare/plan.json").exists():
            time.sleep(0.01)
        time.sleep(draw.uniform(0, took / 2 / _KILLS))
        assert process.poll() is None, "ended before it could be killed: give it more to do"
        process.kill()
        process.communicate()
        killed += 1
        assert not (out / "manifest.json").exists()
    done = finish(_start(tmp_path / "in", out))
    assert done.code == 0, done.err
    assert contents(out) == contents(tmp_path / "whole")
