"""A run whose folder lies on gs://, in a stand-in for Google's servers on this machine."""

import json
import signal
import subprocess
import sys

import pytest

from tests.fake_gcs import FakeGcs
from tests.integration.command import (
    ROOT,
    assert_same_run,
    environment,
    finish,
    metrics,
    saved_steps,
    wait_for,
)

pytest.importorskip("gcsfs")
pytestmark = pytest.mark.slow


def _download(gcs, prefix, folder):
    for name in gcs.names(prefix + "/"):
        path = folder / name.removeprefix(prefix + "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gcs.objects[name][0])
    return folder


def test_killed_and_continued_on_an_object_store(command, finished, tmp_path):
    unbroken = finished("plain")
    with FakeGcs() as gcs:
        sets = {"tensorboard": True}
        process = command.start("gs://bucket/run", sets, env=gcs.environment())
        wait_for(lambda: gcs.names("run/checkpoints/30/"), process, "third checkpoint")
        process.kill()
        assert finish(process).code == -signal.SIGKILL
        assert "run/checkpoints/30/commit_success.txt" not in gcs.objects
        gcs.objects["run/checkpoints/20/digests.json"] = (b"{}", 10**6)

        again = command.run("gs://bucket/run", sets, env=gcs.environment())
        assert again.code == 0, again.err
        assert "checkpoint step 30 damaged: incomplete, its save was cut off; using step 10" in again.err
        assert "checkpoint step 20 damaged: digests.json is not readable; using step 10" in again.err
        assert gcs.names("run/checkpoints_damaged/20-1/") and not gcs.names("run/checkpoints_damaged/30")
        assert "checkpoint: gs://bucket/run/checkpoints/30" in again.err
        run = _download(gcs, "run", tmp_path / "run")
        assert saved_steps(run) == [10, 20, 30]
        assert_same_run(run, unbroken)
        parts = sorted(path.name for path in (run / "metrics").iterdir())
        assert parts == ["part-0000-000000.jsonl", "part-0001-000000.jsonl"]
        assert len(list((run / "tensorboard").iterdir())) == 2
        starts = json.loads((run / "run.json").read_text())["starts"]
        assert [start.get("end", {}).get("how") for start in starts] == [None, "done"]

        done = subprocess.run(
            [sys.executable, "-m", "vit_jax.evaluate", "--checkpoint=gs://bucket/run"],
            env=environment(1) | gcs.environment(), cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["eval/test/accuracy"] == metrics(unbroken)[30]["eval/test/accuracy"]
