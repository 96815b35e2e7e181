"""Whether the data of the tasks is there and is VTAB's; where not, how to get it."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vit_jax import files
from vit_jax.data import preprocess
from vit_jax.data.decode import BadImage
from vit_jax.data.source_tfds import OtherFormat
from vit_jax.data.source_tfds import data_dir as tfds_dir
from vit_jax.data.source_vtab import Splits, VtabCatalog
from vit_jax.data.vtab_tasks import Task
from vit_jax.errors import UsageError

# Archives, what they hold, and the records made of them, as a multiple of the download.
_DISK_PER_DOWNLOAD = 2.2
# What `needs` is called where packages are installed from.
_PIP = {"cv2": "opencv-python-headless", "tensorflow": "tensorflow", "scipy": "scipy", "h5py": "h5py"}


@dataclass(frozen=True)
class Check:
    """What was found of a task's data.

    Attributes:
      splits: of the data; None: it can't be used, `problem` says why, `remedy` what to do.
      place: where it is.
      counts: examples by split.
      differences: in which it isn't VTAB's, such as "train 640, not 800". It can be used, but scores are no
        VTAB scores.
    """

    task: Task
    place: str = ""
    splits: Splits | None = None
    counts: dict[str, int] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    problem: str = ""
    remedy: str = ""

    @property
    def ready(self) -> bool:
        """Found, and as VTAB has it."""
        return self.splits is not None and not self.differences

    @property
    def test_count(self) -> int:
        """Examples of the test split."""
        return self.counts.get(self.splits.e, self.task.test_count)

    def line(self) -> str:
        """One line for `--check-data`."""
        name = f"{self.task.name:<20}"
        if self.splits is None:
            return f"{name} missing  {self.problem}; {self.remedy}"
        counts = ", ".join(f"{split} {count}" for split, count in self.counts.items())
        what = f"{self.place}: {counts}, {self.task.num_classes} classes"
        if self.differences:
            return f"{name} differs  {what}; {'; '.join(self.differences)}"
        return f"{name} ready    {what}"


def check(task: Task, data_dir: str) -> Check:
    """Opens the data of a task, counts it, and reads one example of every split. Never raises for what it finds."""
    location = task.name + (f":{data_dir}" if data_dir else "")
    try:
        catalog = VtabCatalog(location)
        counts = catalog.counts()
        wanted = catalog.own_splits.expected
        wrong = tuple(f"{s} {counts[s]}, not {wanted[s]}" for s in wanted if counts[s] != wanted[s])
        if wrong and not catalog.is_own:
            why = f"{catalog.place} has {', '.join(wrong)}: it isn't the set that VTAB cut"
            return Check(task, problem=why, remedy=how_to_prepare(task))
        if absent := catalog.absent:
            wrong += (f"{task.num_classes - absent} of {task.num_classes} classes have a folder",)
        for split in counts:
            _read_one(catalog, split)
    except OtherFormat as error:
        return Check(task, problem=error.what, remedy=how_to_convert(task))
    except (UsageError, BadImage) as error:
        why = error.what if isinstance(error, UsageError) else str(error)
        return Check(task, problem=why, remedy=how_to_prepare(task))
    except Exception as error:  # whatever a half-prepared set or a foreign file makes a reader raise
        why = f"it can't be read: {type(error).__name__}: {files.line(error)}"
        return Check(task, problem=why, remedy=how_to_prepare(task))
    return Check(task, catalog.place, catalog.own_splits, counts, wrong)


def _read_one(catalog: VtabCatalog, split: str) -> None:
    source = catalog.open(split, None)
    example = source[0]
    image = preprocess.parse("decode").host(example.image, None, example.name)
    if not image.size or not 0 <= int(np.asarray(example.label)) < catalog.task.num_classes:
        raise BadImage(example.name, f"label {example.label}, pixels {list(image.shape)}")


def how_to_convert(task: Task) -> str:
    """The command that makes ArrayRecord of what is prepared in another format."""
    place = f"{task.builder}/{task.version}"
    return (
        f"convert: tfds convert_format --dataset_version_dir={tfds_dir()}/{place} "
        f"--out_file_format=array_record --out_dir=DIR/{place}, then set TFDS_DATA_DIR=DIR"
    )


def how_to_prepare(task: Task) -> str:
    """The command, what it fetches, the disk it takes, and the packages it needs that aren't installed."""
    root = tfds_dir()
    missing = [name for name in ("tensorflow", *task.needs) if not files.has_package(name)]
    parts = [f"prepare: tfds build {task.tfds} --file_format=array_record --data_dir={root}"]
    if missing:
        parts.append("first: pip install " + " ".join(_PIP[name] for name in missing))
    if task.manual:
        parts.append(f"{task.manual} ({root}/downloads/manual) before")
    disk = task.download_gib * _DISK_PER_DOWNLOAD
    free = _free_gib(root)
    short = f", {_gib(free)} are free" if free is not None and free < disk else ""
    parts.append(f"download {_gib(task.download_gib)}, disk about {_gib(disk)}{short}")
    return "; ".join(parts)


def _gib(size: float) -> str:
    return f"{size:.0f} GiB" if size >= 10 else f"{size:.2g} GiB"


def _free_gib(folder: str) -> float | None:
    """Of the disk that the folder is, or will be, on."""
    path = Path(folder)
    try:
        return shutil.disk_usage(next(p for p in (path, *path.parents) if p.is_dir())).free / 2**30
    except (OSError, StopIteration):
        return None
