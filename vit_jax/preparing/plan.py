"""What is written where: a pure function of the source and the options, so that a restart goes on where it was.

Shard k of a split holds the examples k n / S to (k + 1) n / S of its order, so every shard can be made by itself.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.data.source import Source
from vit_jax.errors import UsageError
from vit_jax.preparing.images import Images
from vit_jax.preparing.inputs import Input

# A shard is the unit of a restart and of a thread. Large sets get larger shards instead of more.
_EXAMPLES_PER_SHARD = 1000
_MAX_SHARDS = 1024


@dataclass(frozen=True)
class SplitPlan:
    """One split.

    Attributes:
      name: of the split that is written.
      source: its examples.
      order: places in `source`, int64 [n], in the order of writing; None: as they are.
      num_shards: of shards.
    """

    name: str
    source: Source
    order: np.ndarray | None
    num_shards: int

    def places(self, shard: int) -> Sequence[int]:
        """Places in the source of the examples of a shard."""
        count = len(self.source)
        start, stop = (i * count // self.num_shards for i in (shard, shard + 1))
        return range(start, stop) if self.order is None else self.order[start:stop].tolist()


@dataclass(frozen=True)
class Plan:
    """The whole work.

    Attributes:
      splits: in the order of writing.
      classes: names in label order.
      images: what happens to each image.
      prefixes: cut from the names of examples, so that these don't tell where the source lay.
      made_from: what the result hangs on, for the manifest; another one is another data set.
    """

    splits: tuple[SplitPlan, ...]
    classes: tuple[str, ...]
    images: Images
    prefixes: tuple[str, ...]
    made_from: dict[str, Any]

    def own_name(self, name: str) -> str:
        """The name of an example relative to its source."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                return name[len(prefix) :]
        return name

    @property
    def num_examples(self) -> int:
        """In all splits."""
        return sum(len(split.source) for split in self.splits)


def make_plan(given: Input, images: Images, *, shards: int | None, shuffle: int | None) -> Plan:
    """Decides.

    Args:
      given: the opened source.
      images: what happens to each image.
      shards: of every split; None: one for every thousand examples, 1024 at most.
      shuffle: seed of a permutation of every split; None: the order of the source.
    """
    splits, facts = [], {}
    for name, (expression, source) in given.splits.items():
        count = len(source)
        order = None if shuffle is None else np.random.default_rng(shuffle).permutation(count)
        number = min(shards or min(-(-count // _EXAMPLES_PER_SHARD), _MAX_SHARDS), count)
        splits.append(SplitPlan(name, source, order, number))
        facts[name] = {
            "expression": expression, "examples": count, "shards": number,
            "digest": _digest(source, order, given.listed),
        }  # fmt: skip
    made_from = {
        "source": given.spec,
        "splits": facts,
        "options": images.facts()
        | {"shuffle": shuffle, "classes": _classes_digest(given.classes)}
        | given.facts,
    }
    return Plan(tuple(splits), given.classes, images, given.prefixes, made_from)


def differences(made_from: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """`options.shuffle: 1 there, None here` for all that differs."""
    there, here = _flat(made_from), _flat(wanted)
    return [
        f"{key}: {there.get(key)!r} there, {here.get(key)!r} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key)
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _digest(source: Source, order: np.ndarray | None, listed: bool) -> str:
    """Of what is known of a split without reading its images: count, names where they are listed, and the order."""
    digest = hashlib.sha256(str(len(source)).encode())
    if listed:
        for place in range(len(source)) if order is None else order.tolist():
            digest.update(os.fsencode(source.name(place)) + b"\0")
    elif order is not None:
        digest.update(order.astype("<i8").tobytes())
    return digest.hexdigest()


def _classes_digest(classes: Sequence[str]) -> str:
    text = "".join(f"{name}\n" for name in classes)
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def check_options(*, shards: int | None, images: Images, shuffle: int | None) -> None:
    """Raises UsageError for a number out of range."""
    if shards is not None and shards < 1:
        raise UsageError(f"--shards={shards}", "give at least 1")
    if shuffle is not None and shuffle < 0:
        raise UsageError(f"--shuffle={shuffle}", "a seed is at least 0")
    if images.short_side < 0:
        raise UsageError(f"--resize-short-side={images.short_side}", "give pixels, at least 1")
    if not 1 <= images.jpeg_quality <= 100:
        raise UsageError(f"--jpeg-quality={images.jpeg_quality}", "give 1 to 100")
    fields = [f.name for f in dataclasses.fields(Images) if f.name in ("jpeg_quality", "exif")]
    changed = [name for name in fields if getattr(images, name) != getattr(Images(), name)]
    if changed and not images.short_side:
        flag = changed[0].replace("_", "-")
        raise UsageError(f"--{flag} without --resize-short-side", "only resized images are encoded anew")
