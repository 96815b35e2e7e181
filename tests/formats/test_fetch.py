"""Weights that aren't local files: the Hugging Face hub, and storage that fsspec knows."""

import shutil
import sys
import types

import fsspec
import pytest

import vit_jax
from vit_jax.errors import UsageError
from vit_jax.formats import fetch


@pytest.fixture
def hub(golden, monkeypatch, tmp_path):
    """A hub of one repository, owner/vit; the calls that it got."""
    calls = []

    def snapshot_download(repo, *, revision, allow_patterns):
        calls.append((repo, revision, tuple(allow_patterns)))
        if repo != "owner/vit":
            raise OSError(f"401: no repository {repo}\nsee the documentation")
        folder = tmp_path / "snapshot"
        shutil.copytree(golden / "hf/vit", folder, dirs_exist_ok=True)
        return str(folder)

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download)
    )
    return calls


def test_the_hub(hub):
    model, _ = vit_jax.load("hf://owner/vit", num_classes=3)
    assert model.ln_eps == 1e-12 and model.num_classes == 3
    repo, revision, patterns = hub[0]
    assert (repo, revision) == ("owner/vit", None)
    assert "*.safetensors" in patterns and not any("bin" in p or "pt" in p.split(".") for p in patterns)
    vit_jax.load("hf://owner/vit@v1.0/model.safetensors")
    assert hub[1][:2] == ("owner/vit", "v1.0") and "model.safetensors" in hub[1][2]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "hf://owner/other",
            r"can't fetch hf://owner/other: 401: no repository owner/other \(check the name",
        ),
        ("hf://owner", r"'hf://owner' is no address"),
        ("hf://owner/vit/none.npz", r"owner/vit has no file 'none.npz'"),
    ],
)
def test_what_the_hub_lacks(hub, spec, message):
    with pytest.raises(UsageError, match=message):
        fetch.local(spec)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        UsageError, match=r"needs the package huggingface_hub \(pip install huggingface_hub\)"
    ):
        fetch.local("hf://owner/vit")


def test_storage_is_read_through_a_cache(golden, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = fsspec.filesystem("memory")
    with store.open("/bucket/token.npz", "wb") as file:
        file.write((golden / "vt/token.npz").read_bytes())
    model, _ = vit_jax.load("memory://bucket/token.npz", num_classes=0)
    assert model.depth == 2
    assert [p.name for p in (tmp_path / "vit_jax").rglob("*.npz")] == ["token.npz"]
    with pytest.raises(UsageError, match=r"can't read memory://bucket/none.npz"):
        vit_jax.load("memory://bucket/none.npz")
    with pytest.raises(UsageError, match=r"can't read nostore://x.npz"):
        vit_jax.load("nostore://x.npz")
