"""Folders of files to read, on this machine or at any address that fsspec knows (gs://bucket/images)."""

import os
from collections.abc import Iterator

from vit_jax import files
from vit_jax.data.decode import BadImage


def is_folder(path: str) -> bool:
    """Whether it is a folder that can be listed.

    Raises:
      UsageError: storage that can't be reached.
    """
    if not files.is_remote(path):
        return os.path.isdir(path)
    store, root = files.open_store(path)
    with files.reaching(path):
        return store.isdir(root)


def names(path: str) -> list[str]:
    """Names of all files and folders in a folder."""
    if not files.is_remote(path):
        return os.listdir(path)
    store, root = files.open_store(path)
    with files.reaching(path):
        return [name.rstrip("/").rpartition("/")[2] for name in store.ls(root, detail=False)]


def subfolders(path: bytes) -> list[bytes]:
    """Names of the visible folders in a folder, sorted."""
    if not files.is_remote(os.fsdecode(path)):
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if not ignored(e.name) and e.is_dir())
    url = os.fsdecode(path)
    store, root = files.open_store(url)
    with files.reaching(url):
        found = [os.fsencode(e["name"].rstrip("/").rpartition("/")[2]) for e in store.ls(root, detail=True)
                 if e["type"] == "directory"]  # fmt: skip
    return sorted(name for name in found if not ignored(name))


def files_below(path: bytes, prefix: bytes = b"", above: tuple[str, ...] = ()) -> Iterator[bytes]:
    """Paths of the visible files below a folder, relative to it, in no order. Follows links, but not in circles."""
    if files.is_remote(os.fsdecode(path)):
        yield from _objects_below(os.fsdecode(path))
        return
    real = os.path.realpath(path)
    if real in above:
        return
    folders = []
    with os.scandir(path) as entries:
        for entry in entries:
            if ignored(entry.name):
                continue
            # A dead link counts as a file: it fails by name when read, instead of going missing here.
            if entry.is_dir():
                folders.append(entry.name)
            else:
                yield prefix + entry.name
    for name in folders:
        yield from files_below(os.path.join(path, name), prefix + name + b"/", (*above, real))


def read_file(path: bytes | str) -> bytes:
    """The content of an image file. Raises BadImage, naming it, where that can't be had."""
    name = os.fsdecode(path)
    if files.is_remote(name):
        store, root = files.open_store(name)
        try:
            return store.cat_file(root)
        except Exception as e:  # a storage layer's own kinds
            raise BadImage(name, f"can't be read: {files.line(e)}") from e
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as e:
        raise BadImage(name, f"can't be read: {e.strerror}") from e


def ignored(name: bytes) -> bool:
    """Hidden, or what an archiver left."""
    return name.startswith(b".") or name == b"__MACOSX"


def _objects_below(url: str) -> Iterator[bytes]:
    """One listing for all that lies below, a request for every thousand objects."""
    store, root = files.open_store(url)
    with files.reaching(url):
        found = store.find(root)
    start = len(root.rstrip("/")) + 1
    for name in found:
        relative = os.fsencode(name[start:])
        if not any(ignored(part) for part in relative.split(b"/")):
            yield relative
