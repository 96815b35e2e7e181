"""Small synthetic copies of the 16 data sets behind the 19 tasks, prepared by tensorflow-datasets itself.

Names, versions and features are those of the installed builders; only the pictures and the numbers of examples are
made up. A picture's brightness and tint tell its labels, so that a small model has something to learn.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from vit_jax.data.vtab_tasks import TASKS, Task

SIZE = {"train": 48, "validation": 10, "test": 12}


def _name(split: str) -> str:
    return re.match(r"\w+", split).group()


def small(task: Task) -> Task:
    """The same task on the small copy: 16 + 4 to train on, and the same kinds of splits."""
    t = "train[:16]"
    v = {"train": "train[32:36]", "validation": "validation[:4]", "test": "test[:4]"}[_name(task.v)]
    e = task.e if "%" in task.e or "[" not in task.e else "train[40:]"
    count = {"test": SIZE["test"], "validation": SIZE["validation"], "test[50%:]": 6, "train[40:]": 8}[e]
    return dataclasses.replace(task, t=t, v=v, e=e, test_count=count,
                               sizes={split: SIZE[split] for split in task.sizes})  # fmt: skip


SMALL = {name: small(task) for name, task in TASKS.items()}


def prepare(folder: Path) -> None:
    """Prepares all of them below `folder` as ArrayRecord."""
    for tfds_name in dict.fromkeys(task.builder for task in TASKS.values()):
        tasks = [task for task in SMALL.values() if task.builder == tfds_name]
        splits = dict.fromkeys(split for task in tasks for split in task.sizes)
        _builder(tfds_name, tasks[0].version, tuple(splits), folder).download_and_prepare()


def _builder(tfds_name: str, version: str, splits: tuple[str, ...], folder: Path) -> Any:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import registered
    from tensorflow_datasets.core.utils import gcs_utils

    gcs_utils.gcs_dataset_info_files = lambda *_: []  # no network
    name, _, config = tfds_name.partition("/")
    real = tfds.builder_cls(name)
    with registered.skip_registration():

        class Small(real):
            def _split_generators(self, *_: Any) -> dict[str, Iterator]:
                return {
                    split: self._generate_examples(i, SIZE[split]) for i, split in enumerate(sorted(splits))
                }

            def _generate_examples(self, part: int, count: int) -> Iterator:
                rng = np.random.default_rng(part)
                for i in range(count):
                    yield i, _record(self.info.features, rng, i)

    Small.name = name
    options = {"config": config} if config else {}
    return Small(data_dir=folder, version=version, file_format="array_record", **options)


def _record(features: Any, rng: np.random.Generator, i: int) -> dict[str, Any]:
    """A record of these features; example i has the label i modulo the number of classes."""
    record = {key: _value(feature, rng, i) for key, feature in features.items()}
    if "objects" in record:
        record["objects"] = _objects(features["objects"].feature, rng, i)
        shade = _shade(i % 8, 8)
    else:
        keys = [key for key in record if key in ("label", "label_orientation", "label_azimuth")]
        shade = _shade(int(record[keys[0]]), features[keys[0]].num_classes)
    for key, feature in features.items():
        if type(feature).__name__ == "Image":
            record[key] = _picture(feature.shape, shade, rng, binary="label_orientation" in record)
    return record


def _value(feature: Any, rng: np.random.Generator, i: int) -> Any:
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.ClassLabel):
        return i % feature.num_classes
    if isinstance(feature, tfds.features.Text):
        return f"{i:05d}.png"
    if isinstance(feature, tfds.features.BBoxFeature):
        return tfds.features.BBox(0.1, 0.1, 0.5, 0.5)
    if isinstance(feature, tfds.features.Sequence):
        return []
    if isinstance(feature, tfds.features.Image):
        return None
    return rng.random(feature.shape).astype(feature.np_dtype) if feature.shape else feature.np_dtype(i)


def _objects(feature: Any, rng: np.random.Generator, i: int) -> list[dict[str, Any]]:
    """CLEVR: 3 to 10 objects, the nearest at 8.25 + (i mod 4) / 2. KITTI: vehicles unless i mod 4 is 3."""
    kitti = "location" in feature.keys()  # noqa: SIM118  a feature is no mapping
    count = 2 + i % 2 if kitti else 3 + i % 8
    out = []
    for k in range(count):
        one = {key: _value(part, rng, k) for key, part in feature.items()}
        if kitti:
            nearest = (5.0, 15.0, 40.0, 3.0)[i % 4]
            one["location"] = np.array([0, 0, nearest + k], np.float32)
            one["type"] = 3 + k if i % 4 == 3 else k
        else:
            one["pixel_coords"] = np.array([0, 0, 8.25 + (i % 4) / 2 + k], np.float32)
        out.append(one)
    return out


def _shade(label: int, num_classes: int) -> tuple[int, int]:
    return 20 + label * 215 // max(num_classes - 1, 1), 255 * (label % 2)


def _picture(shape: tuple, shade: tuple[int, int], rng: np.random.Generator, *, binary: bool) -> bytes:
    """A PNG; tensorflow-datasets would need TensorFlow to encode an array."""
    image = _pixels(shape, shade, rng, binary=binary)
    return cv2.imencode(".png", image[..., ::-1] if shape[2] == 3 else image)[1].tobytes()


def _pixels(shape: tuple, shade: tuple[int, int], rng: np.random.Generator, *, binary: bool) -> np.ndarray:
    height, width = (size or 12 for size in shape[:2])
    if binary:
        image = np.zeros((height, width, 1), np.uint8)
        image[: 1 + shade[0] * height // 256] = 1
        return image
    image = np.full((height, width, shape[2]), shade[0], np.uint8)
    image[..., -1] = shade[1] if shape[2] == 3 else shade[0]
    return cv2.add(image, rng.integers(0, 5, image.shape, dtype=np.uint8)).reshape(image.shape)
