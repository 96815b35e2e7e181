"""The data of a run: the training split, the splits that are evaluated, and one class map for all."""

import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Sharding
from ml_collections import ConfigDict

from vit_jax.data import draws, mixture, pipeline, prefetch, preprocess, rows, sources
from vit_jax.errors import UsageError

# `data.NAME` of these names is evaluated as eval/NAME/... where it is set.
EVAL_SPLITS = ("val", "test")
# What data sets call the split of a name, in order of preference.
_ALIASES = {"val": ("val", "validation", "valid"), "test": ("test",)}

_BARE_TERM = r"[A-Za-z_]\w*(\[[^\]]*\])?(\{[^{}]*\})?"
_BARE_SPLIT = re.compile(rf"{_BARE_TERM}(\+{_BARE_TERM})*")


@dataclass(frozen=True)
class DataFacts:
    """What a job must know of its data; enough to compile it without having the data.

    Attributes:
      num_examples: of the training split; 0 where only evaluation is meant.
      num_classes: K.
      image_shape: (H, W, C) after preprocessing.
      label_shape: () for class indices, (K,) for multi-hot labels.
      mean, std: per channel, in uint8 units: the model's input is (image - mean) / std.
    """

    num_examples: int
    num_classes: int
    image_shape: tuple[int, int, int]
    label_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class EvalData:
    """The splits to evaluate, open.

    Attributes:
      config: the `data` group of the configuration.
      evals: name -> split.
      classes: names by index; num_classes: K, as many or more.
      image_shape: (H, W, C) after preprocessing; label_shape: () or (K,).
      bad_images: count of what couldn't be read.
    """

    config: ConfigDict
    evals: dict[str, sources.Source]
    classes: tuple[str, ...]
    num_classes: int
    preprocess_eval: preprocess.Preprocess
    image_shape: tuple[int, int, int]
    label_shape: tuple[int, ...]
    bad_images: pipeline.BadImageLog

    def facts(self) -> DataFacts:
        """What the model and the step must know."""
        mean, std = self.preprocess_eval.normalize
        return DataFacts(
            num_examples=0,
            num_classes=self.num_classes,
            image_shape=self.image_shape,
            label_shape=self.label_shape,
            mean=tuple(map(float, mean)),
            std=tuple(map(float, std)),
        )

    def eval_batches(
        self, name: str, *, global_batch: int, sharding: Sharding
    ) -> Callable[[], Iterator[dict[str, jax.Array]]]:
        """A function that gives a fresh pass over the split: batches on the devices, padded and masked."""
        return split_batches(
            self.evals[name], self.preprocess_eval, self.config, bad_images=self.bad_images,
            num_classes=self.num_classes, global_batch=global_batch, sharding=sharding,
        )  # fmt: skip


@dataclass(frozen=True)
class Dataset(EvalData):
    """The training split too.

    Attributes:
      train: the training split, which the class map comes from.
    """

    train: sources.Source
    preprocess_train: preprocess.Preprocess

    def facts(self) -> DataFacts:
        """What the model and the step must know."""
        return DataFacts(**{**super().facts().__dict__, "num_examples": len(self.train)})

    def train_batches(
        self, *, seed: int, global_batch: int, start_step: int, sharding: Sharding
    ) -> prefetch.DevicePrefetch:
        """Endless batches on the devices from `start_step` on; close it."""
        host = pipeline.train_batches(
            self.train,
            self.preprocess_train,
            _reading(self.config, self.bad_images),
            seed=seed,
            global_batch=global_batch,
            start_step=start_step,
            local_rows=prefetch.local_rows(sharding, global_batch),
            num_classes=self.num_classes,
            order=self._order(global_batch),
        )
        return _prefetched(host, self.config, global_batch, sharding)

    def _order(self, global_batch: int) -> draws.Order:
        mixed = isinstance(self.train, mixture.Mixture)
        order = self.train.order() if mixed else draws.Shuffled(len(self.train))
        repeats = self.config.repeats
        return order if repeats == 1 else draws.Repeated(order, repeats, global_batch)

    def step_ids(self, seed: int, step: int, global_batch: int) -> dict[str, list[int]]:
        """The examples of a step, `ids` by global row; of a mixture also `sources`: whose ids they are."""
        index = pipeline.step_indices(self._order(global_batch), seed, step, global_batch).tolist()
        if not isinstance(self.train, mixture.Mixture):
            return {"ids": index}
        places = [self.train.place(i) for i in index]
        return {"ids": [place for _, place in places], "sources": [number for number, _ in places]}

    def named_ids(self, ids: dict[str, list[int]]) -> str:
        """`step_ids` for a message: `17, 4`, of a mixture `SOURCE 17, OTHER 4`."""
        if "sources" not in ids:
            return ", ".join(map(str, ids["ids"]))
        names = [f"{part.spec}@{part.split}" for part in self.train.parts]
        return ", ".join(f"{names[n]} {i}" for n, i in zip(ids["sources"], ids["ids"], strict=True))

    def check_memory(self, global_batch: int) -> None:
        """Raises UsageError when images in flight alone would fill this host's memory."""
        needed, memory = self._image_bytes(global_batch), _physical_memory()
        if memory is not None and needed > memory:
            raise UsageError(
                f"global_batch {global_batch} keeps {needed / 2**30:.1f} GiB of images in flight, "
                f"this host has {memory / 2**30:.1f} GiB",
                "lower global_batch, data.prefetch_batches or data.prefetch_examples",
            )

    def _image_bytes(self, global_batch: int) -> int:
        return prefetch.host_memory_bytes(
            example_bytes=math.prod(self.image_shape),
            local_batch=global_batch // jax.process_count(),
            prefetch_buffer=self.config.prefetch_examples,
            num_workers=self.config.num_workers,
            depth=self.config.prefetch_batches,
        )

    def describe(self, global_batch: int) -> str:
        """One line: sizes of the splits, and what they and the pipeline will hold in this host's memory."""
        splits = {"train": self.train, **self.evals}
        sizes = ", ".join(f"{name} {_size(source)}" for name, source in splits.items())
        if self.config.repeats > 1:
            sizes += f"; every image {self.config.repeats} times in a batch"
        index = sum(source.memory_bytes() for source in splits.values())
        images = self._image_bytes(global_batch)
        mib = 2**20
        return f"{sizes}; host memory: {index / mib:.1f} MiB of sources, {images / mib:.1f} MiB of images in flight"


def open_dataset(config: ConfigDict, *, seed: int, num_classes: int | None) -> Dataset:
    """Opens every split of the `data` group and reads an example of each.

    Args:
      config: the `data` group of the configuration.
      seed: of the run.
      num_classes: K if it is to be larger than what train has; None: as many.

    Raises:
      UsageError: missing data, an empty split, an unknown source or operation, classes that don't fit.
    """
    train = _open_train(config)
    preprocess_train = preprocess.parse(config.preprocess_train)
    evals = open_eval_data(config, classes=tuple(train.classes), num_classes=num_classes)
    if not all(map(np.array_equal, preprocess_train.normalize, evals.preprocess_eval.normalize)):
        raise UsageError(
            f"data.preprocess_train {config.preprocess_train!r} and data.preprocess_eval "
            f"{config.preprocess_eval!r} normalise differently",
            "end both in the same value_range(...) or normalize(...)",
        )
    if isinstance(train, mixture.Mixture):
        found = [rows.probe(part, preprocess_train, seed, evals.num_classes) for part in train.parts]
        shapes = mixture.common_shapes(train, found)
    else:
        shapes = rows.probe(train, preprocess_train, seed, evals.num_classes)
    if evals.evals and evals.image_shape != shapes.image:
        raise UsageError(
            f"data.preprocess_eval gives images {list(evals.image_shape)}, "
            f"data.preprocess_train gives {list(shapes.image)}",
            "make the two end in the same (height, width, channels)",
        )
    fields = {**evals.__dict__, "image_shape": shapes.image, "label_shape": shapes.label}
    return Dataset(**fields, train=train, preprocess_train=preprocess_train)


def _open_train(config: ConfigDict) -> sources.Source:
    if not config.mixture:
        return sources.open_source(config.train, default_split="train")
    if config.train:
        raise UsageError(
            f"data.train {config.train!r} and data.mixture are both set", "set data.train='' for a mixture"
        )
    return mixture.open_mixture(config.mixture)


def _train_name(config: ConfigDict) -> str:
    return "data.mixture" if config.mixture else f"data.train={config.train!r}"


def _size(source: sources.Source) -> str:
    if isinstance(source, mixture.Mixture):
        return source.describe()
    return f"{len(source)} ({source.spec}@{source.split})"


def open_eval_data(config: ConfigDict, *, classes: tuple[str, ...], num_classes: int | None) -> EvalData:
    """Opens the splits to evaluate with a given class map.

    Args:
      config: the `data` group; `train` is used only where a bare split expression refers to its source.
      classes: the class map of the training data.
      num_classes: K if it is larger; None: as many.

    Raises:
      UsageError: as for `open_dataset`.
    """
    if num_classes is not None and num_classes < len(classes):
        raise UsageError(
            f"num_classes is {num_classes} but {_train_name(config)} has {len(classes)} classes",
            f"set num_classes={len(classes)} or more, or leave it out",
        )
    num_classes = len(classes) if num_classes is None else num_classes
    program = preprocess.parse(config.preprocess_eval)
    if program.random:
        raise UsageError(
            f"data.preprocess_eval {config.preprocess_eval!r} is random",
            "leave random operations to preprocess_train",
        )
    evals, shapes = {}, {}
    for name in EVAL_SPLITS:
        if config[name]:
            spec = full_spec(config[name], config.train)
            evals[name] = sources.open_source(spec, default_split=_default_split(spec, name), classes=classes)
            shapes[name] = rows.probe(evals[name], program, None, num_classes)
    if len({found.image for found in shapes.values()}) > 1:
        listed = ", ".join(f"{list(found.image)} for data.{name}" for name, found in shapes.items())
        raise UsageError(f"data.preprocess_eval gives images {listed}", "add a resize or crop to it")
    image, label = next(((found.image, found.label) for found in shapes.values()), ((0, 0, 0), ()))
    data = EvalData(
        config, evals, classes, num_classes, program, image, label, bad_images=pipeline.BadImageLog()
    )
    _reading(config, data.bad_images)  # refuses an unknown on_bad_image
    return data


def split_batches(
    source: sources.Source,
    program: preprocess.Preprocess,
    config: ConfigDict,
    *,
    bad_images: pipeline.BadImageLog,
    num_classes: int,
    global_batch: int,
    sharding: Sharding,
) -> Callable[[], Iterator[dict[str, jax.Array]]]:
    """A function that gives a fresh pass over any split: batches on the devices, padded and masked.

    Row r of batch s is example s * global_batch + r of the source.

    Args:
      program: of the images; not random.
      config: the `data` group, for how they are read.
      num_classes: labels are checked against it.
    """

    def batches() -> Iterator[dict[str, jax.Array]]:
        host = pipeline.eval_batches(
            source,
            program,
            _reading(config, bad_images),
            global_batch=global_batch,
            local_rows=prefetch.local_rows(sharding, global_batch),
            num_classes=num_classes,
        )
        with _prefetched(host, config, global_batch, sharding) as on_devices:
            yield from on_devices

    return batches


def _reading(config: ConfigDict, bad_images: pipeline.BadImageLog) -> pipeline.Reading:
    return pipeline.Reading(
        num_threads=pipeline.reader_threads(config.num_threads),
        prefetch_buffer=config.prefetch_examples,
        num_workers=config.num_workers,
        on_bad_image=config.on_bad_image,
        bad_images=bad_images,
    )


def _prefetched(
    host: pipeline.HostBatches, config: ConfigDict, global_batch: int, sharding: Sharding
) -> prefetch.DevicePrefetch:
    depth = config.prefetch_batches
    return prefetch.device_prefetch(host, sharding, global_batch=global_batch, depth=depth)


def _physical_memory() -> int | None:
    """Bytes of memory of this host; None where the system doesn't say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def full_spec(value: str, train_spec: str) -> str:
    """`test[:50%]` alone means that split of the source of data.train; anything else is a full spec."""
    if value in sources.KINDS or not _BARE_SPLIT.fullmatch(value):
        return value
    if not train_spec:
        raise UsageError(
            f"the split {value!r} has no source: data.train is empty",
            f"write SOURCE@{value}, as of a mixture",
        )
    kind, location, _ = sources.parse_spec(train_spec)
    return f"{kind}:{location}@{value}" if location else f"{kind}@{value}"


def _default_split(spec: str, name: str) -> str:
    """What this data set calls the split of `data.NAME` when the spec names none."""
    if sources.parse_spec(spec)[2] is not None:
        return name
    catalog = sources.open_catalog(spec)
    return next((alias for alias in _ALIASES[name] if catalog.has(alias)), name)
