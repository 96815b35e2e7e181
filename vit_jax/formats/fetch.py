"""Where weights lie: a local path, `hf://owner/repo[@revision][/file]`, or any storage that fsspec knows.

What isn't local is copied into a cache once, then read from there.
"""

import fnmatch
import hashlib
import os
import re
from pathlib import Path
from typing import Any

from vit_jax.errors import UsageError

_HUB = re.compile(r"hf://(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?(/(?P<file>.+))?")
# What the readers need of a repository of weights; never its pickled files.
_CONFIGS = ("config.json", "preprocessor_config.json")
_WANTED = ("*.safetensors", "*.npz", "model.safetensors.index.json", *_CONFIGS)


def local(spec: str) -> Path:
    """A local file or folder for `spec`, downloaded into the cache if need be.

    Raises:
      UsageError: nothing there, no access, or a package that is missing; names the remedy.
    """
    if spec.startswith("hf://"):
        return _from_hub(spec)
    if "://" in spec:
        if spec.startswith(("http://", "https://")):
            raise UsageError(f"{spec} is a web address", "download the file, and give its path")
        return _from_storage(spec)
    path = Path(spec).expanduser()
    if not path.exists():
        raise UsageError(
            f"no such file or folder: {spec!r}", "give weights (.npz, .safetensors), a folder, or a run"
        )
    return path


def _from_hub(spec: str) -> Path:
    match = _HUB.fullmatch(spec)
    if match is None:
        raise UsageError(
            f"{spec!r} is no address on the Hugging Face hub", "write hf://owner/repo or …/repo/file"
        )
    try:
        import huggingface_hub
    except ImportError:
        raise UsageError(f"{spec} needs the package huggingface_hub", "pip install huggingface_hub") from None
    patterns = [match["file"]] if match["file"] else list(_WANTED)
    try:
        folder = huggingface_hub.snapshot_download(
            match["repo"], revision=match["revision"], allow_patterns=[*patterns, "*.json"]
        )
    except Exception as error:  # of many kinds: no such repository, no token, no network
        raise UsageError(
            f"can't fetch {spec}: {_line(error)}", "check the name, the network and your token"
        ) from None
    path = Path(folder) / (match["file"] or "")
    if not path.exists():
        raise UsageError(
            f"{match['repo']} has no file {match['file']!r}", "see the repository's list of files"
        )
    return path


def _from_storage(spec: str) -> Path:
    """A copy of a file and of the configs beside it, or of the weights and configs of a folder.

    Kept by whole address; a file that has changed there is copied again.
    """
    import fsspec

    scheme = spec.split("://")[0]
    try:
        store, root = fsspec.core.url_to_fs(spec)
        folder = root if store.isdir(root) else root.rpartition("/")[0]
        wanted = _WANTED if folder == root else (root.rpartition("/")[2], *_CONFIGS)
        names = [path.rpartition("/")[2] for path in store.ls(folder, detail=False)]
        found = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)]
        if folder != root and wanted[0] not in found:
            raise UsageError(f"can't read {spec}: no such file", "check the path")
        target = _cache() / hashlib.sha256(f"{scheme}://{folder}".encode()).hexdigest()[:24]
        for name in found:
            _copy(store, f"{folder}/{name}", target / name)
    except ImportError as error:
        raise UsageError(f"{scheme}:// paths need another package: {_line(error)}", "install it") from None
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(
            f"can't read {spec}: {_line(error)}", "give a local path, gs://… or hf://…"
        ) from None
    except Exception as error:  # a storage layer's own kinds
        raise UsageError(f"can't read {spec}: {_line(error)}", "check the path and your access") from None
    return target if folder == root else target / wanted[0]


def _copy(store: Any, remote: str, local_path: Path) -> None:
    """Copies a file unless the copy here is of the same state of it."""
    state, record = str(store.ukey(remote)), local_path.with_name(local_path.name + ".state")
    if local_path.is_file() and record.is_file() and record.read_text() == state:
        return
    local_path.parent.mkdir(parents=True, exist_ok=True)
    temporary = local_path.with_name(local_path.name + ".part")
    store.get_file(remote, str(temporary))
    temporary.replace(local_path)
    record.write_text(state)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit_jax"


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
