"""Files of this machine and of object storage (gs://bucket/...): the one module that tells them apart.

An object is written whole or not at all: no appending, no cheap rename, no locks, no empty folders. What a run
keeps goes through etils' paths; data and weights are read through fsspec, which knows more kinds of storage.
"""

import contextlib
import hashlib
import importlib.util
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from etils import epath

from vit_jax.errors import UsageError

_log = logging.getLogger(__name__)

T = TypeVar("T")

_WORTH_A_LINE = 2**28  # bytes

# What fsspec needs besides itself.
_PACKAGES = {
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "s3": "s3fs",
    "az": "adlfs",
    "abfs": "adlfs",
    "hf": "huggingface_hub",
}
# gcsfs goes on trying for half a minute by itself.
_PATIENCE_S = 60.0


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path is the address of an object store."""
    return "://" in os.fspath(path)


def keeps_runs(spec: str) -> bool:
    """Whether runs can be kept on this object store: orbax writes to no other."""
    return spec.startswith("gs://")


def run_folder(spec: str) -> epath.Path:
    """The folder of a run: local, or on gs://.

    Raises:
      UsageError: storage that checkpoints can't be written to, a missing package, or no answer in a minute.
    """
    if not is_remote(spec):
        return epath.Path(spec).expanduser()
    if not keeps_runs(spec):
        raise UsageError(
            f"{spec}: checkpoints can't be kept on {spec.split('://')[0]}://",
            "give a local or mounted folder, or gs://…",
        )
    need_package(spec)
    # Other processes write there too: what was listed before says nothing.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    folder = epath.Path(spec)
    with reaching(spec):
        within(_PATIENCE_S, (folder / "config.json").exists)
    return folder


def need_package(spec: str) -> None:
    """Raises UsageError if the storage of an address needs a package that isn't installed."""
    scheme = spec.split("://")[0]
    package = _PACKAGES.get(scheme)
    if package is not None and not has_package(package):
        raise UsageError(f"{spec} needs the package {package}", f"pip install {package}")


def has_package(name: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(name) is not None


def open_store(spec: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of an address, and the address without its scheme, for reading.

    Raises:
      UsageError: a kind of storage that isn't known, or whose package is missing.
    """
    need_package(spec)
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    with reaching(spec):
        return fsspec.core.url_to_fs(spec)


@contextlib.contextmanager
def reaching(spec: str) -> Iterator[None]:
    """Turns whatever a storage layer raises in the block into one UsageError about `spec`."""
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs tracebacks of what it raises
    try:
        yield
    except UsageError:
        raise
    except FileNotFoundError:
        raise UsageError(f"can't read {spec}: no such file or bucket", "check the path") from None
    except (ImportError, ValueError) as error:
        raise UsageError(f"can't read {spec}: {line(error)}", "give a local path, gs://… or hf://…") from None
    except Exception as error:  # a storage layer's own kinds
        raise UsageError(
            f"can't reach {spec}: {line(error)}", "check the address, the network and your credentials"
        ) from None


def within(seconds: float, function: Callable[[], T]) -> T:
    """The function's value, or its exception; TimeoutError if it takes longer: it is left behind."""
    outcome: list[tuple[bool, Any]] = []

    def call() -> None:
        try:
            outcome.append((True, function()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    ok, value = outcome[0]
    if not ok:
        raise value
    return value


def write_text(path: epath.Path, text: str) -> None:
    """Writes a small file so that a reader sees the former content or the new one, never a part."""
    if is_remote(path):
        path.write_text(text)
        return
    temporary = path.parent / (path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def make_folder(path: epath.Path) -> None:
    """Makes a folder and those above it. An object store has none: gcsfs would make a missing bucket."""
    if not is_remote(path):
        path.mkdir(parents=True, exist_ok=True)


def move_folder(source: epath.Path, target: epath.Path) -> None:
    """Gives a folder another name, by copies on an object store."""
    if is_remote(source):
        store, _ = open_store(str(source))
        store.mv(str(source), str(target), recursive=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)


def copy_once(store: fsspec.AbstractFileSystem, remote: str, local: Path) -> None:
    """Copies an object to a local file unless the file there is a copy of this very state of it."""
    state, record = str(store.ukey(remote)), local.with_name(local.name + ".state")
    if local.is_file() and record.is_file() and record.read_text() == state:
        return
    local.parent.mkdir(parents=True, exist_ok=True)
    temporary = local.with_name(local.name + f".part{os.getpid()}")
    store.get_file(remote, str(temporary))
    temporary.replace(local)
    record.write_text(state)


def mirror(folder: str, names: Sequence[str]) -> Path:
    """Copies files of a folder on a store to this machine's cache; what was copied before and is the same is kept.

    Raises:
      UsageError: not there, no access, or more than the local disk holds.
    """
    store, root = open_store(folder)
    target = cache() / hashlib.sha256(folder.encode()).hexdigest()[:24]
    with reaching(folder):
        missing = [name for name in names if not (target / name).is_file()]
        needed = sum(store.size(f"{root}/{name}") for name in missing)
        target.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target).free
        if needed > free:
            raise UsageError(
                f"copying {folder} takes {needed / 2**30:.1f} GiB, {target} has {free / 2**30:.1f} GiB",
                "set XDG_CACHE_HOME to a larger disk, or mount the bucket (gcsfuse) and give that path",
            )
        if needed > _WORTH_A_LINE:
            _log.info("copying %.1f GiB of %s to %s", needed / 2**30, folder, target)
        for name in names:
            copy_once(store, f"{root}/{name}", target / name)
    return target


def upload(local: Path, remote: epath.Path) -> None:
    """Copies a local folder, with all below it, to an object store."""
    for path in sorted(local.rglob("*")):
        if path.is_file():
            (remote / path.relative_to(local).as_posix()).write_bytes(path.read_bytes())


def cache() -> Path:
    """Where copies are kept on this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit_jax"


def line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
