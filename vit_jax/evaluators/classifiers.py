"""What the linear classifiers share: features on a common scale, and the accuracy of scores."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

_EPS = 1e-5  # added to the standard deviation, as big_vision's few-shot evaluation does


@dataclass(frozen=True)
class Standardize:
    """(x - mean) / scale with the statistics of the training features.

    Attributes:
      mean, scale: float64 [D].
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> "Standardize":
        """The statistics of features [N, D]: mean, and population standard deviation + 1e-5."""
        x = np.asarray(features, np.float64)
        return cls(x.mean(axis=0), x.std(axis=0) + _EPS)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """float64 [n, D] of features [n, D]."""
        return (np.asarray(features, np.float64) - self.mean) / self.scale


class Classifier(Protocol):
    """Scores features [n, D] by class, [n, C]."""

    def scores(self, features: np.ndarray) -> np.ndarray: ...


def accuracy(model: Classifier, features: np.ndarray, labels: np.ndarray) -> float:
    """Share of the rows [n, D] whose largest score, the first of equals, is that of their label [n]."""
    return float(np.mean(np.argmax(model.scores(features), axis=1) == labels))
