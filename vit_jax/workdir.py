"""The folder of a run: who it belongs to, and the record of what ran in it.

`config.json` (the config in force), `run.json` (per start: versions, code revision, command, devices) and
`classes.txt`. A folder of another run is refused before anything is written to it.
"""

import dataclasses
import fcntl
import fnmatch
import importlib.metadata
import json
import logging
import math
import os
import platform
import socket
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from vit_jax import files
from vit_jax.errors import UsageError

_log = logging.getLogger(__name__)

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "vit_jax")
_ABSENT = "(absent)"


class Lock:
    """Claims a folder until the object, or the process, is gone, however it ends.

    Two runs that save into one folder would destroy each other's checkpoints.
    """

    def __init__(self, folder: epath.Path) -> None:
        """Raises UsageError, naming the process, if the folder is in use; storage without locks is let be."""
        self._fd = None
        if files.is_remote(folder):
            return
        self._fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 200).decode(errors="replace").strip()
            raise UsageError(
                f"the workdir {folder} is in use by {holder or 'another process'}",
                "wait for it to end, or choose another --workdir",
            ) from None
        except OSError:
            return
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


@dataclasses.dataclass(frozen=True)
class Workdir:
    """An opened run folder.

    Attributes:
      path: the folder.
      stored: the config it held before this start, None for a new run.
      changed: dotted key -> (stored value, new value) of the keys that may change and did.
    """

    path: epath.Path
    stored: dict[str, Any] | None
    changed: dict[str, tuple[Any, Any]]
    lock: Lock | None = None  # held by process 0 as long as it lives


def open_workdir(
    path: str | Path,
    config: Mapping[str, Any],
    *,
    may_change: Sequence[str],
    hints: Mapping[str, str],
    command: Sequence[str],
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Workdir:
    """Create the folder of a run, or continue the run it holds; all processes call it together.

    Args:
      path: local, or a bucket's address; the same storage for all processes.
      config: nested mapping of plain values; tuples and lists are the same.
      may_change: patterns of dotted keys (`mesh.*`) that may differ from the stored config.
      hints: pattern -> how to go on in spite of a difference in such a key, for the message.
      command: what the user typed, for the record.
      defaults: nested mapping of the values that keys have which the stored config is too old to know.

    Raises:
      UsageError: not writable, in use, the folder of another run, or not the same storage on all processes.
    """
    folder = epath.Path(path)
    config = plain(config)
    refused, opened = None, None
    if jax.process_index() == 0:
        try:
            opened = _open(folder, config, may_change, hints, plain(defaults))
            opened = dataclasses.replace(opened, lock=Lock(folder))
            _record_start(opened, config, command)
        except UsageError as error:
            refused = error
    if jax.process_count() > 1:
        refused = refused or _check_on_others(folder, config, main_ok=opened is not None)
        opened = opened or Workdir(folder, None, {})
    if refused is not None:
        raise refused
    return opened


def record_end(path: str | Path, end: Mapping[str, Any]) -> None:
    """Adds how the newest start ended to its entry in run.json; for process 0."""
    record = epath.Path(path) / "run.json"
    content = _read_json(record)
    content["starts"][-1]["end"] = plain(end)
    files.write_text(record, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_config(path: str | Path) -> dict[str, Any]:
    """The config a run folder holds; lists where the config had tuples.

    Raises:
      UsageError: no such folder, or not one of a run.
    """
    return _read_json(epath.Path(path) / "config.json")


def write_classes(path: str | Path, classes: Sequence[str]) -> None:
    """Store the class names, one a line, in the order of the labels; process 0 writes.

    Raises:
      UsageError: the run was trained with other classes, or a name holds a line break.
    """
    if broken := [name for name in classes if "\n" in name or "\r" in name]:
        raise UsageError(f"the class name {broken[0]!r} holds a line break", "rename the class")
    target = epath.Path(path) / "classes.txt"
    if target.exists():
        stored = read_classes(path)
        if stored != tuple(classes):
            raise UsageError(
                f"{target} holds {len(stored)} classes, the training data {len(classes)}: "
                + _first_difference(stored, classes),
                "give the data this run began with, or another workdir",
            )
    elif jax.process_index() == 0:
        files.write_text(target, "".join(name + "\n" for name in classes))


def read_class_file(path: str | os.PathLike) -> tuple[str, ...]:
    """The class names of any text file, a name a line.

    Raises:
      UsageError: it can't be read.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            return tuple(line.rstrip("\r\n") for line in file)
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "not UTF-8"
        raise UsageError(
            f"can't read the classes of {os.fspath(path)}: {why}", "give a text file, a name a line"
        ) from e


def read_classes(path: str | Path) -> tuple[str, ...]:
    """The class names of a run, in the order of the labels.

    Raises:
      UsageError: the folder has none.
    """
    target = epath.Path(path) / "classes.txt"
    try:
        text = target.read_text()
    except FileNotFoundError:
        raise UsageError(f"{target} does not exist", "give the folder of a run") from None
    return tuple(text.split("\n")[:-1])


def plain(value: Any) -> Any:
    """The value as strict JSON has it: string keys, lists, non-finite numbers as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} has no place in a JSON record")


def differences(
    stored: Mapping[str, Any], new: Mapping[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (stored value, new value) of all leaves that differ between two plain configs.

    Keys that only `new` has are new ones of a later version: they stood at their defaults.
    """
    old_leaves, new_leaves = _leaves(defaults) | _leaves(stored), _leaves(new)
    keys = sorted(old_leaves.keys() | new_leaves.keys())
    pairs = {key: (old_leaves.get(key, _ABSENT), new_leaves.get(key, _ABSENT)) for key in keys}
    # true is not 1, but 1 is 1.0: a config takes a whole number where a real one stands.
    return {
        key: (old, now)
        for key, (old, now) in pairs.items()
        if old != now or isinstance(old, bool) != isinstance(now, bool)
    }


def _open(
    folder: epath.Path,
    config: dict[str, Any],
    may_change: Sequence[str],
    hints: Mapping[str, str],
    defaults: Mapping[str, Any],
) -> Workdir:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the workdir {folder} is a file", "choose a folder")
    try:
        files.make_folder(folder)
        files.write_text(folder / "run.json.probe", "")
        (folder / "run.json.probe").unlink()
    except Exception as error:  # OSError, or a storage layer's own kinds
        reason = getattr(error, "strerror", None) or files.line(error)
        raise UsageError(
            f"can't write to the workdir {folder}: {reason}", "choose another --workdir"
        ) from None
    if not (folder / "config.json").exists():
        ours = [name for name in ("checkpoints", "best") if _steps(folder / name)]
        ours += [name for name in ("metrics.jsonl", "metrics", "run.json") if (folder / name).exists()]
        if ours:
            raise UsageError(
                f"the workdir {folder} holds {', '.join(ours)}{_of_steps(folder)} but no config.json: "
                "it can't be told which run that is",
                "choose another --workdir",
            )
        return Workdir(folder, None, {})
    stored = read_config(folder)
    different = differences(stored, config, defaults)
    foreign = {key: pair for key, pair in different.items() if not _matches(key, may_change)}
    if foreign:
        shown = [f"{key} is {_show(old)} there, {_show(new)} here" for key, (old, new) in foreign.items()]
        more = [f"and {len(shown) - 8} more"] if len(shown) > 8 else []
        remedies = ["choose another --workdir, or give the config it was started with"]
        remedies += [hint for pattern, hint in hints.items() if any(_matches(k, [pattern]) for k in foreign)]
        raise UsageError(
            f"the workdir {folder} holds another run{_of_steps(folder)}: " + "; ".join(shown[:8] + more),
            "; or ".join(remedies),
        )
    return Workdir(folder, stored, different)


def _check_on_others(folder: epath.Path, config: dict[str, Any], *, main_ok: bool) -> UsageError | None:
    """The other processes go by what process 0 found; that they see its file shows that storage is shared."""
    if not multihost_utils.broadcast_one_to_all(np.array(main_ok)):
        return UsageError(f"process 0 refused the workdir {folder}", "see its message")
    seen = (folder / "config.json").exists() and read_config(folder) == config
    blind = np.flatnonzero(~multihost_utils.process_allgather(np.array(seen)))
    if blind.size:
        return UsageError(
            f"process {blind[0]} doesn't find in {folder} what process 0 wrote there, or has another config",
            "give the same command on every host, and a workdir on storage they share",
        )
    return None


def _record_start(opened: Workdir, config: dict[str, Any], command: Sequence[str]) -> None:
    record = opened.path / "run.json"
    try:
        starts = _read_json(record)["starts"] if record.exists() else []
    except (UsageError, KeyError) as error:  # a log, nothing that a run depends on
        _log.warning("%s: starting a new record", error)
        starts = []
    devices = jax.devices()
    starts.append(
        {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": list(command),
            "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
            "revision": _revision(),
            "devices": {
                "platform": devices[0].platform,
                "kind": devices[0].device_kind,
                "count": len(devices),
                "processes": jax.process_count(),
            },
            "changed": {key: list(pair) for key, pair in opened.changed.items()},
        }
    )
    files.write_text(opened.path / "config.json", json.dumps(config, indent=1, allow_nan=False) + "\n")
    files.write_text(record, json.dumps({"starts": plain(starts)}, indent=1, allow_nan=False) + "\n")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The commit of this code, `+changes` if files differ from it; None outside a clone."""
    package = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(package), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", "__init__.py"
        )  # an installed copy may lie inside another repository
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _read_json(path: epath.Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "give the folder of a run") from None
    except (ValueError, OSError) as error:
        raise UsageError(
            f"can't read {path}: {error}", "restore the file, or choose another folder"
        ) from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a record of a run", "restore the file, or choose another folder")
    return content


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves |= _leaves(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _matches(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def _show(value: Any) -> str:
    return value if value is _ABSENT else json.dumps(value)


def _steps(folder: epath.Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def _of_steps(folder: epath.Path) -> str:
    steps = _steps(folder / "checkpoints")
    if not steps:
        return ""
    shown = ", ".join(str(step) for step in steps[-5:])
    return f" (step{'s' if len(steps) > 1 else ''} {'…, ' if len(steps) > 5 else ''}{shown})"


def _first_difference(stored: Sequence[str], given: Sequence[str]) -> str:
    for position, (old, new) in enumerate(zip(stored, given, strict=False)):
        if old != new:
            return f"number {position} is {old!r} there, {new!r} here"
    return "one list is longer than the other"
