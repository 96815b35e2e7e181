"""Data sets by name: `KIND[:LOCATION][@SPLIT]`, for example `folder:/data/flowers@train[:90%]`.

| kind | location |
|---|---|
| `digits` | none: scikit-learn's handwritten digits |
| `folder` | folder of SPLIT/CLASS/ images |
| `idx` | folder of MNIST-style IDX files |
| `cifar10`, `cifar100` | folder of CIFAR's binary version |
| `arrayrecord` | folder written by `prepare` |
| `tfds` | NAME[/CONFIG][:VERSION], prepared on disk as ArrayRecord |
| `vtab` | TASK[:DIR]: a task of VTAB-1k, of DIR/TASK or prepared as for `tfds` |

SPLIT is an expression as in TFDS (see `splits`); `all` means every split, `train` first. Braces take a random share
of it: `train{10%}` (see `shares`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vit_jax.data.shares import take_share
from vit_jax.data.source import Catalog, Example, Source, SourceView
from vit_jax.data.source_arrayrecord import ArrayRecordCatalog
from vit_jax.data.source_cifar import Cifar10Catalog, Cifar100Catalog
from vit_jax.data.source_digits import DigitsCatalog
from vit_jax.data.source_folder import FolderCatalog
from vit_jax.data.source_idx import IdxCatalog
from vit_jax.data.source_tfds import TfdsCatalog
from vit_jax.data.source_vtab import VtabCatalog
from vit_jax.data.splits import Term, parse_split
from vit_jax.errors import UsageError, known_names

__all__ = ["KINDS", "Catalog", "Example", "Source", "open_catalog", "open_source", "parse_spec"]

KINDS: dict[str, Callable[[str], Catalog]] = {
    "digits": DigitsCatalog,
    "folder": FolderCatalog,
    "idx": IdxCatalog,
    "cifar10": Cifar10Catalog,
    "cifar100": Cifar100Catalog,
    "arrayrecord": ArrayRecordCatalog,
    "tfds": TfdsCatalog,
    "vtab": VtabCatalog,
}
_NO_LOCATION = ("digits",)


def parse_spec(spec: str) -> tuple[str, str, str | None]:
    """`folder:PATH@train[:90%]` as (kind, location, split expression or None).

    An `@` begins a split unless a `/` follows it, so paths may hold one.

    Raises:
      UsageError: unknown kind, or a location missing or too much.
    """
    whole, at, split = spec.rpartition("@")
    if not at or "/" in split:
        whole, split = spec, None
    kind, _, location = whole.partition(":")
    if kind not in KINDS:
        hint = f"write 'folder:{spec}' for a folder of images; " if Path(whole).is_dir() else ""
        raise UsageError(f"data {spec!r}: unknown kind {kind!r}", hint + known_names(kind, KINDS))
    if kind in _NO_LOCATION and location:
        raise UsageError(f"data {spec!r}: {kind} takes no location", f"write {kind!r}")
    if kind not in _NO_LOCATION and not location:
        raise UsageError(f"data {spec!r}: {kind} needs a location", f"write '{kind}:LOCATION'")
    return kind, location, split


def open_catalog(spec: str) -> Catalog:
    """The data set of a spec, whatever its split. UsageError when it isn't there."""
    kind, location, _ = parse_spec(spec)
    return KINDS[kind](location)


def open_source(spec: str, *, default_split: str, classes: Sequence[str] | None = None) -> Source:
    """Opens a data set's split for random access.

    Args:
      spec: `KIND[:LOCATION][@SPLIT]`.
      default_split: the split when the spec names none.
      classes: the run's class map; labels are mapped to it by name. None (for the training split):
        the data set's own classes, those of `train` where the expression holds it.

    Raises:
      UsageError: nothing there, unknown or empty split, or a class which `classes` lacks.
    """
    kind, location, expression = parse_spec(spec)
    catalog = KINDS[kind](location)
    name = f"{kind}:{location}" if location else kind
    if expression is None:
        expression = default_split
        if not catalog.has(default_split) and catalog.splits == ("all",):
            expression = "all"
    return open_split(catalog, name, expression, classes)


def open_split(catalog: Catalog, name: str, expression: str, classes: Sequence[str] | None) -> Source:
    """Opens a split expression of a data set; `name` is what messages call the set. Else as `open_source`."""
    terms = _expand(catalog, parse_split(expression), name)
    whole: dict[str, Source] = {}
    for split in sorted({t.name for t in terms}, key=train_first):
        whole[split] = catalog.open(split, classes)
        classes = whole[split].classes
    ranges = [part for term in terms if (part := _part(whole[term.name], term)) is not None]
    if not ranges:
        sizes = ", ".join(f"{split} has {len(source)}" for split, source in whole.items())
        raise UsageError(f"data {name}: empty split {expression!r}", f"{sizes} examples")
    if len(ranges) == 1 and ranges[0][0] in whole.values() and ranges[0][1:] == (0, len(ranges[0][0])):
        return ranges[0][0]
    return SourceView(name, expression, ranges)


def _part(source: Source, term: Term) -> tuple[Source, int, int] | None:
    """What a term takes of its split, as a range of a source; None: nothing."""
    start, stop = term.range(len(source))
    if start == stop:
        return None
    if term.share is None:
        return source, start, stop
    if (start, stop) != (0, len(source)):
        source = SourceView(source.spec, term.name, [(source, start, stop)])
    share = take_share(source, term.share)
    return None if share is None else (share, 0, len(share))


def train_first(split: str) -> tuple[bool, str]:
    """Sorts names of splits: `train` gives the class map, so it is opened first."""
    return split != "train", split


def _expand(catalog: Catalog, terms: Sequence[Term], name: str) -> list[Term]:
    """Checks the terms' splits, and writes `all` as the splits it stands for."""
    out: list[Term] = []
    for term in terms:
        if catalog.has(term.name):
            out.append(term)
        elif term.name == "all":
            out += [replace(term, name=s) for s in sorted(catalog.splits, key=train_first)]
        else:
            raise UsageError(f"data {name}: no split {term.name!r}", catalog.remedy())
    return out
