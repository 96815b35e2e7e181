"""The folder that is written: what is done, what is refused, and one command at a time.

    ROOT/.prepare/plan.json           what the folder is made from, written before anything else
    ROOT/.prepare/SPLIT/00003.json    shard 3 of a split is whole: its digest, counts, and what was left out
    ROOT/.prepare/scratch/            compressed archives, expanded
    ROOT/.prepare/lock
    ROOT/manifest.json                the end: `.prepare` is gone

A shard is written beside its place, synced, renamed, and only then noted.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit_jax import files
from vit_jax.data.arrayrecord import MANIFEST, read_manifest
from vit_jax.errors import RunFailed, UsageError
from vit_jax.preparing.plan import differences

_STATE = ".prepare"
_PLAN = "plan.json"
_ANOTHER = "choose another DESTINATION, or remove this one"


class Destination:
    """Where a data set is being prepared. One process holds it at a time."""

    def __init__(self, root: str) -> None:
        """Takes hold of the folder, made if need be.

        Raises:
          UsageError: it can't be written, is in use, or holds something that isn't ours.
        """
        if files.is_remote(root):
            raise UsageError(
                f"{root}: shards can't be written to an object store",
                "prepare into a local folder, then copy it there whole",
            )
        self.root = Path(root).expanduser()
        self.state = self.root / _STATE
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"{self.root} is a file", "DESTINATION is a folder")
        inside = set(os.listdir(self.root)) if self.root.is_dir() else set()
        if inside and not inside & {_STATE, MANIFEST}:
            raise UsageError(f"{self.root} holds other files, such as {min(inside)}", "give a new folder")
        self.manifest = read_manifest(str(self.root)) if MANIFEST in inside else None
        if self.manifest is not None and "made_from" not in self.manifest:
            raise UsageError(f"{self.root} holds a data set that prepare didn't make", _ANOTHER)
        self._lock: int | None = None
        if self.manifest is None:
            self._take()

    @property
    def scratch(self) -> Path:
        """For files that are needed until the end."""
        folder = self.state / "scratch"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _take(self) -> None:
        try:
            self.state.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.state / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as e:
            raise UsageError(f"can't write {self.root}: {e.strerror}", "choose another DESTINATION") from e
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UsageError(f"{self.root} is in use by another prepare", "wait for its end") from None
        except OSError:  # storage without locks
            pass

    def begin(self, made_from: Mapping[str, Any]) -> bool:
        """Whether there is work to do: False when the data set is finished.

        Raises:
          UsageError: the folder is made, or half made, from something else.
        """
        wanted = json.loads(json.dumps(made_from))
        if self.manifest is not None:
            self._compare(self.manifest["made_from"], wanted)
            return False
        plan = self.state / _PLAN
        if plan.exists():
            self._compare(_read(plan), wanted)
        else:
            self._write(plan, wanted)
        return True

    def _compare(self, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        different = differences(there, here)
        if different:
            raise UsageError(
                f"{self.root} was made otherwise: {different[0]}"
                + (f" (and {len(different) - 1} more, above)" if len(different) > 1 else ""),
                _ANOTHER,
                "\n".join(different[1:]),
            )

    def shard(self, split: str, index: int, path: Path) -> dict[str, Any] | None:
        """What was noted of a shard that is whole, else None."""
        note = self._note(split, index)
        if not note.exists():
            return None
        entry = _read(note)
        found = path.stat().st_size if path.exists() else None
        return entry if found == entry["bytes"] else None

    def note(self, split: str, index: int, entry: Mapping[str, Any]) -> None:
        """Notes that a shard is whole."""
        self._note(split, index).parent.mkdir(exist_ok=True)
        self._write(self._note(split, index), entry)

    def finish(self) -> None:
        """Cleans up, after the manifest was written."""
        shutil.rmtree(self.state, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Lets go of the folder; a folder in which nothing was begun is removed."""
        if self.manifest is not None:  # whatever was opened to compare with it
            shutil.rmtree(self.state, ignore_errors=True)
        if self._lock is None:
            return
        if self.state.is_dir() and not (self.state / _PLAN).exists():
            shutil.rmtree(self.state, ignore_errors=True)
            if not os.listdir(self.root):
                self.root.rmdir()
        os.close(self._lock)
        self._lock = None

    def _note(self, split: str, index: int) -> Path:
        return self.state / split / f"{index:05d}.json"

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        temporary = path.with_suffix(".tmp")
        try:
            with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
                json.dump(content, file, ensure_ascii=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as e:
            raise cannot_write(path, e.strerror or str(e)) from e


def cannot_write(path: Path | str, why: str) -> RunFailed:
    """What to say when the disk is full or gone."""
    return RunFailed(f"can't write {path}: {why} (mend that, then the same command goes on)")


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError) as e:
        raise UsageError(f"{path} can't be read: {e}", _ANOTHER) from e
