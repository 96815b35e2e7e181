"""What a report says, as plain data: no jax arrays, no open files. Where a part is missing, a text says why."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vit_jax.inspection import Learned
from vit_jax.report.anchors import Anchor


@dataclass(frozen=True)
class Missing:
    """Why a part isn't there, a sentence for the reader."""

    why: str


@dataclass(frozen=True)
class History:
    """What a run logged.

    Attributes:
      series: metric, such as train/loss -> steps int64 [n] and values float64 [n], NaN where none is finite.
      starts: entries of run.json, the oldest first.
      damaged: what couldn't be read of it, a line each.
    """

    series: dict[str, tuple[np.ndarray, np.ndarray]]
    starts: list[dict[str, Any]]
    damaged: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Picture:
    """An image to show: an encoded file and what it is."""

    data: bytes
    kind: str  # png | jpeg
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Confusion:
    """A pair of classes that are taken for one another.

    Attributes:
      label, prediction: names.
      count: images of `label` that were called `prediction`, of `of` images of that label.
      examples: some of them.
    """

    label: str
    prediction: str
    count: int
    of: int
    examples: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Mistakes:
    """What a classifier gets wrong on a split.

    Attributes:
      split: its name.
      pairs: the most frequent confusions, the worst first; none if all is right.
      classes: (name, accuracy 0..1, examples) of the classes with the lowest accuracy below 1.
    """

    split: str
    pairs: tuple[Confusion, ...]
    classes: tuple[tuple[str, float, int], ...]


@dataclass(frozen=True)
class Calibration:
    """Of a split.

    Attributes:
      bins: float64 [3, n]: examples, mean confidence, accuracy, by bin of the confidence; NaN without examples.
      ece: expected calibration error, 0..1.
    """

    split: str
    bins: np.ndarray
    ece: float


@dataclass(frozen=True)
class Inside:
    """The inner views: of the parameters, and of some images.

    Attributes:
      distance: [L, H] pixels, mean over the images; None: no image could be read.
      rollouts: drawn over each image.
      reads: what the rollout follows back.
    """

    learned: Learned
    distance: np.ndarray | None
    rollouts: tuple[Picture, ...]
    reads: str


@dataclass(frozen=True)
class Content:
    """All of a report.

    Attributes:
      checkpoint: as given; step: of a run.
      created: date and time, UTC.
      data: name of an evaluated split -> its address and number of examples.
      results: `eval/<name>/<metric>` -> value; failed: a line for each evaluator that failed.
      anchors: published numbers of the run's config.
      config: key -> value of all, defaults: the same of the base config.
      machine: of this evaluation, a word -> its value.
      commands: what for -> the command line.
    """

    checkpoint: str
    step: int | None
    created: str
    data: dict[str, str]
    results: dict[str, Any]
    failed: Sequence[str]
    anchors: list[Anchor]
    history: History | Missing
    mistakes: Mistakes | Missing
    calibration: Calibration | Missing
    inside: Inside | Missing
    config: dict[str, Any]
    defaults: dict[str, Any]
    machine: dict[str, str]
    commands: dict[str, str]
