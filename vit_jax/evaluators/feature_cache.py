"""Features on disk: a file per (parameters, model, preprocessing, representation, content of the data).

A file is a convenience, never a need: a damaged one is computed again, and one that can't be written is only
reported. Process 0 reads and writes; the others get what it has read.
"""

import hashlib
import json
import logging
import os
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax import distributed
from vit_jax.data.decode import BadImage
from vit_jax.data.source import Source
from vit_jax.digest import tree_digests

_log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]
_NAMES = ("rows", "labels", "index")
_CHUNK = 1024  # examples hashed between two additions to the whole


def data_digest(source: Source) -> str:
    """SHA-256 over content and label of every example, in order; names and places on disk don't matter."""
    whole = hashlib.sha256()

    def one(index: int) -> bytes:
        digest = hashlib.sha256()
        try:
            example = source[index]
        except (BadImage, OSError):
            return digest.digest()  # such an example has no features either
        if isinstance(example.image, np.ndarray):
            digest.update(f"{example.image.dtype}{example.image.shape}".encode())
        digest.update(example.image)
        digest.update(np.asarray(example.label, np.float64).tobytes())
        return digest.digest()

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(source), _CHUNK):
            whole.update(b"".join(pool.map(one, range(start, min(start + _CHUNK, len(source))))))
    return whole.hexdigest()


class FeatureCache:
    """A folder of features. All processes call its methods together."""

    def __init__(self, folder: str | Path) -> None:
        """The folder need not exist."""
        self._folder = Path(folder).expanduser()

    def key(self, params: Any, source: Source, about: dict[str, Any]) -> str:
        """What the features' file is called: a digest of all that they depend on."""
        record = {"params": tree_digests(params), "about": about}
        if distributed.is_main():
            record["data"] = data_digest(source)
        return hashlib.sha256(json.dumps(record, sort_keys=True, default=str).encode()).hexdigest()[:32]

    def read(self, key: str) -> Arrays | None:
        """The arrays rows, labels, index; None where there are none, or none intact, which is logged."""
        found = None
        if distributed.is_main():
            path = self._path(key)
            try:
                found = _read(path) if path.exists() else None
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                _log.warning("feature cache %s damaged: %s; computing again", path, error)
            if found is not None:
                _log.info("features of %d examples from %s", len(found["rows"]), path)
        return found if jax.process_count() == 1 else _from_main(found)

    def write(self, key: str, arrays: Arrays) -> None:
        """Keeps the arrays; where that fails a warning says so."""
        if not distributed.is_main():
            return
        path = self._path(key)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("wb") as file:
                    np.savez(file, sha256=np.array(_sha256(arrays)), **arrays)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("feature cache %s can't be written: %s; going on without it", path, error.strerror)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.npz"


def _sha256(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in _NAMES:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


def _read(path: Path) -> Arrays:
    """Raises ValueError, or what numpy raises, for anything but what was written."""
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        arrays = {name: file[name] for name in _NAMES}
        if str(file["sha256"]) != _sha256(arrays):
            raise ValueError("its content was changed")
    return arrays


def _from_main(found: Arrays | None) -> Arrays | None:
    """What process 0 has, on all processes. Bytes travel: other types would be cut to 32 bits."""
    shapes = np.full((len(_NAMES), 2), -1, np.int32)
    if found is not None:
        shapes = np.array([(*found[name].shape, -1)[:2] for name in _NAMES], np.int32)
    shapes = np.asarray(multihost_utils.broadcast_one_to_all(shapes))
    if shapes[0, 0] < 0:
        return None
    arrays = {}
    for name, sizes in zip(_NAMES, shapes.tolist(), strict=True):
        shape = [size for size in sizes if size >= 0]
        dtype = {"rows": np.float32, "index": np.int64}.get(name, np.int32 if len(shape) == 1 else np.float32)
        mine = np.zeros(shape, dtype) if found is None else np.ascontiguousarray(found[name])
        sent = multihost_utils.broadcast_one_to_all(mine.reshape(-1).view(np.uint8))
        arrays[name] = np.asarray(sent).view(dtype).reshape(shape)
    return arrays
