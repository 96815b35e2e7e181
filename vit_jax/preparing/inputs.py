"""Opens what `prepare` reads: any kind of data that training reads, and archives besides.

A bare path is looked at: see `guess`. Splits keep their names; a source without splits becomes `train`.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.data import sources, tree
from vit_jax.data.arrayrecord import MANIFEST
from vit_jax.data.source import Catalog, Source, shorten
from vit_jax.data.source_folder import SPLIT_NAMES, FolderCatalog
from vit_jax.data.splits import parse_split
from vit_jax.errors import UsageError
from vit_jax.preparing import tars
from vit_jax.preparing.classes import IMAGENET21K, class_list
from vit_jax.preparing.labels import LabelTable, by_table, read_labels
from vit_jax.preparing.listing import FolderListing, ListedCatalog, by_class_folder
from vit_jax.preparing.tfrecord import AnyTfdsCatalog
from vit_jax.preparing.webdataset import is_webdataset, open_webdataset

_log = logging.getLogger("vit_jax.prepare")

_WHOLE = "train"  # what the only split of a source without splits is called
_TFDS = "dataset_info.json"
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


def open_input(
    source: str, scratch: Path, *, splits: Sequence[str] = (), classes: str | None = None,
    labels: str | None = None, multi_label: bool = False,
) -> Input:  # fmt: skip
    """Opens a source and its splits.

    Args:
      source: `KIND:LOCATION`, or a path.
      scratch: where compressed archives are expanded to.
      splits: `NAME` or `NAME=EXPRESSION` of each split that is wanted; none: all.
      classes: option of `class_list`.
      labels: file with the classes of images, for folders and archives.
      multi_label: label vectors even where every image of it has one class.

    Raises:
      UsageError: nothing there, a split or class that isn't known, a class without images.
    """
    kind, location, expression = _parse(source)
    spec = f"{kind}:{_absolute(kind, location)}" if location else kind
    if labels is None and multi_label:
        raise UsageError("--multi-label without --labels", "give the classes of images with --labels=FILE")
    own = None if classes == IMAGENET21K else class_list(classes, ())
    opening = Opening(spec, location, scratch, own, read_labels(labels) if labels else None, multi_label)
    catalog = _open(kind, opening)
    wanted = _wanted(catalog, splits, expression)
    if classes == IMAGENET21K:
        found = sources.open_split(catalog, spec, next(iter(wanted.values())), None).classes
        own = class_list(classes, found)
    opened: dict[str, tuple[str, Source]] = {}
    for name, words in wanted.items():
        part = sources.open_split(catalog, spec, words, own)
        if isinstance(catalog, FolderCatalog) or (isinstance(catalog, ListedCatalog) and catalog.by_class):
            _check_absent(part, name, may_be=bool(opened) or classes is not None or not words.isidentifier())
        own = part.classes
        opened[name] = (words, part)
    root = os.path.expanduser(location)
    prefixes = tuple(f"{start.rstrip('/')}/" for start in (f"{kind}:{root}", root, kind) if start)
    listed = isinstance(catalog, FolderCatalog | ListedCatalog)
    facts = {"labels": catalog.digest} if isinstance(catalog, ListedCatalog) else {}
    return Input(spec, opened, tuple(own), prefixes, listed, facts)


def guess(path: str) -> str:
    """The kind of data that lies at a path.

    Raises:
      UsageError: nothing is there, or nothing that is known.
    """
    if path.lower().endswith(tars.SUFFIXES) and not tree.is_folder(path):
        return "tar"
    if path.lower().endswith((".zip", ".rar", ".7z")) and os.path.isfile(path):
        raise UsageError(f"{path}: only tar archives are read", "unpack it, and give the folder")
    if not tree.is_folder(path):
        raise UsageError(f"{path}: no such folder or archive", "check the path, or write KIND:LOCATION")
    names = tree.names(path)
    if MANIFEST in names:
        return "arrayrecord"
    if _TFDS in names:
        return "tfds"
    if any(_IDX in name for name in names):
        return "idx"
    if _CIFAR10 in names:
        return "cifar10"
    if _CIFAR100 in names:
        return "cifar100"
    inside = [n for split in names if split.lower() in SPLIT_NAMES and os.path.isdir(os.path.join(path, split))
              for n in os.listdir(os.path.join(path, split))]  # fmt: skip
    if any(name.lower().endswith(tars.SUFFIXES) for name in names + inside):
        return "tar"
    return "folder"


@dataclass(frozen=True)
class Opening:
    """What a kind of source is opened with.

    Attributes:
      spec: for messages.
      location: its path, or name.
      scratch: where compressed archives are expanded to.
      classes: names the user gave.
      table: classes of images the user gave.
      multi_label: label vectors even where every image of the table has one class.
    """

    spec: str
    location: str
    scratch: Path
    classes: Sequence[str] | None
    table: LabelTable | None
    multi_label: bool


def _open(kind: str, given: Opening) -> Catalog:
    if given.table is not None and kind not in ("folder", "tar"):
        raise UsageError(f"--labels with {kind}:", "it is for folders and archives of images")
    if kind in ARCHIVES:
        return ARCHIVES[kind](given)
    if kind == "folder" and given.table is not None:
        listing = FolderListing(os.path.expanduser(given.location))
        return by_table(given.spec, listing, given.table, given.classes, multi=given.multi_label)
    if kind == "folder":
        # Classes without images are looked for here: in the split that gives the classes they are an error.
        return FolderCatalog(given.location, warn_absent=False)
    if kind == "tfds":
        return AnyTfdsCatalog(given.location)
    return sources.KINDS[kind](given.location)


def _open_tar(given: Opening) -> Catalog:
    if given.table is not None:
        listing = tars.list_tars(given.location, given.scratch, named="split")
        return by_table(given.spec, listing, given.table, given.classes, multi=given.multi_label)
    listing = tars.list_tars(given.location, given.scratch, named="class")
    if is_webdataset(listing):
        return _open_webdataset(given)
    return by_class_folder(given.spec, listing)


def _open_webdataset(given: Opening) -> Catalog:
    listing = tars.list_tars(given.location, given.scratch, named="shard")
    return open_webdataset(given.spec, listing, given.classes)


# Kinds that only `prepare` reads.
ARCHIVES: dict[str, Callable[[Opening], Catalog]] = {"tar": _open_tar, "webdataset": _open_webdataset}


def _parse(source: str) -> tuple[str, str, str | None]:
    """(kind, location, split expression or None); a bare path is looked at."""
    kind, colon, rest = source.partition(":")
    if not (colon and kind in (*sources.KINDS, *ARCHIVES)) and source not in sources.KINDS:
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
