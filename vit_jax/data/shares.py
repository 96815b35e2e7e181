"""Random shares of a split, the same for every run: `train{10%}`.

A share is a slice of the split in a random order. The order depends on nothing but the number of examples and the
share's own seed (`{10%#1}`; 0 where none is given): not on the training seed, hosts or epochs. So shares of one
seed are nested, {3%} in {10%}, and {:90%} and {90%:} are disjoint. Classes stay those of the whole split, even if
a share has no example of one: runs on shares of different sizes have the same head.

Stratified, the order deals out every class evenly: a share p has p n of a class of n examples, to about one, and is
nested all the same. It depends on the labels too, which are read at the start: of sources that keep them with the
images, such as ArrayRecord, that takes reading the whole split.
"""

import hashlib

import numpy as np

from vit_jax.data.order import share_order, share_place
from vit_jax.data.source import Example, Source, SourceSubset
from vit_jax.data.splits import Share
from vit_jax.errors import UsageError


class SourceShare(Source):
    """Places start to stop of another source in the order of a share's seed; keeps nothing per example."""

    def __init__(self, source: Source, seed: int, start: int, stop: int) -> None:
        self.spec, self.split, self.classes = source.spec, source.split, source.classes
        self._source, self._seed, self._start, self._count = source, seed, start, stop - start

    def __len__(self) -> int:
        return self._count

    def _place(self, index: int) -> int:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return share_place(self._seed, self._start + index, len(self._source))

    def __getitem__(self, index: int) -> Example:
        return self._source[self._place(index)]

    def name(self, index: int) -> str:
        return self._source.name(self._place(index))

    def memory_bytes(self) -> int:
        return self._source.memory_bytes()

    def labels(self) -> np.ndarray:
        order = share_order(self._seed, len(self._source))
        return self._source.labels()[order[self._start : self._start + self._count]]


def take_share(source: Source, share: Share) -> Source | None:
    """The share of a source; None where it is empty.

    A stratified one keeps 8 bytes per example of the share.

    Raises:
      UsageError: a bound beyond the source, or a stratified share of label vectors.
    """
    start, stop = share.range(len(source))
    if start == stop:
        return None
    if not share.stratified:
        return SourceShare(source, share.seed, start, stop)
    labels = source.labels()
    if labels.ndim != 1:
        raise UsageError(
            f"data {source.spec}@{source.split}: no stratified share of label vectors",
            "leave out '-stratified'",
        )
    return SourceSubset(source, stratified_order(labels, source.classes, share.seed)[start:stop])


def stratified_order(labels: np.ndarray, classes: tuple[str, ...], seed: int) -> np.ndarray:
    """int64 [n]: all places, such that the first k hold every class as often as k / n says, up to rounding.

    Systematic sampling: the example that is r-th of n_c in its class's random order stands at (r + u_c) / n_c, and
    the random u_c in 0..1 of each class rounds a share up as often as chance would.

    Args:
      labels: int [n], indices into classes; the order depends on the names, not on their numbers.
    """
    order = share_order(seed, len(labels))
    ordered = labels[order]
    by_class = np.argsort(ordered, kind="stable")
    counts = np.bincount(ordered, minlength=len(classes))
    rank = np.empty(len(labels), np.int64)
    rank[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    offset = np.array([_uniform(f"{seed}/{name}") for name in classes])
    key = (rank + offset[ordered]) / counts[ordered]
    return order[np.argsort(key, kind="stable")]


def _uniform(text: str) -> float:
    """A number in 0..1 that looks random, of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) / 2**64
