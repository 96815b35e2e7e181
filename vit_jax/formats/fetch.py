"""Where weights lie: a local path, `hf://owner/repo[@revision][/file]`, or any storage that fsspec knows.

What isn't local is copied into a cache once, then read from there.
"""

import fnmatch
import re
from pathlib import Path

from vit_jax import files
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
            f"can't fetch {spec}: {files.line(error)}", "check the name, the network and your token"
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
    scheme = spec.split("://")[0]
    store, root = files.open_store(spec)
    with files.reaching(spec):
        folder = root if store.isdir(root) else root.rpartition("/")[0]
        wanted = _WANTED if folder == root else (root.rpartition("/")[2], *_CONFIGS)
        names = [path.rpartition("/")[2] for path in store.ls(folder, detail=False)]
        found = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)]
        if folder != root and wanted[0] not in found:
            raise UsageError(f"can't read {spec}: no such file", "check the path")
    target = files.mirror(f"{scheme}://{folder.lstrip('/')}", found)
    return target if folder == root else target / wanted[0]
