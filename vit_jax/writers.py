"""Where metrics go: JSON lines always, TensorBoard if asked for. One process writes."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tensorboardX import SummaryWriter


class Writer(Protocol):
    """Takes flat metrics of a step."""

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Records `values` under `step`."""

    def close(self) -> None:
        """Flushes and closes."""


class JsonLines:
    """Appends one strict JSON object a line; non-finite numbers become null.

    Opening a file that a kill left with half a line takes that half line away, so that every line stays valid.
    """

    def __init__(self, path: Path) -> None:
        _drop_partial_line(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes one object and flushes it."""
        self._file.write(json.dumps(_finite(record), allow_nan=False) + "\n")
        self._file.flush()

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Writes {"step": step, **values}."""
        self.append({"step": step, **values})

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Event files for TensorBoard; values that are missing or not finite are left out."""

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder), write_to_disk=True)

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Adds a scalar for each finite value."""
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes and closes the event file."""
        self._writer.close()


class Writers:
    """Several writers as one."""

    def __init__(self, writers: Sequence[Writer]) -> None:
        self._writers = tuple(writers)

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Hands the values to every writer."""
        for writer in self._writers:
            writer.write(step, values)

    def close(self) -> None:
        """Closes every writer."""
        for writer in self._writers:
            writer.close()


def _drop_partial_line(path: Path) -> None:
    if not path.exists():
        return
    if "://" in str(path):  # a bucket's objects can't be cut, only written anew
        content = path.read_bytes()
        keep = content.rfind(b"\n") + 1
        if keep != len(content):
            path.write_bytes(content[:keep])
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
