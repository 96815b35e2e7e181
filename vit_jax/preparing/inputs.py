"""Opens what `prepare` reads: any kind of data that training reads, and archives besides.

A bare path is looked at: see `guess`. Splits keep their names; a source without splits becomes `train`.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vit_jax.data import sources, tree
from vit_jax.data.arrayrecord import MANIFEST
from vit_jax.data.source import Catalog, Source, shorten
from vit_jax.data.source_folder import FolderCatalog
from vit_jax.data.splits import parse_split
from vit_jax.errors import UsageError
from vit_jax.preparing.classes import class_list

_log = logging.getLogger("vit_jax.prepare")

_WHOLE = "train"  # what the only split of a source without splits is called
_IDX, _CIFAR10, _CIFAR100 = "idx3-ubyte", "data_batch_1.bin", "fine_label_names.txt"


@dataclass(frozen=True)
class Input:
    """An opened source.

    Attributes:
      spec: the source as it is noted: `KIND:PATH`, the path absolute.
      splits: name in the result -> (split expression, examples), the one that gives the classes first.
      classes: names in label order.
      prefixes: what names of examples begin with on this machine alone.
      listed: names of examples are known without reading these.
      facts: what else the result hangs on.
    """

    spec: str
    splits: dict[str, tuple[str, Source]]
    classes: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    listed: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


def open_input(source: str, *, splits: Sequence[str] = (), classes: str | None = None) -> Input:
    """Opens a source and its splits.

    Args:
      source: `KIND:LOCATION`, or a path.
      splits: `NAME` or `NAME=EXPRESSION` of each split that is wanted; none: all.
      classes: option of `class_list`.

    Raises:
      UsageError: nothing there, a split or class that isn't known, a class without images.
    """
    kind, location, expression = _parse(source)
    catalog, listed = _open(kind, location)
    spec = f"{kind}:{_absolute(kind, location)}" if location else kind
    wanted = _wanted(catalog, splits, expression)
    own = class_list(classes, _found_classes(catalog, spec, wanted) if classes == "imagenet21k" else ())
    opened: dict[str, tuple[str, Source]] = {}
    for name, words in wanted.items():
        part = sources.open_split(catalog, spec, words, own)
        if listed:
            _check_absent(part, name, may_be=bool(opened) or classes is not None or "[" in words)
        own = part.classes
        opened[name] = (words, part)
    root = os.path.expanduser(location)
    prefixes = tuple(f"{start.rstrip('/')}/" for start in (f"{kind}:{root}", root, kind) if start)
    return Input(spec, opened, tuple(own), prefixes, listed)


def guess(path: str) -> str:
    """The kind of data that lies at a path.

    Raises:
      UsageError: nothing is there, or nothing that is known.
    """
    if not tree.is_folder(path):
        raise UsageError(f"{path}: no such folder", "check the path, or write KIND:LOCATION")
    names = tree.names(path)
    if MANIFEST in names:
        return "arrayrecord"
    if any(_IDX in name for name in names):
        return "idx"
    if _CIFAR10 in names:
        return "cifar10"
    if _CIFAR100 in names:
        return "cifar100"
    return "folder"


KINDS: dict[str, Callable[[str], Catalog]] = sources.KINDS | {
    # Classes without images are looked for here: in the split that gives the classes they are an error.
    "folder": lambda location: FolderCatalog(location, warn_absent=False),
}
_LISTED = ("folder",)


def _open(kind: str, location: str) -> tuple[Catalog, bool]:
    return KINDS[kind](location), kind in _LISTED


def _parse(source: str) -> tuple[str, str, str | None]:
    """(kind, location, split expression or None); a bare path is looked at."""
    kind, colon, rest = source.partition(":")
    if not (colon and kind in KINDS) and source not in KINDS:
        path = os.path.expanduser(source)
        return guess(path), path, None
    whole, at, split = rest.rpartition("@")
    if not at or "/" in split:
        return kind, rest, None
    return kind, whole, split


def _absolute(kind: str, location: str) -> str:
    """A path as it is noted; names of data sets stay."""
    path = os.path.expanduser(location)
    return os.path.abspath(path) if kind not in ("tfds", "vtab") and os.path.exists(path) else location


def _wanted(catalog: Catalog, options: Sequence[str], expression: str | None) -> dict[str, str]:
    """Name in the result -> expression of the source, the one that gives the classes first."""
    if options and expression is not None:
        raise UsageError(f"both --split and @{expression}", "give one of them")
    if expression is not None:
        terms = parse_split(expression)
        return {_WHOLE if terms[0].name == "all" else terms[0].name: expression}
    wanted: dict[str, str] = {}
    for option in options:
        name, equals, words = option.partition("=")
        if not name.replace("_", "").replace("-", "").isalnum():
            raise UsageError(f"--split={option}", "write --split=NAME or --split='NAME=train[:98%]'")
        if name in wanted:
            raise UsageError(f"--split={option}: {name} is there already", "give every split once")
        wanted[name] = words if equals else name
    if not wanted:
        wanted = {_WHOLE: "all"} if tuple(catalog.splits) == ("all",) else {s: s for s in catalog.splits}
    return {name: wanted[name] for name in sorted(wanted, key=sources.train_first)}


def _found_classes(catalog: Catalog, spec: str, wanted: Mapping[str, str]) -> Sequence[str]:
    """The source's own classes."""
    return sources.open_split(catalog, spec, next(iter(wanted.values())), None).classes


def _check_absent(source: Source, name: str, *, may_be: bool) -> None:
    """Classes without images: an error in the split that gives the classes, else a warning."""
    counts = np.bincount(source.labels(), minlength=len(source.classes))
    absent = [source.classes[i] for i in np.flatnonzero(counts == 0)]
    if not absent:
        return
    if not may_be:
        raise UsageError(
            f"split {name} of {source.spec} has no image of {shorten(absent)}",
            "remove the empty folders, or name all classes with --classes=FILE",
        )
    _log.warning("split %s has no image of %s", name, shorten(absent))
