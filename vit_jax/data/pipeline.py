"""From a random-access source to host batches, with grain's threads (and processes) doing the work.

What a batch holds is a pure function of (seed, step): row r of step s is the example at position s*B + r of
an order (`data.order`, `data.draws`), augmented with the random numbers of that position. Hosts, threads, workers
and restarts change who makes a row and when, never what it is.

Epoch border: positions run on across it. 10 examples in batches of 4 for 2 epochs are 5 batches; the third
holds the last 2 examples of the first epoch and the first 2 of the second. Nothing is dropped or repeated:
each example occurs exactly once per epoch.

A host batch is a dict of numpy arrays, for the b rows of the global batch that this process holds:
    image  uint8 [b, H, W, C]
    label  int32 [b], or float32 [b, K] where labels are vectors
    mask   float32 [b], 1 for a real example, 0 for padding and for skipped unreadable images
    index  int64 [b], the example's place in the source, -1 for padding
"""

import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import grain
import numpy as np
from absl import flags

from vit_jax.data.draws import Order
from vit_jax.data.rows import Assemble, DataError, Preprocess, Rows, Shapes, Source, probe
from vit_jax.errors import UsageError

HostBatch = dict[str, np.ndarray]

# Batches each worker process holds ready beside the one it works on.
BATCHES_PER_WORKER = 1
_LARGEST_CHUNK = 16

_log = logging.getLogger(__name__)


class BadImageLog:
    """Counts unreadable images, and logs each path once. Safe to share between threads and pipelines.

    Attributes:
        count: rows skipped on this host so far; an image met in three epochs counts three times.
        paths: path -> why it couldn't be read.
    """

    def __init__(self) -> None:
        self.count = 0
        self.paths: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, path: str, why: str) -> None:
        with self._lock:
            self.count += 1
            new = path not in self.paths
            self.paths.setdefault(path, why)
            count, distinct = self.count, len(self.paths)
        if new:
            _log.warning(
                "skipped unreadable image %s: %s (%d paths, %d rows so far)", path, why, distinct, count
            )


@dataclass(frozen=True)
class Reading:
    """How rows are read. Changes speed and memory, never what a batch holds.

    Attributes:
        num_threads: reading threads, in each process that reads; 0 reads in the caller.
        prefetch_buffer: finished examples held ahead, in each process that reads.
        num_workers: reading processes, 0 for none: needed only where threads fight over Python's lock.
        on_bad_image: "error" raises `DataError`; "skip" gives the row mask 0 and a black image.
        bad_images: a log to share between pipelines.

    Raises:
        UsageError: `on_bad_image` is neither.
    """

    num_threads: int
    prefetch_buffer: int
    num_workers: int
    on_bad_image: str
    bad_images: BadImageLog = field(default_factory=BadImageLog)

    def __post_init__(self) -> None:
        if self.on_bad_image not in ("error", "skip"):
            raise UsageError(f"on_bad_image is {self.on_bad_image!r}", "use 'error' or 'skip'")

    @property
    def chunk(self) -> int:
        """Rows per grain element: large against grain's own cost, small enough that each thread has 4 to come."""
        return max(1, min(_LARGEST_CHUNK, self.prefetch_buffer // (4 * max(1, self.num_threads))))


def reader_threads(asked: int | None) -> int:
    """The number asked for, else one per core: more only get in each other's way unless storage is slow."""
    return max(2, os.cpu_count() or 2) if asked is None else asked


class HostBatches(Iterator[HostBatch]):
    """Iterator over host batches; close it (or leave its `with` block) to stop threads and processes.

    Attributes:
        bad_images: the `BadImageLog` in use.
        image_shape: (H, W, C) of every image.
    """

    def __init__(self, rows: Rows, shapes: Shapes, reading: Reading, *, num_steps: int | None) -> None:
        self.bad_images = reading.bad_images
        self.image_shape = shapes.image
        self._skip = reading.on_bad_image == "skip"
        self._left = num_steps
        self._workers = reading.num_workers > 0
        read = grain.ReadOptions(
            num_threads=reading.num_threads, prefetch_buffer_size=reading.prefetch_buffer // rows.chunk
        )
        dataset = rows.to_iter_dataset(read).batch(
            rows.elements_per_batch, drop_remainder=True, batch_fn=Assemble(shapes)
        )
        if self._workers:
            # grain hands its absl flags on to the workers, and reading unparsed flags is an error.
            if not flags.FLAGS.is_parsed():
                flags.FLAGS.mark_as_parsed()
            options = grain.MultiprocessingOptions(
                num_workers=reading.num_workers, per_worker_buffer_size=BATCHES_PER_WORKER
            )
            dataset = dataset.mp_prefetch(options)
        self._iterator: grain.DatasetIterator | None = iter(dataset)

    def __iter__(self) -> "HostBatches":
        return self

    def __next__(self) -> HostBatch:
        """The next step's batch.

        Raises:
            DataError: an image of this batch can't be read and on_bad_image is "error".
            UsageError: an image or label of this batch doesn't fit the others.
        """
        if self._left == 0:
            self.close()
        if self._iterator is None:
            raise StopIteration
        if self._left is not None:
            self._left -= 1
        try:
            batch = next(self._iterator)
        except BaseException:
            # Of several workers one may have died; the others would keep the program from ending.
            self.close()
            raise
        for problem in batch.pop("problems").found:
            if problem.remedy:
                raise UsageError(problem.what, problem.remedy)
            if not self._skip:
                raise DataError(
                    f"can't read {problem.name}: {problem.what}",
                    "mend or remove the file, or set data.on_bad_image='skip'",
                ) from problem.cause
            self.bad_images.add(problem.name, problem.what)
        if self._workers:
            # Out of the workers' shared memory, which grain can't free at the interpreter's exit.
            batch = {name: np.array(array) for name, array in batch.items()}
        return batch

    def close(self) -> None:
        """Stops reading; afterwards the iterator is at its end. Idempotent."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()

    def __enter__(self) -> "HostBatches":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def train_batches(
    source: Source,
    preprocess: Preprocess,
    reading: Reading,
    *,
    seed: int,
    global_batch: int,
    start_step: int,
    local_rows: np.ndarray,
    num_classes: int | None = None,
    order: Order | None = None,
) -> HostBatches:
    """Endless training batches from `start_step` on; starting late costs nothing.

    Args:
        source: the examples.
        preprocess: its `host(image, rng)` is called once per row.
        reading: threads, buffers and what to do with unreadable images.
        seed: with the position, all that order and augmentation depend on.
        global_batch: rows of a step over all processes, B.
        start_step: the first step to make.
        local_rows: int [b], the rows of the global batch this process makes (`prefetch.local_rows`).
        num_classes: labels are checked against it, if given.
        order: which example stands at which position; None: shuffled epochs of the source.

    Raises:
        UsageError: empty source, no image among the first 100 that can be read, or unusable preprocessing.
    """
    shapes = probe(source, preprocess, seed, num_classes)
    rows = Rows(
        source,
        preprocess,
        shapes,
        seed=seed,
        global_batch=global_batch,
        rows=local_rows,
        start_step=start_step,
        num_steps=None,
        num_workers=reading.num_workers,
        chunk=reading.chunk,
        order=order,
    )
    return HostBatches(rows, shapes, reading, num_steps=None)


def eval_batches(
    source: Source,
    preprocess: Preprocess,
    reading: Reading,
    *,
    global_batch: int,
    local_rows: np.ndarray,
    num_classes: int | None = None,
) -> HostBatches:
    """Every example once, in the source's order: ceil(n / B) batches on every host, whatever it holds.

    Rows beyond the last example are zero with mask 0 and index -1; the sum of all masks over all hosts is n,
    less the unreadable images under on_bad_image="skip". Arguments and errors as for `train_batches`.
    """
    num_steps = -(-len(source) // global_batch)
    shapes = probe(source, preprocess, None, num_classes)
    rows = Rows(
        source,
        preprocess,
        shapes,
        seed=None,
        global_batch=global_batch,
        rows=local_rows,
        start_step=0,
        num_steps=num_steps,
        num_workers=reading.num_workers,
        chunk=reading.chunk,
    )
    return HostBatches(rows, shapes, reading, num_steps=num_steps)


def step_indices(order: Order, seed: int, step: int, global_batch: int) -> np.ndarray:
    """int64 [global_batch]: the examples of a step in global row order, known without communication."""
    return order.indices(seed, step * global_batch + np.arange(global_batch, dtype=np.int64))
