"""Evaluation of frozen features on one data set: its splits are computed once, for all methods."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vit_jax.data.source import Source, SourceSubset
from vit_jax.errors import UsageError
from vit_jax.evaluators.features import Extractor, Features
from vit_jax.evaluators.fewshot import FewShot
from vit_jax.evaluators.knn import KNearest
from vit_jax.evaluators.linear import LinearProbe
from vit_jax.step import TrainState


@dataclass(frozen=True)
class Methods:
    """What to do with the features; None: not this."""

    fewshot: FewShot | None = None
    linear: LinearProbe | None = None
    knn: KNearest | None = None


class Probe:
    """Few-shot, linear and nearest-neighbour evaluation of a data set with classes of its own."""

    def __init__(self, extractor: Extractor, train: Source, test: Source, methods: Methods) -> None:
        """Makes an evaluator.

        Args:
          train, test: with one class map, the training split's.

        Raises:
          UsageError: labels that aren't one class for each image.
        """
        self._extractor, self._train, self._test, self._methods = extractor, train, test, methods
        self._labels = train.labels()
        if self._labels.ndim != 1:
            raise UsageError(
                f"{train.spec}@{train.split} has several labels for an image",
                "probe data with one class each",
            )

    @property
    def classes(self) -> Sequence[str]:
        """C names."""
        return self._train.classes

    def run(self, state: TrainState) -> dict[str, float]:
        """Extracts with `state.params` and measures; keys `<method>/accuracy`, see the methods.

        Raises:
          NotFinite: features that are NaN or infinite; names examples.
        """
        train = self._train_features(state)
        test = self._extractor(state.params, self._test, len(self.classes))
        results: dict[str, float] = {"count": len(test.rows)}
        methods = self._methods
        if methods.fewshot is not None:
            results |= methods.fewshot.measure(train, test, labels=self._labels, classes=self.classes)
        if methods.linear is not None:
            results |= methods.linear.measure(train, test, classes=self.classes)
        if methods.knn is not None:
            results |= methods.knn.measure(train, test, classes=self.classes)
        return results

    def _train_features(self, state: TrainState) -> Features:
        """Of the whole split, or of what few-shot evaluation draws if that is all."""
        if self._methods.linear is not None or self._methods.knn is not None:
            return self._extractor(state.params, self._train, len(self.classes))
        wanted = self._methods.fewshot.wanted(self._labels, len(self.classes))
        if len(wanted) == len(self._train):
            return self._extractor(state.params, self._train, len(self.classes))
        found = self._extractor(state.params, SourceSubset(self._train, wanted), len(self.classes))
        return Features(found.rows, found.labels, np.asarray(wanted)[found.index])
