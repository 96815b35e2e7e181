"""Nearest neighbours by cosine similarity: what the features are worth without any fitting.

Each of the k nearest training images votes for its class with weight exp(similarity / temperature), as in instance
discrimination (arXiv 1805.01978) and DINO (arXiv 2104.14294), whose temperature is 0.07.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.errors import UsageError
from vit_jax.evaluators.features import Features

_CHUNK = 1024  # test rows compared at once


def vote(
    train: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    num_classes: int,
    *,
    ks: Sequence[int],
    temperature: float,
) -> np.ndarray:
    """Predicted classes, int [len(ks), n], of test features [n, D].

    Args:
      train: [N, D]; a row of zeros is equally unlike everything.
      labels: int [N].
      ks: numbers of neighbours; more than N means all.
      temperature: above 0; the smaller, the more the nearest count.

    Of training images that are equally near the first one counts; of classes with equal votes the lower index.
    """
    most = min(max(ks), len(train))
    train = _unit(train)
    found = []
    for start in range(0, len(test), _CHUNK):
        rows = _unit(test[start : start + _CHUNK])
        padding = -len(rows) % _CHUNK if len(test) > _CHUNK else 0  # one compiled shape
        padded = np.pad(rows, ((0, padding), (0, 0)))
        similarity, index = jax.device_get(_nearest(train, padded, most))
        similarity, near = similarity[: len(rows)].astype(np.float64), labels[index[: len(rows)]]
        weights = np.exp((similarity - 1) / temperature)  # at most 1: no overflow
        found.append([_winners(near[:, :k], weights[:, :k], num_classes) for k in ks])
    return np.concatenate(found, axis=1) if found else np.zeros((len(ks), 0), np.int64)


def _unit(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float32)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1)


@jax.jit(static_argnums=2)
def _nearest(train: jax.Array, rows: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    return jax.lax.top_k(jnp.matmul(rows, train.T, precision="highest"), k)


def _winners(near: np.ndarray, weights: np.ndarray, num_classes: int) -> np.ndarray:
    votes = np.zeros((len(near), num_classes))
    np.add.at(votes, (np.arange(len(near))[:, None], near), weights)
    return np.argmax(votes, axis=1)


@dataclass(frozen=True)
class KNearest:
    """The evaluation of one data set; see `vote`."""

    ks: tuple[int, ...]
    temperature: float

    def __post_init__(self) -> None:
        """Raises UsageError for numbers that mean nothing."""
        if not self.ks or min(self.ks) < 1:
            raise UsageError(f"knn.k is {self.ks}", "give numbers of neighbours, such as (10, 20)")
        if self.temperature <= 0:
            raise UsageError(f"knn.temperature is {self.temperature}", "give a number above 0, such as 0.07")

    def measure(self, train: Features, test: Features, *, classes: Sequence[str]) -> dict[str, float]:
        """`knn<k>/accuracy` on test for each k; k beyond the number of training images is that number."""
        found = vote(
            train.rows, train.labels, test.rows, len(classes), ks=self.ks, temperature=self.temperature
        )
        return {
            f"knn{k}/accuracy": float(np.mean(predicted == test.labels))
            for k, predicted in zip(self.ks, found, strict=True)
        }
