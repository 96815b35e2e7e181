"""The right classes of ImageNet's other test sets, as indices of a classifier's logits.

The order of the logits is told by class names: WordNet ids such as n01440764 in any order. The standard one, which
ReaL's and V2's numbers refer to, is that of the ids as strings.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data.source import Source, shorten
from vit_jax.errors import UsageError
from vit_jax.evaluators.label_sets import Targets

_WNID = re.compile(r"n\d{8}")
_VALIDATION = re.compile(r"ILSVRC2012_val_0*(\d+)", re.IGNORECASE)
_NAMES = "give --classes=FILE (imagenet.classes) with one WordNet id a line, in the order of the logits"


def standard_order(classes: Sequence[str] | None, num_classes: int) -> np.ndarray:
    """int [K]: the logit of each class number of the standard order.

    Args:
      classes: K names; None, or names that are no WordNet ids: the logits are in the standard order themselves.
      num_classes: K.

    Raises:
      UsageError: not 1000 classes.
    """
    if num_classes != 1000:
        raise UsageError(f"the classifier has {num_classes} classes", "ReaL and V2 need ImageNet's 1000")
    if classes is None or not all(map(_WNID.fullmatch, classes)):
        return np.arange(num_classes)
    return np.argsort(np.asarray(classes))


def real(source: Source, path: str, order: np.ndarray) -> Targets:
    """ReaL (arXiv 2006.07159): hit if the prediction is in the set; images without a label aren't scored.

    Args:
      source: ILSVRC2012's validation images, whose names carry their number (ILSVRC2012_val_00000293).
      path: real.json, a list of 50,000 lists of class numbers.
      order: see `standard_order`.

    Raises:
      UsageError: no such list, or an image whose name has no number in it.
    """
    labels = _json(path)
    if not isinstance(labels, list) or not all(isinstance(row, list) for row in labels):
        raise UsageError(f"{path} is no list of label lists", "give real.json as published")
    sets = []
    for i in range(len(source)):
        name = os.path.basename(source.name(i))
        match = _VALIDATION.search(name)
        if match is None or not 1 <= int(match[1]) <= len(labels):
            raise UsageError(
                f"{name!r} carries no number of 1 to {len(labels)}",
                "ReaL needs the names of the validation images, such as ILSVRC2012_val_00000293.JPEG",
            )
        sets.append(tuple(order[_numbers(labels[int(match[1]) - 1], len(order), path)].tolist()))
    return Targets(sets)


def numbered(source: Source, order: np.ndarray) -> Targets:
    """ImageNet-V2: the folders are class numbers 0 ... 999, so "10" is the eleventh class.

    Args:
      source: its classes are the folders' names.
      order: see `standard_order`.

    Raises:
      UsageError: a folder that is no such number.
    """
    bad = [name for name in source.classes if not name.isdecimal() or int(name) >= len(order)]
    if bad:
        raise UsageError(
            f"{source.spec}@{source.split}: {shorten(bad)} is no class number",
            f"the folders must be numbers from 0 to {len(order) - 1}",
        )
    table = order[[int(name) for name in source.classes]]
    return Targets([(int(table[label]),) for label in source.labels()])


def subset(source: Source, classes: Sequence[str] | None) -> Targets:
    """ImageNet-A and -R: folders are WordNet ids, and only the logits of those 200 classes are compared.

    Args:
      source: its classes are the folders' names.
      classes: of the classifier, WordNet ids.

    Raises:
      UsageError: names that aren't known, or a folder that isn't among them.
    """
    place = _places(classes)
    unknown = [name for name in source.classes if name not in place]
    if unknown:
        raise UsageError(
            f"{source.spec}@{source.split}: {shorten(unknown)} is no class of the classifier", _NAMES
        )
    table = np.array([place[name] for name in source.classes])
    return Targets([(int(table[label]),) for label in source.labels()], allowed=table)


def mapped(source: Source, path: str, classes: Sequence[str] | None, num_classes: int) -> Targets:
    """ObjectNet: each folder stands for some classes of the classifier, all of whose logits are compared.

    Args:
      source: its classes are the folders' names; images of folders that the file leaves out aren't scored.
      path: JSON, {folder: [class number or class name, ...]}; numbers are logits.

    Raises:
      UsageError: no such file, an unknown class, or no folder of the file among those of the source.
    """
    mapping = _json(path)
    if not isinstance(mapping, Mapping) or not all(isinstance(row, list) for row in mapping.values()):
        raise UsageError(
            f"{path} is no map of folders to lists of classes", 'write {"teapot": [849], "mug": [504, 968]}'
        )
    place = {name: i for i, name in enumerate(classes or ())}
    sets: dict[str, tuple[int, ...]] = {}
    for name, row in mapping.items():
        found = [place.get(item, item) for item in row]
        sets[name] = tuple(_numbers(found, num_classes, path).tolist())
    if not set(sets) & set(source.classes):
        raise UsageError(
            f"{path} names none of the folders of {source.spec}@{source.split}", "make the names agree"
        )
    table = [sets.get(name, ()) for name in source.classes]
    return Targets([table[label] for label in source.labels()])


def _places(classes: Sequence[str] | None) -> dict[str, int]:
    if classes is None or not all(map(_WNID.fullmatch, classes)):
        raise UsageError("the classifier's classes aren't known by WordNet id", _NAMES)
    return {name: i for i, name in enumerate(classes)}


def _numbers(row: Sequence[Any], count: int, path: str) -> np.ndarray:
    for number in row:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise UsageError(
                f"{path} holds {list(row)}, not all of them classes of the classifier ({count})",
                "give numbers from 0, or names that the classifier has",
            )
    return np.asarray(row, np.int64)


def _json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"can't read {path}: {error}", "give a JSON file") from error
