"""Where an exported program goes: complete at its place or not there at all, and never over something else."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from vit_jax.errors import UsageError


@contextlib.contextmanager
def new_files(path: str | os.PathLike, *, overwrite: bool, beside: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yields an empty folder; what is written there moves beside `path` at the end, `path.name` itself last.

    Args:
        path: the file to write. Its folder is made if there is none.
        overwrite: whether an existing file may be replaced.
        beside: endings of companion files, such as ".data", that `path` may have.

    Raises:
        UsageError: something exists and isn't to be replaced, or the place can't be written.
    """
    path = _local(path)
    companions = [path.with_name(path.name + ending) for ending in beside]
    for file in (*companions, path):
        if file.is_dir():
            raise UsageError(f"{file} is a folder", "name a file that doesn't exist yet")
        _refuse_existing(file, overwrite)
    with _staging(path) as staging:
        yield staging
        fresh = [file for file in companions if (staging / file.name).exists()]
        for file in [*fresh, path]:
            os.replace(staging / file.name, file)
        for file in set(companions) - set(fresh):  # of the program that was replaced
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike, *, overwrite: bool, marks: tuple[str, ...]) -> Iterator[Path]:
    """Yields an empty folder that becomes `path` at the end.

    Args:
        path: the folder to write. Folders above it are made if there are none.
        overwrite: whether an existing folder may be replaced; only one that holds the files `marks`.
        marks: names of files that tell a folder written here from any other.

    Raises:
        UsageError: something exists and isn't to be replaced, or the place can't be written.
    """
    path = _local(path)
    _refuse_existing(path, overwrite)
    if path.exists() and not (path.is_dir() and all((path / mark).is_file() for mark in marks)):
        raise UsageError(f"{path} is not an exported folder", "name a folder that doesn't exist yet")
    with _staging(path) as staging:
        made = staging / "new"
        made.mkdir()
        yield made
        old = staging / "old"
        if path.exists():
            os.rename(path, old)
        try:
            os.rename(made, path)
        except OSError:
            if old.exists():
                os.rename(old, path)
            raise


def _local(path: str | os.PathLike) -> Path:
    if "://" in os.fspath(path):
        raise UsageError(f"{path} is not a local path", "export to a local path, then copy it there")
    return Path(os.path.abspath(path))


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if os.path.lexists(path) and not overwrite:
        raise UsageError(f"{path} exists already", "name another destination, or ask to overwrite it")


@contextlib.contextmanager
def _staging(path: Path) -> Iterator[Path]:
    """A folder beside `path`, on the same disk so that a rename moves what it holds; gone at the end."""
    staging = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)  # of a killed process that had this number
        staging.mkdir()
        yield staging
    except OSError as error:
        raise UsageError(
            f"{path} can't be written: {error.strerror or error}", "name a destination that can be written"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
