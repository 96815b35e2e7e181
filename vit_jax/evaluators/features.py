"""Features of every example of a split, computed once on the mesh and gathered on every process in order."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from vit_jax.data.source import Source
from vit_jax.errors import RunFailed
from vit_jax.evaluators.feature_cache import FeatureCache
from vit_jax.step import Batch, PyTree

_SHOWN = 5  # examples named in a message


class NotFinite(RunFailed):
    """Some features are NaN or infinite."""


@dataclass(frozen=True)
class Features:
    """What a model makes of n examples.

    Attributes:
      rows: float32 [n, D].
      labels: int32 [n], or float32 [n, K] of multi-hot labels.
      index: int64 [n], ascending: the examples' places in their source. Skipped unreadable images are missing.
    """

    rows: np.ndarray
    labels: np.ndarray
    index: np.ndarray


FeaturesStep = Callable[[PyTree, Batch], dict[str, jax.Array]]
Batches = Callable[[], Iterable[Batch]]


def stream(
    batches: Batches, step: FeaturesStep, params: PyTree, on_batch: Callable[[], None] = lambda: None
) -> Iterator[Features]:
    """One pass over a split, batch by batch, without padding and unreadable images.

    Args:
      batches: see Classification.
      step: see vit_jax.step.features_step, jitted, its results whole on every process.
      on_batch: called before every batch; may raise to break off.
    """
    first, pending = 0, None  # the former batch is fetched while this one is computed
    for batch in batches():
        on_batch()
        result = step(params, batch)
        if pending is not None:
            yield _kept(first, pending)
            first += len(pending["mask"])
        pending = result
    if pending is not None:
        yield _kept(first, pending)


def _kept(first: int, result: dict[str, jax.Array]) -> Features:
    found = jax.device_get(result)
    keep = np.flatnonzero(found["mask"] > 0)
    return Features(found["rows"][keep], found["label"][keep], first + keep.astype(np.int64))


def check_finite(features: Features, source: Source) -> None:
    """Raises NotFinite, naming examples, where a row holds a NaN or infinity."""
    bad = features.index[~np.isfinite(features.rows).all(axis=1)]
    if len(bad):
        names = ", ".join(source.name(int(i)) for i in bad[:_SHOWN])
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise NotFinite(
            f"features of {len(bad)} of {len(features.index)} examples of {source.spec}@{source.split} aren't "
            f"finite: {names}{more} (evaluate another checkpoint, or compute in float32)"
        )


class Extractor:
    """Computes the features of splits, or takes them from a cache."""

    def __init__(
        self,
        step: FeaturesStep,
        batches: Callable[[Source, int], Batches],
        *,
        on_batch: Callable[[], None] = lambda: None,
        cache: FeatureCache | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        """Makes an extractor.

        Args:
          step: see `stream`.
          batches: (source, number of classes) -> passes over it.
          on_batch: see `stream`.
          cache: where features are kept, if anywhere.
          about: all that they depend on besides parameters and data: the model's fields, preprocessing,
            representation. Needed for the cache alone.
        """
        self._step, self._batches, self._on_batch = step, batches, on_batch
        self._cache, self._about = cache, about or {}

    def __call__(self, params: PyTree, source: Source, num_classes: int) -> Features:
        """The features of every example; collective, the same on every process.

        Raises:
          NotFinite: some are NaN or infinite.
          UsageError: labels outside 0 ... num_classes - 1, or images that don't fit the model.
          DataError: an unreadable image, unless those are skipped.
        """
        key = self._cache.key(params, source, self._about) if self._cache is not None else ""
        kept = self._cache.read(key) if self._cache is not None else None
        if kept is not None:
            return Features(**kept)
        parts = list(stream(self._batches(source, num_classes), self._step, params, self._on_batch))
        found = Features(
            *(np.concatenate([getattr(p, f) for p in parts]) for f in ("rows", "labels", "index"))
        )
        check_finite(found, source)
        if self._cache is not None:
            self._cache.write(key, found.__dict__)
        return found
