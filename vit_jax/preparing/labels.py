"""Classes of images that aren't sorted into folders: a table of paths, in CSV or JSON.

    path,classes            {"a/1.jpg": "cat",                 path,cat,dog
    a/1.jpg,cat              "a/2.jpg": ["cat", "dog"],        a/1.jpg,1,0
    a/2.jpg,cat;dog          "a/3.jpg": []}                    a/3.jpg,0,0

Paths are relative to the source. A list, a `;` or a table of 0 and 1 makes the set multi-label: training then gets
a vector float32 [classes] for every image.
"""

import csv
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vit_jax.errors import UsageError
from vit_jax.preparing.listing import Labels, ListedCatalog, Listing, is_image, split_of

_log = logging.getLogger("vit_jax.prepare")

Value = int | str
_FORM = "a line is PATH,CLASS or PATH,CLASS;CLASS, or 0 and 1 under a header of class names"


@dataclass(frozen=True)
class LabelTable:
    """What a file of labels says.

    Attributes:
      path: of the file.
      rows: path of an image -> its classes.
      multi: whether an image may have none or several.
      classes: names in order, where the file has a header of them.
      digest: of the file.
    """

    path: str
    rows: dict[bytes, list[Value]]
    multi: bool
    classes: tuple[str, ...] | None
    digest: str


def read_labels(path: str) -> LabelTable:
    """Reads a file of labels.

    Raises:
      UsageError: it can't be read, or has another form.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
        text = data.decode("utf-8-sig", errors="surrogateescape")
    except OSError as e:
        raise UsageError(f"--labels={path} can't be read: {e.strerror}", "give a CSV or JSON file") from e
    digest = hashlib.sha256(data).hexdigest()
    rows, multi, classes = _json(path, text) if path.lower().endswith(".json") else _csv(path, text)
    if not rows:
        raise UsageError(f"--labels={path} names no image", _FORM)
    if not multi and any(len(row) != 1 for row in rows.values()):
        name = next(name for name, row in rows.items() if len(row) != 1)
        raise UsageError(f"{path} has no class for {os.fsdecode(name)}", _FORM)
    return LabelTable(path, rows, multi, classes, digest)


def _json(path: str, text: str) -> tuple[dict[bytes, list[Value]], bool, None]:
    try:
        table = json.loads(text)
    except ValueError as e:
        raise UsageError(
            f"{path} isn't JSON: {e}", "give an object of path: class, or path: [classes]"
        ) from e
    if not isinstance(table, dict):
        raise UsageError(f"{path} holds no object", 'give {"PATH": "CLASS"} or {"PATH": ["CLASS", "CLASS"]}')
    rows: dict[bytes, list[Value]] = {}
    for name, value in table.items():
        row = value if isinstance(value, list) else [value]
        if not all(isinstance(v, int | str) and not isinstance(v, bool) and v != "" for v in row):
            raise UsageError(f"{path}: {name} has the classes {value!r}", "give class names or numbers")
        rows[_normal(name)] = row
    return rows, any(isinstance(value, list) for value in table.values()), None


def _csv(path: str, text: str) -> tuple[dict[bytes, list[Value]], bool, tuple[str, ...] | None]:
    lines = [(i, line) for i, line in enumerate(csv.reader(text.splitlines()), 1) if any(line)]
    header = lines[0][1] if lines else []
    if header and not is_image(os.fsencode(header[0])):
        lines = lines[1:]
    width = len(header)
    if width > 2:
        return _matrix(path, lines, header)
    rows: dict[bytes, list[Value]] = {}
    multi = False
    for number, line in lines:
        if len(line) != 2:
            raise UsageError(f"{path} line {number} has {len(line)} columns", _FORM)
        row = [word.strip() for word in line[1].split(";") if word.strip()]
        multi |= ";" in line[1] or not row
        _add(path, number, rows, line[0], row)
    return rows, multi, None


def _matrix(
    path: str, lines: list[tuple[int, list[str]]], header: list[str]
) -> tuple[dict[bytes, list[Value]], bool, tuple[str, ...]]:
    """A column of 0 and 1 for every class."""
    classes = tuple(name.strip() for name in header[1:])
    rows: dict[bytes, list[Value]] = {}
    for number, line in lines:
        if len(line) != len(header) or not set(map(str.strip, line[1:])) <= {"0", "1"}:
            raise UsageError(f"{path} line {number} isn't a path and {len(classes)} times 0 or 1", _FORM)
        row: list[Value] = [name for name, flag in zip(classes, line[1:], strict=True) if flag.strip() == "1"]
        _add(path, number, rows, line[0], row)
    return rows, True, classes


def _add(path: str, number: int, rows: dict[bytes, list[Value]], name: str, row: list[Value]) -> None:
    key = _normal(name)
    if key in rows:
        raise UsageError(f"{path} line {number}: {name} is there twice", "one line for every image")
    rows[key] = row


def _normal(name: str) -> bytes:
    return os.path.normpath(os.fsencode(name.strip()))


def numbered_or_named(
    values: Iterable[Value], numbered: Sequence[str] | None, where: str
) -> tuple[tuple[str, ...], dict[Value, int]]:
    """Class names in label order, and the label of each value.

    Values that are all numbers are labels themselves: of the names the user gave, else of "0" to the largest one.
    Other values are names, sorted.

    Raises:
      UsageError: a number beyond the names.
    """
    values = set(values)
    names = {str(value) for value in values}
    known = set(numbered or ())
    if names and all(name.isdecimal() for name in names) and not (known and names <= known):
        largest = max(map(int, names))
        if numbered is not None and largest >= len(numbered):
            raise UsageError(
                f"{where} has the class number {largest}, --classes names {len(numbered)}",
                "numbers begin with 0",
            )
        classes = tuple(numbered) if numbered is not None else tuple(map(str, range(largest + 1)))
        return classes, {value: int(value) for value in values}
    ordered = tuple(sorted(names))
    place = {name: i for i, name in enumerate(ordered)}
    return ordered, {value: place[str(value)] for value in values}


def by_table(
    spec: str, listing: Listing, table: LabelTable, numbered: Sequence[str] | None, *, multi: bool
) -> ListedCatalog:
    """The images of a listing that a table names, in the order of their names.

    Args:
      spec: for messages.
      listing: all files.
      table: their classes, by their name in the listing, with or without the split before it.
      numbered: class names by number, where the user gave them.
      multi: label vectors even where every image has one class.

    Raises:
      UsageError: the table names files that aren't there.
    """
    multi |= table.multi
    if table.classes is not None:
        classes = table.classes
        place = {name: i for i, name in enumerate(classes)}
        if len(place) < len(classes):
            raise UsageError(f"{table.path} names a class twice in its header", "make class names unique")
    else:
        values = {value for row in table.rows.values() for value in row}
        classes, place = numbered_or_named(values, numbered, table.path)
    named, missing, unlisted = {}, dict.fromkeys(table.rows), 0
    for i in sorted(range(len(listing.names)), key=listing.names.__getitem__):
        name = listing.names[i]
        if not is_image(name):
            continue
        split = split_of(name)
        key = name if name in table.rows else name[len(split) + 1 :] if split else name
        if key not in table.rows:
            unlisted += 1
            continue
        missing.pop(key, None)
        row = sorted({place[value] for value in table.rows[key]})
        items, labels = named.setdefault(os.fsdecode(split) if split else "all", ([], []))
        items.append(i)
        labels.append(row if multi else row[0])
    if missing:
        lost = [os.fsdecode(name) for name in missing]
        raise UsageError(
            f"{table.path} names {len(lost)} images that {spec} hasn't, such as {lost[0]}",
            "paths are relative to the source",
        )
    if unlisted:
        _log.warning("%d images of %s aren't in %s: left out", unlisted, spec, table.path)
    splits = {split: (items, Labels(labels, multi=multi)) for split, (items, labels) in sorted(named.items())}
    return ListedCatalog(spec, listing, splits, classes)
