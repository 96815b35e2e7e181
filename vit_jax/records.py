"""JSON lines of a run: one strict JSON object a line, appended to a file, or in parts on an object store.

    WORKDIR/NAME.jsonl                       on a file system: append-only
    WORKDIR/NAME/part-<start>-<n>.jsonl      on an object store, where nothing can be appended to an object

`start` counts the starts of the run, `n` the parts since then; in the order of their names they are one file.
"""

import json
import logging
import math
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from etils import epath

from vit_jax import files

_log = logging.getLogger(__name__)

_PART = re.compile(r"part-(\d+)-(\d+)\.jsonl")
# A part is written anew with every flush until it has grown to this.
_PART_BYTES = 2**20
_FLUSH_EVERY_S = 60.0


class Records(Protocol):
    """Takes JSON objects, in order."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds an object; non-finite numbers become null."""

    def flush(self) -> None:
        """Whatever was appended outlives the process from here on."""

    def close(self) -> None:
        """Flushes and closes."""


def open_records(folder: Path, name: str) -> Records:
    """The records `name` of a run, to be appended to."""
    if files.is_remote(folder):
        return JsonParts(epath.Path(folder) / name)
    return JsonLines(folder / f"{name}.jsonl")


def read_records(folder: str | Path, name: str) -> Iterator[dict[str, Any]]:
    """All objects that were appended to `name`, in order, in whichever form they are kept; none if none were."""
    whole = epath.Path(folder) / f"{name}.jsonl"
    if whole.exists():
        yield from _lines(whole)
    for _, _, path in _parts(epath.Path(folder) / name):
        yield from _lines(path)


class JsonLines:
    """Appends to a file, flushed line by line.

    Opening a file that a kill left with half a line takes that half line away, so that every line stays valid.
    """

    def __init__(self, path: Path) -> None:
        _drop_partial_line(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes one object and flushes it."""
        self._file.write(_json_line(record))
        self._file.flush()

    def flush(self) -> None:
        """Nothing is left to flush."""

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class JsonParts:
    """Writes objects of many lines: at most a minute after a line, and when flushed.

    Storage that fails for a while loses nothing: the lines are kept for the next flush, the last one raises.
    """

    def __init__(self, folder: epath.Path) -> None:
        self._folder = folder
        self._start = 1 + max((start for start, _, _ in _parts(folder)), default=-1)
        self._number = 0
        self._lines: list[str] = []
        self._dirty = False
        self._written_at = time.monotonic()

    def append(self, record: Mapping[str, Any]) -> None:
        """Takes one object."""
        self._lines.append(_json_line(record))
        self._dirty = True
        if time.monotonic() - self._written_at >= _FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Writes the part that is still growing, or warns that it can't be written now."""
        try:
            self._write()
        except Exception as error:  # a storage layer's own kinds
            _log.warning("can't write to %s, trying again later: %s", self._folder, files.line(error))

    def close(self) -> None:
        """Writes what is left; raises if that can't be."""
        self._write()

    def _write(self) -> None:
        self._written_at = time.monotonic()
        if not self._dirty:
            return
        text = "".join(self._lines)
        (self._folder / f"part-{self._start:04d}-{self._number:06d}.jsonl").write_text(text)
        self._dirty = False
        if len(text) >= _PART_BYTES:
            self._number, self._lines = self._number + 1, []


def _parts(folder: epath.Path) -> list[tuple[int, int, epath.Path]]:
    """(start, n, path) of all parts, in order."""
    if not folder.is_dir():
        return []
    found = [(match, path) for path in folder.iterdir() if (match := _PART.fullmatch(path.name))]
    return sorted((int(match[1]), int(match[2]), path) for match, path in found)


def _lines(path: epath.Path) -> Iterator[dict[str, Any]]:
    with path.open("r") as file:
        for line in file:
            if line.endswith("\n"):  # the half line of a kill is none
                yield json.loads(line)


def _json_line(record: Mapping[str, Any]) -> str:
    return json.dumps(_finite(record), allow_nan=False) + "\n"


def _drop_partial_line(path: Path) -> None:
    if not path.exists():
        return
    with Path(path).open("rb+") as file:  # etils' paths know no such mode
        size = file.seek(0, 2)
        keep = size
        while keep > 0:  # backwards, a block at a time, to the last newline
            start = max(0, keep - 4096)
            file.seek(start)
            newline = file.read(keep - start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
        if keep != size:
            file.truncate(keep)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
