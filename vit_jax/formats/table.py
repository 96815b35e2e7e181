"""A format as a table: one row for each kind of array, its name here, its name there, and how the two differ.

The same table reads and writes. `{i}` stands for a block, `{s}` and `{u}` for a ResNet's stage and unit.
A row may be one part of a foreign array: parts with the same foreign name are stacked along its first axis.
"""

import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.formats.weights import Arrays


class Change(NamedTuple):
    """How an array there becomes one here of a known shape, and back."""

    read: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
    write: Callable[[np.ndarray], np.ndarray]


def _exact(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.shape != shape:
        raise ValueError
    return array


def _reshaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.size != math.prod(shape):
        raise ValueError
    return array.reshape(shape)


def _linear(input_axes: int) -> Change:
    """(out, in) as PyTorch stores it <-> [*inputs, *outputs]; heads may be axes of their own here."""

    def read(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        inputs, outputs = math.prod(shape[:input_axes]), math.prod(shape[input_axes:])
        return _exact(array, (outputs, inputs)).T.reshape(shape)

    def write(array: np.ndarray) -> np.ndarray:
        return array.reshape(math.prod(array.shape[:input_axes]), -1).T

    return Change(read, write)


SAME = Change(_exact, lambda array: array)
# Older files keep GroupNorm parameters as (1, 1, 1, C).
SQUEEZE = Change(
    lambda array, shape: _exact(array.reshape(-1) if array.shape[:-1] == (1, 1, 1) else array, shape),
    lambda array: array,
)
FLAT = Change(_reshaped, lambda array: array.reshape(-1))  # a bias with or without an axis of heads
LINEAR = _linear(1)
LINEAR_OF_HEADS = _linear(2)
CONV = Change(  # OIHW <-> HWIO
    lambda array, shape: _exact(array.transpose(2, 3, 1, 0) if array.ndim == 4 else array, shape),
    lambda array: array.transpose(3, 2, 0, 1),
)
POINTWISE = Change(  # a dense layer that is stored as a 1x1 convolution
    lambda array, shape: _exact(
        array.reshape(array.shape[2:]) if array.shape[:2] == (1, 1) else array, shape
    ),
    lambda array: array[None, None],
)


class Row(NamedTuple):
    """One line of a table."""

    ours: str
    theirs: str
    change: Change = SAME
    part: int = 0  # this row's place in an array that is shared by `parts` rows
    parts: int = 1


def pair(ours: str, theirs: str, leaves: Iterable[tuple[str, str, Change]]) -> list[Row]:
    """Rows `ours/leaf` <-> `theirs` + leaf for each (leaf here, leaf there with its separator, change)."""
    return [Row(f"{ours}/{here}", theirs + there, change) for here, there, change in leaves]


def read(
    arrays: Arrays,
    shapes: dict[str, tuple[int, ...]],
    rows: Iterable[Row],
    *,
    origin: str,
    ignored: re.Pattern | None = None,
) -> Arrays:
    """Foreign arrays -> ours, name by name.

    Args:
      arrays: of the file.
      shapes: every parameter of the model, by path.
      ignored: foreign names that a reader leaves aside.

    Raises:
      UsageError: names that one side lacks or shapes that differ, as a short table.
    """
    index = {ours: row for ours, row in expand(rows, shapes)}
    problems, found, used = [], {}, set()
    for ours, shape in shapes.items():
        if ours not in index:
            problems.append(f"{ours} {list(shape)}: this format has no place for it")
            continue
        row = index[ours]
        used.add(row.theirs)
        if row.theirs not in arrays:
            problems.append(f"{row.theirs}: missing; becomes {ours} {list(shape)}")
            continue
        whole = arrays[row.theirs]
        try:
            found[ours] = row.change.read(_part(whole, row), shape)
        except ValueError:
            problems.append(f"{row.theirs} {list(whole.shape)}: doesn't fit {ours} {list(shape)}")
    for name in arrays.keys() - used:
        if ignored is None or not ignored.fullmatch(name):
            problems.append(f"{name} {list(arrays[name].shape)}: not in the model")
    if problems:
        raise mismatch(origin, problems)
    return found


def write(params: Arrays, rows: Iterable[Row]) -> Arrays:
    """Our arrays -> foreign ones.

    Raises:
      UsageError: a parameter that the table has no row for.
    """
    index = dict(expand(rows, params))
    lost = sorted(params.keys() - index.keys())
    if lost:
        raise UsageError(f"this format has no place for {', '.join(lost[:4])}", "choose another --to")
    pieces: dict[str, dict[int, np.ndarray]] = {}
    for ours, array in params.items():
        row = index[ours]
        pieces.setdefault(row.theirs, {})[row.part] = row.change.write(np.asarray(array))
    return {
        name: parts[0] if len(parts) == 1 else np.concatenate([parts[k] for k in sorted(parts)])
        for name, parts in pieces.items()
    }


def expand(rows: Iterable[Row], names: Iterable[str]) -> Iterable[tuple[str, Row]]:
    """(our full name, row with the full foreign name) for every name that a row matches."""
    compiled = [(_pattern(row.ours), row) for row in rows]
    for name in names:
        for pattern, row in compiled:
            if match := pattern.fullmatch(name):
                numbers = {key: int(value) for key, value in match.groupdict().items()}
                yield name, row._replace(theirs=row.theirs.format(**numbers))
                break


def mismatch(origin: str, problems: list[str]) -> UsageError:
    """The refusal that shows how a file and a model differ."""
    shown = sorted(problems)
    rows = shown[:12] + ([f"and {len(shown) - 12} more"] if len(shown) > 12 else [])
    return UsageError(
        f"{origin} doesn't hold this model: {len(problems)} arrays differ",
        "give the model that the file was made with, or other weights",
        details="\n".join(f"  {row}" for row in rows),
    )


def _pattern(template: str) -> re.Pattern:
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(template)))


def _part(array: np.ndarray, row: Row) -> np.ndarray:
    if row.parts == 1:
        return array
    if array.ndim == 0 or array.shape[0] % row.parts:
        raise ValueError
    size = array.shape[0] // row.parts
    return array[row.part * size : (row.part + 1) * size]
