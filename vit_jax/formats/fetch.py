"""Where weights lie: a local path, `hf://owner/repo[@revision][/file]`, or any storage that fsspec knows.

What isn't local is copied into a cache once, then read from there.
"""

import os
import re
from pathlib import Path

from vit_jax.errors import UsageError

_HUB = re.compile(r"hf://(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?(/(?P<file>.+))?")
# What the readers need of a repository of weights; never its pickled files.
_WANTED = (
    "*.safetensors",
    "*.npz",
    "config.json",
    "preprocessor_config.json",
    "model.safetensors.index.json",
)


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
    import fsspec

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit_jax"
    scheme = spec.split("://")[0]
    try:
        found = fsspec.open_local(
            f"simplecache::{spec}", simplecache={"cache_storage": str(cache), "same_names": True}
        )
    except ImportError as error:
        raise UsageError(f"{scheme}:// paths need another package: {_line(error)}", "install it") from None
    except ValueError as error:
        raise UsageError(
            f"can't read {spec}: {_line(error)}", "give a local path, gs://… or hf://owner/repo"
        ) from None
    except Exception as error:  # a storage layer's own kinds
        raise UsageError(f"can't read {spec}: {_line(error)}", "check the path and your access") from None
    return Path(found)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
