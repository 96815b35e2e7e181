"""Which storage a path means, and what is said when it can't be used."""

import os
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
from etils import epath

from tests.fake_gcs import FakeGcs
from vit_jax import files, train
from vit_jax.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent

needs_gcsfs = pytest.mark.skipif(not files.has_package("gcsfs"), reason="gcsfs isn't installed")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(files, "has_package", lambda name: False)
    for scheme, package in (("gs", "gcsfs"), ("s3", "s3fs"), ("az", "adlfs")):
        with pytest.raises(
            UsageError, match=rf"{scheme}://b/x needs the package {package} \(pip install {package}"
        ):
            files.need_package(f"{scheme}://b/x")
    files.need_package("memory://b/x")
    with pytest.raises(UsageError, match="pip install gcsfs"):
        files.run_folder("gs://bucket/run")


def test_no_run_is_kept_where_orbax_cannot_write():
    for spec in ("s3://bucket/run", "memory://run"):
        with pytest.raises(
            UsageError, match=r"checkpoints can't be kept on \w+:// \(give a local or mounted"
        ):
            files.run_folder(spec)


def test_local_folders_and_whole_files(tmp_path):
    assert files.run_folder(str(tmp_path)) == epath.Path(tmp_path)
    path = epath.Path(tmp_path) / "a.json"
    files.write_text(path, "one")
    files.write_text(path, "two")
    assert path.read_text() == "two" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_an_answer_that_does_not_come_is_an_error():
    begun = time.monotonic()
    with (
        pytest.raises(UsageError, match=r"can't reach gs://b: no answer within 0 s"),
        files.reaching("gs://b"),
    ):
        files.within(0.2, lambda: time.sleep(60))
    assert time.monotonic() - begun < 5
    assert files.within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        files.within(5, lambda: {}["x"])


def test_copies_follow_the_original(tmp_path):
    store = fsspec.filesystem("memory")
    store.pipe("/files-test/a.bin", b"one")
    files.copy_once(store, "/files-test/a.bin", tmp_path / "a.bin")
    store.pipe("/files-test/a.bin", b"three")
    files.copy_once(store, "/files-test/a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == b"three"
    store.rm("/files-test", recursive=True)


def _refusal(gcs, spec):
    """The last line of stderr of a command that looks for a run."""
    done = subprocess.run(
        [sys.executable, "-m", "vit_jax.evaluate", f"--checkpoint={spec}"],
        env=os.environ | gcs.environment(), cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@needs_gcsfs
def test_what_is_said_of_a_bucket_that_cannot_be_used():
    with FakeGcs() as gcs:
        assert _refusal(gcs, "gs://bucket/none").startswith(
            "error: can't read gs://bucket/none: no such file"
        )
        gcs.forbidden = True
        line = _refusal(gcs, "gs://bucket/run")
    assert line.startswith("error: can't reach gs://bucket/run: ") and "your credentials" in line


@needs_gcsfs
@pytest.mark.slow
def test_storage_that_is_not_there_is_given_up_in_a_minute():
    with FakeGcs() as gcs:
        pass  # gone again: nobody answers
    begun = time.monotonic()
    assert _refusal(gcs, "gs://bucket/run").startswith("error: can't reach gs://bucket/run: ")
    assert time.monotonic() - begun < 80


def test_the_compile_cache_of_a_store_goes_without_the_local_ones(monkeypatch):
    updates = {}
    monkeypatch.setattr(train.jax.config, "update", updates.__setitem__)
    train.use_compile_cache("runs/cache")
    assert updates == {"jax_compilation_cache_dir": "runs/cache"}
    train.use_compile_cache("memory://cache")
    assert updates["jax_persistent_cache_enable_xla_caches"] == "none"
