"""Where metrics go: JSON lines always, TensorBoard if asked for. One process writes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tensorboardX import SummaryWriter

from vit_jax.records import Records


class Writer(Protocol):
    """Takes flat metrics of a step."""

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Records `values` under `step`."""

    def flush(self) -> None:
        """Whatever was written outlives the process from here on."""

    def close(self) -> None:
        """Flushes and closes."""


class JsonMetrics:
    """A JSON object {"step": step, "train/loss": ...} for each call."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Appends {"step": step, **values}."""
        self._records.append({"step": step, **values})

    def flush(self) -> None:
        """Flushes the records."""
        self._records.flush()

    def close(self) -> None:
        """Closes the records."""
        self._records.close()


class TensorBoard:
    """Event files for TensorBoard; values that are missing or not finite are left out.

    tensorboardX writes to gs:// by itself: the whole event file anew, at every flush.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder), write_to_disk=True)

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Adds a scalar for each finite value."""
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Flushes the event file."""
        self._writer.flush()

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

    def flush(self) -> None:
        """Flushes every writer."""
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        """Closes every writer."""
        for writer in self._writers:
            writer.close()
