"""`digests.json`: the record that makes a checkpoint step complete, and tells when it was damaged.

It holds shape, dtype and digest of every array, and the size of every file of the step (with SHA-256 of those
up to `HASHED_BYTES`: the small ones hold the structure; the content of large ones is covered by the arrays'
digests). It is written last, as a whole.
"""

import dataclasses
import hashlib
import json
from typing import Any

from etils import epath

from vit_jax import files

FILE = "digests.json"
HASHED_BYTES = 16 * 2**20
_FORMAT = 1


class Damaged(Exception):
    """A step that can't be trusted; the message says why, in a few words."""


@dataclasses.dataclass(frozen=True)
class Array:
    """What is known of a saved array."""

    shape: tuple[int, ...]
    dtype: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Content of `digests.json`."""

    step: int
    arrays: dict[str, Array]
    files: dict[
        str, dict[str, Any] | None
    ]  # path inside the step folder -> {"bytes": n, "sha256": hex or None}, or None
    value: float | None  # the metric of a best checkpoint


def write(
    folder: epath.Path, *, step: int, arrays: dict[str, Array], value: float | None, later: tuple[str, ...]
) -> None:
    """Record the arrays and all files now in the folder; `later` names files still to be written."""
    record = {
        "format": _FORMAT,
        "step": step,
        "value": value,
        "arrays": {name: dataclasses.asdict(array) for name, array in arrays.items()},
        "files": {name: _file_entry(folder / name) for name in _files(folder) if name not in later}
        | dict.fromkeys(later),
    }
    record["sha256"] = _own_sha256(record)
    files.write_text(folder / FILE, json.dumps(record, indent=1))


def read(folder: epath.Path) -> Manifest:
    """Read the record of a step.

    Raises:
      Damaged: it is missing, or not what was written.
    """
    try:
        text = (folder / FILE).read_text()
    except FileNotFoundError:
        raise Damaged(f"incomplete, {FILE} is missing") from None
    except UnicodeDecodeError:
        raise Damaged(f"{FILE} is not readable") from None
    try:
        record = json.loads(text)
        ok = record["sha256"] == _own_sha256(record)
    except (ValueError, TypeError, KeyError):
        raise Damaged(f"{FILE} is not readable") from None
    if not ok:
        raise Damaged(f"{FILE} was changed")
    arrays = {
        name: Array(tuple(entry["shape"]), entry["dtype"], entry["digest"])
        for name, entry in record["arrays"].items()
    }
    return Manifest(record["step"], arrays, record["files"], record["value"])


def check_files(folder: epath.Path, manifest: Manifest) -> None:
    """Compare every recorded file with the folder; files that came later don't matter.

    Raises:
      Damaged: a file is missing, of another size, or of other content.
    """
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.exists():
            raise Damaged(f"{name} is missing")
        if entry is None:
            continue
        found = _file_entry(path, hashed=entry["sha256"] is not None)
        if found["bytes"] != entry["bytes"]:
            raise Damaged(f"{name} has {found['bytes']} bytes instead of {entry['bytes']}")
        if found["sha256"] != entry["sha256"]:
            raise Damaged(f"the content of {name} was changed")


def _files(folder: epath.Path, prefix: str = "") -> list[str]:
    names = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            names += _files(path, f"{prefix}{path.name}/")
        elif not (prefix == "" and path.name.startswith(FILE)):
            names.append(prefix + path.name)
    return names


def _file_entry(path: epath.Path, *, hashed: bool = True) -> dict[str, Any]:
    size = path.stat().length
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if hashed and size <= HASHED_BYTES else None
    return {"bytes": size, "sha256": sha256}


def _own_sha256(record: dict[str, Any]) -> str:
    rest = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
