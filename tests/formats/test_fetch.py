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


@pytest.fixture
def store(monkeypatch, tmp_path):
    """Storage in memory, and a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = fsspec.filesystem("memory")
    yield store
    store.rm("/bucket", recursive=True)


def test_storage_is_read_through_a_cache(golden, store, monkeypatch, tmp_path):
    for name, source in (("a", "token"), ("b", "gap")):  # alike in all but the folder
        store.pipe(f"/bucket/{name}/w.npz", (golden / f"vt/{source}.npz").read_bytes())
    assert vit_jax.load("memory://bucket/a/w.npz")[0].pool == "tok"
    assert vit_jax.load("memory://bucket/b/w.npz")[0].pool == "gap"
    copies = list((tmp_path / "vit_jax").rglob("w.npz"))
    assert len(copies) == 2
    monkeypatch.setattr(type(store), "get_file", lambda *_: pytest.fail("copied again"))
    assert vit_jax.load("memory://bucket/a/w.npz")[0].pool == "tok"


def test_a_file_that_has_changed_is_read_again(golden, store):
    store.pipe("/bucket/w.npz", (golden / "vt/token.npz").read_bytes())
    assert vit_jax.load("memory://bucket/w.npz")[0].pool == "tok"
    store.rm("/bucket/w.npz")
    store.pipe("/bucket/w.npz", (golden / "vt/gap.npz").read_bytes())
    assert vit_jax.load("memory://bucket/w.npz")[0].pool == "gap"


def test_configs_beside_the_weights_come_too(golden, store):
    for name in ("model.safetensors", "config.json"):
        store.pipe(f"/bucket/vit/{name}", (golden / "hf/vit" / name).read_bytes())
    for spec in ("memory://bucket/vit", "memory://bucket/vit/model.safetensors"):
        assert vit_jax.load(spec)[0].ln_eps == 1e-12


@pytest.mark.parametrize("spec", ["memory://bucket/none.npz", "memory://none/w.npz", "nostore://x.npz"])
def test_what_storage_lacks(store, spec):
    store.pipe("/bucket/w.npz", b"")
    with pytest.raises(UsageError, match=f"can't read {spec}"):
        vit_jax.load(spec)
