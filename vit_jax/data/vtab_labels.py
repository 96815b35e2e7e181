"""How VTAB makes a class of what a data set records: pure functions of a record, exact in every threshold.

After google-research/task_adaptation. A record is a mapping as tensorflow-datasets gives it; `objects` holds one
array per property, its first axis over the objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Record = Mapping[str, Any]

# Class i holds the distances d with threshold i < d <= threshold i + 1, in the unit of the record.
CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)  # metres
CLEVR_FEWEST = 3  # objects in an image
KITTI_VEHICLES = 3  # types below: car, van, truck
_NO_VEHICLE = 1000.0


class Rule(Protocol):
    """Record -> class. Picklable, for worker processes."""

    def __call__(self, record: Record) -> int: ...


@dataclass(frozen=True)
class Feature:
    """A feature of the record as it is."""

    key: str

    def __call__(self, record: Record) -> int:
        return int(record[self.key])


@dataclass(frozen=True)
class Modulo:
    """A feature modulo a number: SVHN's original files call the digit 0 "10"."""

    key: str
    modulus: int

    def __call__(self, record: Record) -> int:
        return int(record[self.key]) % self.modulus


@dataclass(frozen=True)
class Binned:
    """A whole-numbered feature in bins of a width that need not be whole: floor(value / width)."""

    key: str
    width: float

    def __call__(self, record: Record) -> int:
        return int(np.floor(int(record[self.key]) / self.width))


def clevr_count(record: Record) -> int:
    """Number of objects, from 3 on."""
    return len(record["objects"]["pixel_coords"]) - CLEVR_FEWEST


def clevr_distance(record: Record) -> int:
    """The bin of the closest object's distance."""
    depths = np.asarray(record["objects"]["pixel_coords"])[:, 2]
    return _last_below(CLEVR_DISTANCES, float(depths.min()))


def kitti_distance(record: Record) -> int:
    """The bin of the closest vehicle's distance; the last one where there is no vehicle."""
    kinds = np.asarray(record["objects"]["type"]).reshape(-1)
    depths = np.asarray(record["objects"]["location"], np.float32).reshape(-1, 3)[:, 2]
    vehicles = depths[kinds < KITTI_VEHICLES]
    return _last_below(KITTI_DISTANCES, float(vehicles.min()) if len(vehicles) else _NO_VEHICLE)


def _last_below(thresholds: tuple[float, ...], value: float) -> int:
    """The largest i with thresholds[i] < value; -1, which no task has, where there is none."""
    return sum(threshold < value for threshold in thresholds) - 1
