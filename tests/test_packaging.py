"""The wheel: one top-level package, and everything works from any folder."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("wheel", reason="the build backend of this environment needs it")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", str(REPO), str(source)], check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder),
         str(source)],
        check=True,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


def test_no_generic_name_lands_in_site_packages(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {t for t in top if not t.endswith(".dist-info")} == {"vit_jax"}
    for folder in ("configs", "launch"):
        ours = {p.relative_to(REPO).as_posix() for p in (REPO / folder).rglob("*.py")}
        assert {f"vit_jax/{path}" for path in ours} <= set(names)


def test_shipped_configs_work_from_another_folder(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    for config in ("quickstart", "configs/quickstart.py"):
        done = subprocess.run(
            [sys.executable, "-m", "vit_jax.train", f"--config={config}", "--workdir=run",
             "--config.total_steps=2", "--config.warmup_epochs=0.0", "--config.model.depth=1"],
            cwd=tmp_path, env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu"},
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("done step=2 ")


def test_launchers_work_from_another_folder(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    for command in (
        ["-m", "vit_jax.launch.local"],
        ["-c", "from vit_jax import cli; cli.main()", "launch", "local"],  # what `vit-jax` does
    ):
        done = subprocess.run(
            [sys.executable, *command, "--processes=2", "--dry-run", "--", "train", "a b"],
            cwd=tmp_path, env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert [line.endswith(" train 'a b'") for line in done.stdout.splitlines()] == [True, True]
