"""`tfds:NAME[/CONFIG][:VERSION]`: data sets prepared by tensorflow-datasets as ArrayRecord.

Reads what lies in the data folder ($TFDS_DATA_DIR, else ~/tensorflow_datasets) and nothing else: names
are looked up on disk alone, so nothing is downloaded and no registry is asked. Needs no TensorFlow.

The image is the feature of type Image, the label the one of type ClassLabel (or Sequence of it, for
multi-label sets); where there are several, the set's supervised pair, then `image` and `label`, decide. A
`Reading` says it instead, for labels that have to be made of several features.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.data.source import Catalog, ClassMap, Example, Source
from vit_jax.errors import UsageError, known_names

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_INFO = "dataset_info.json"
_DEFAULT_DIR = os.path.join("~", "tensorflow_datasets")


class OtherFormat(UsageError):
    """A data set that is prepared, but not as ArrayRecord."""


@dataclass(frozen=True)
class Reading:
    """How a record becomes an example. Picklable.

    Attributes:
      image: key of the encoded image.
      label: record -> index, or indices, in `classes`.
      classes: names.
    """

    image: str
    label: Callable[[Mapping[str, Any]], Any]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class _Value:
    """A feature of a record as it is."""

    key: str

    def __call__(self, record: Mapping[str, Any]) -> Any:
        return record[self.key]


class TfdsCatalog(Catalog):
    """The splits of one prepared data set.

    counts: examples by split.
    formats: of files that can be read.
    """

    formats: tuple[str, ...] = ("array_record",)

    def __init__(self, location: str, reading: Reading | None = None) -> None:
        """Opens it; `reading` in place of what its features say. UsageError if it isn't prepared."""
        import tensorflow_datasets as tfds  # slow to import

        self.spec = f"tfds:{location}"
        folder = _find(location)
        self._builder = tfds.builder_from_directory(folder)
        info = self._builder.info
        if info.file_format.value not in self.formats:
            raise OtherFormat(
                f"{self.spec} in {folder} is stored as {info.file_format.value}, not as array_record",
                f"convert it with: python -m vit_jax.prepare {self.spec} DESTINATION",
            )
        self.counts = {name: split.num_examples for name, split in info.splits.items() if split.num_examples}
        self.splits = tuple(self.counts)
        self._reading = self._guess() if reading is None else reading
        # Images that aren't asked for needn't be decoded either.
        images = [key for key, feature in info.features.items() if isinstance(feature, tfds.features.Image)]
        self._decoders = {key: tfds.decode.SkipDecoding() for key in images}

    def class_names(self, key: str) -> tuple[str, ...]:
        """Of a feature of type ClassLabel. UsageError if there is none of that name."""
        names = getattr(dict(self._builder.info.features).get(key), "names", None)
        if names is None:
            raise UsageError(
                f"{self.spec} has no class feature {key!r}",
                f"its features: {', '.join(self._builder.info.features)}",
            )
        return tuple(names)

    def _guess(self) -> Reading:
        import tensorflow_datasets as tfds

        image, _ = self._feature(lambda f: isinstance(f, tfds.features.Image), "image", 0)
        key, label = self._feature(
            lambda f: isinstance(getattr(f, "feature", f), tfds.features.ClassLabel), "label", 1
        )
        return Reading(image, _Value(key), tuple(getattr(label, "feature", label).names))

    def _feature(self, fits: Callable[[Any], bool], usual: str, place: int) -> tuple[str, Any]:
        """Key and feature of the image (place 0) or label (place 1)."""
        features = dict(self._builder.info.features)
        keys = [key for key, feature in features.items() if fits(feature)]
        pair = self._builder.info.supervised_keys or ()
        preferred = [key for key in (*pair[place : place + 1], usual) if key in keys]
        if not preferred and len(keys) != 1:
            raise UsageError(
                f"{self.spec} has {len(keys)} features that could be the {usual}",
                f"its features: {', '.join(features)}; convert it to an arrayrecord folder with one",
            )
        key = (preferred or keys)[0]
        return key, features[key]

    def open(self, split: str, classes: Sequence[str] | None) -> Source:
        records = self._records(split)
        class_map = ClassMap(self._reading.classes, classes, f"{self.spec}@{split}")
        return TfdsSource(self.spec, split, records, self._reading, class_map)

    def _records(self, split: str) -> Sequence[Mapping[str, Any]]:
        """The records of a split, their images still encoded."""
        return self._builder.as_data_source(split=split, decoders=self._decoders)


class TfdsSource(Source):
    """A split; images stay encoded. Only offsets stay in memory."""

    def __init__(
        self, spec: str, split: str, records: Sequence[dict], reading: Reading, class_map: ClassMap
    ) -> None:
        self.spec, self.split, self.classes = spec, split, class_map.classes
        self._records, self._reading, self._map = records, reading, class_map

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        record = self._records[index]
        own = self._reading.label(record)
        label = self._map.label(int(own)) if np.ndim(own) == 0 else self._map.multi_hot(own)
        # The file it was made from, such as ILSVRC2012_val_00000293.JPEG, where the data set keeps it.
        own_name = record.get("file_name", b"").decode(errors="replace") or index
        return Example(record[self._reading.image], label, f"{self.spec}/{self.split}/{own_name}")

    def memory_bytes(self) -> int:
        # The readers keep an offset for every record.
        return 8 * len(self)


def data_dir() -> str:
    """Where tensorflow-datasets keeps prepared data."""
    return os.path.expanduser(os.environ.get("TFDS_DATA_DIR", _DEFAULT_DIR))


def _find(location: str) -> str:
    """Folder of the wanted (default: newest) version of a data set. UsageError if it isn't on disk."""
    name, _, version = location.partition(":")
    root = data_dir()
    folder = os.path.join(root, *name.split("/"))
    if os.path.isfile(os.path.join(location, _INFO)):  # the folder itself
        return location
    remedy = (
        f"set TFDS_DATA_DIR, or with pip install 'vit_jax[tfds]': "
        f"tfds build {location} --file_format=array_record --data_dir={root}"
    )
    if not os.path.isdir(folder):
        raise UsageError(f"tfds:{location} isn't prepared: no folder {folder}", remedy)
    versions = _versions(folder)
    if not versions:
        configs = [n for n in sorted(os.listdir(folder)) if _versions(os.path.join(folder, n))]
        if len(configs) == 1:
            folder = os.path.join(folder, configs[0])
            versions = _versions(folder)
        elif configs:
            raise UsageError(f"tfds:{location} has several configs", f"name one: {', '.join(configs)}")
        else:
            raise UsageError(f"tfds:{location} isn't prepared: no version in {folder}", remedy)
    if version and version not in versions:
        raise UsageError(f"tfds:{location}: version {version} isn't prepared", known_names(version, versions))
    return os.path.join(folder, version or versions[-1])


def _versions(folder: str) -> list[str]:
    """Versions prepared in a folder, oldest first."""
    if not os.path.isdir(folder):
        return []
    found = [v for v in os.listdir(folder) if _VERSION.fullmatch(v)]
    found = [v for v in found if os.path.isfile(os.path.join(folder, v, _INFO))]
    return sorted(found, key=lambda v: [int(n) for n in v.split(".")])
