"""`vtab:TASK` and `vtab:TASK:DIR`: the tasks of VTAB-1k (see `vtab_tasks`), labelled as VTAB does.

| where | splits |
|---|---|
| tensorflow-datasets' folder, prepared as ArrayRecord | those of the data set; the task's `t`, `v`, `e` cut them |
| DIR/TASK/{train,val,test}/CLASS/* | `train` is the 800, `val` the 200, `test` all that is tested |
| DIR/TASK/manifest.json (ArrayRecord) | the same three |

DIR counts where it has a folder TASK. There, images are in the order of their paths, the class of an image is its
folder (for tasks with a label rule: what the rule has said), and classes may be absent from any of the three
splits: their names come from all of them. Everywhere the number of classes is the task's.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from vit_jax.data import tree
from vit_jax.data.arrayrecord import MANIFEST
from vit_jax.data.decode import BadImage, decode_image
from vit_jax.data.source import Catalog, ClassMap, Example, Source, shorten
from vit_jax.data.source_arrayrecord import ArrayRecordCatalog
from vit_jax.data.source_folder import FolderCatalog
from vit_jax.data.source_tfds import Reading, TfdsCatalog
from vit_jax.data.vtab_labels import Feature, Modulo
from vit_jax.data.vtab_tasks import TASKS, TRAIN, VAL, Task
from vit_jax.errors import UsageError, known_names

KIND = "vtab"
FOLDER_SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Splits:
    """Split expressions of a task where its data lies.

    Attributes:
      t, v, tv, e: training, validation, both, test.
      expected: examples that each split of the source must have.
    """

    t: str
    v: str
    e: str
    expected: dict[str, int]

    @property
    def tv(self) -> str:
        return f"{self.t}+{self.v}"


class VtabCatalog(Catalog):
    """The splits of one task.

    task: whose data it is.
    own_splits: its training, validation and test examples as expressions of `splits`.
    place: where it was found, for messages.
    is_own: whether that is DIR/TASK; absent: how many of the task's classes have no name there.
    """

    def __init__(self, location: str) -> None:
        """Opens `TASK` or `TASK:DIR`. UsageError if it isn't there, or can't be VTAB's data."""
        name, _, folder = location.partition(":")
        if name not in TASKS:
            raise UsageError(f"{KIND}:{location}: unknown task {name!r}", known_names(name, TASKS))
        self.task: Task = TASKS[name]
        self.spec = f"{KIND}:{location}"
        root = own_folder(self.task, folder)
        if root is None:
            self._inner: Catalog = _tfds(self.task)
            self.is_own, self.absent = False, 0
            self._found, self._names = None, None
            self.place = f"tfds:{self.task.tfds}"
            self.own_splits = Splits(self.task.t, self.task.v, self.task.e, dict(self.task.sizes))
        else:
            self.place = root
            expected = {"train": TRAIN, "val": VAL, "test": self.task.test_count}
            self.own_splits = Splits(*FOLDER_SPLITS, expected)
            self._inner, self._found = _own(self.task, root)
            known = len(self._found)
            self.is_own, self.absent = True, self.task.num_classes - known
            made_up = (f"(absent class {i})" for i in range(known, self.task.num_classes))
            self._names = (*self._found, *made_up)
        self.splits = self._inner.splits

    def counts(self) -> dict[str, int]:
        """Examples of every split that the task uses."""
        if isinstance(self._inner, TfdsCatalog):
            return {split: self._inner.counts.get(split, 0) for split in self.own_splits.expected}
        return {split: len(self.open(split, None)) for split in self.own_splits.expected}

    def open(self, split: str, classes: Sequence[str] | None) -> Source:
        inner = self._inner.open(split, self._found)
        names = self._names or inner.classes
        if len(names) != self.task.num_classes:
            raise UsageError(
                f"{self.place} has {len(names)} classes, {self.task.title} has {self.task.num_classes}",
                "prepare the data set that the task names",
            )
        class_map = ClassMap(names, classes, f"{self.spec}@{split}")
        return VtabSource(self.spec, inner, class_map, times_255=self.task.times_255 and not self.is_own)


class VtabSource(Source):
    """A split; labels are the task's."""

    def __init__(self, spec: str, inner: Source, class_map: ClassMap, *, times_255: bool) -> None:
        self.spec, self.split, self.classes = spec, inner.split, class_map.classes
        self._inner, self._map, self._times_255 = inner, class_map, times_255

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Example:
        try:
            example = self._inner[index]
        except UsageError as error:  # a label that isn't the task's
            raise UsageError(
                f"{self.spec}@{self.split}, example {index}: {error.what}", error.remedy
            ) from error
        image = _bright(example.image, example.name) if self._times_255 else example.image
        return Example(image, self._map.label(int(example.label)), example.name)

    def name(self, index: int) -> str:
        return self._inner.name(index)

    def memory_bytes(self) -> int:
        return self._inner.memory_bytes()

    def labels(self) -> np.ndarray:
        return self._map.table[self._inner.labels()]


def own_folder(task: Task, folder: str) -> str | None:
    """DIR/TASK if there is one; None: the data is tensorflow-datasets'.

    Raises:
      UsageError: DIR is given and doesn't exist.
    """
    if not folder:
        return None
    root = os.path.expanduser(folder)
    if not tree.is_folder(root):
        raise UsageError(f"no folder {folder}", "give --data-dir=DIR with DIR/TASK/{train,val,test}/CLASS")
    own = os.path.join(root, task.name)
    return own if tree.is_folder(own) else None


def _tfds(task: Task) -> Catalog:
    feature = task.rule.key if isinstance(task.rule, Feature | Modulo) else None
    if task.class_names:
        return TfdsCatalog(task.tfds, Reading(task.image, task.rule, task.class_names))
    names = TfdsCatalog(task.tfds).class_names(feature)
    return TfdsCatalog(task.tfds, Reading(task.image, task.rule, names))


def _own(task: Task, root: str) -> tuple[Catalog, tuple[str, ...]]:
    """A catalog of train, val and test, and the names of classes in any of them."""
    if MANIFEST in tree.names(root):
        catalog: Catalog = ArrayRecordCatalog(root)
        found = list(catalog.manifest["classes"])
    else:
        catalog = FolderCatalog(root, warn_absent=False)  # `vtab` says which the 1000 lack
        found = sorted({
            os.fsdecode(name)
            for split in FOLDER_SPLITS if catalog.has(split)
            for name in tree.subfolders(os.fsencode(os.path.join(root, split)))
        }, key=os.fsencode)  # fmt: skip
    missing = [split for split in FOLDER_SPLITS if not catalog.has(split)]
    if missing:
        raise UsageError(f"{root} has no {', '.join(missing)}", "it needs train, val and test")
    if len(found) > task.num_classes:
        raise UsageError(
            f"{root} has {len(found)} classes ({shorten(found)}), {task.title} has {task.num_classes}",
            "give the data of this task",
        )
    return catalog, tuple(found)


def _bright(image: bytes | np.ndarray, name: str) -> np.ndarray:
    """Pixels 0 and 1 as 0 and 255: uint8 [H, W, 1]."""
    pixels = decode_image(image, channels=1, name=name) if isinstance(image, bytes) else image
    if pixels.max(initial=0) > 1:
        raise BadImage(name, f"holds the pixel value {pixels.max()}, where 0 and 1 are expected")
    return cv2.multiply(pixels, 255).reshape(pixels.shape)
