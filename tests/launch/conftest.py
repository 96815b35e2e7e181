"""A small clone to send."""

import subprocess

import pytest


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A small clone with an edited, a deleted, a new and an ignored file."""
    root = tmp_path_factory.mktemp("clone")
    for name in ("setup.py", "vit_jax/a.py", "gone.py", ".gitignore"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("runs/\n" if name == ".gitignore" else "old")
    git = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "c"]):
        subprocess.run([*git, *words], check=True)
    (root / "vit_jax/a.py").write_text("edited")
    (root / "gone.py").unlink()
    for name in ("configs/mine.py", "runs/log"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("new")
    return root
