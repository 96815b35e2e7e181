"""From host batches to arrays on the devices, one thread ahead of the training step."""

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Sharding

from vit_jax.data.pipeline import BATCHES_PER_WORKER
from vit_jax.errors import UsageError

# How soon the thread notices that nobody wants its batches any more.
_POLL_SECONDS = 0.1
# Longer than any single batch takes to make; only storage that hangs exceeds it.
_JOIN_SECONDS = 60.0


def local_rows(sharding: Sharding, global_batch: int) -> np.ndarray:
    """int64 [b], ascending: the rows of the global batch that this process's devices hold.

    Rows held by several of its devices (a tensor axis) occur once; processes that hold the same rows each
    make them. The order is that which `jax.make_array_from_process_local_data` expects.

    Args:
        sharding: of the batch; its first dimension is split over the batch axes of a mesh.
        global_batch: rows over all processes.

    Raises:
        UsageError: the batch isn't divisible by the number of shards.
    """
    try:
        slices = sharding.addressable_devices_indices_map((global_batch,))
    except ValueError as error:
        shards = _num_shards(sharding)
        raise UsageError(
            f"global batch {global_batch} is not divisible by {shards} data shards",
            f"set global_batch to a multiple of {shards}",
        ) from error
    held = np.zeros(global_batch, bool)
    for (rows,) in slices.values():
        held[rows] = True
    return np.flatnonzero(held).astype(np.int64)


def _num_shards(sharding: Sharding) -> int:
    # Any divisible batch tells the number of distinct row ranges.
    devices = len(sharding.device_set)
    return len({(s[0].start, s[0].stop) for s in sharding.devices_indices_map((devices,)).values()})


class DevicePrefetch(Iterator[dict[str, jax.Array]]):
    """Iterator over batches on the devices; see `device_prefetch`.

    Attributes:
        data_wait_seconds: time the consumer has spent waiting in `next` so far, in total.
    """

    def __init__(
        self,
        host_batches: Iterator[dict[str, np.ndarray]],
        sharding: Sharding,
        *,
        global_batch: int,
        depth: int,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth must be >= 1, got {depth}")
        self.data_wait_seconds = 0.0
        self._ready: queue.Queue = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._ended: BaseException | None = None
        # The thread must not hold `self`, or an abandoned iterator would never be collected and stopped.
        self._thread = threading.Thread(
            target=_produce,
            args=(host_batches, sharding, global_batch, self._ready, self._stop),
            name="device-prefetch",
            daemon=True,
        )
        self._thread.start()
        weakref.finalize(self, self._stop.set)

    def __iter__(self) -> "DevicePrefetch":
        return self

    def __next__(self) -> dict[str, jax.Array]:
        """The next batch; an exception of the host pipeline is raised here, after all batches before it."""
        if self._ended is not None:
            raise self._ended
        start = time.perf_counter()
        batch = self._ready.get()
        self.data_wait_seconds += time.perf_counter() - start
        if isinstance(batch, BaseException):
            self._ended = batch
            self._thread.join()
            raise batch
        return batch

    def close(self) -> None:
        """Stops the thread and closes the host batches; batches not yet taken are dropped. Idempotent."""
        self._stop.set()
        if self._ended is None:
            self._ended = StopIteration()
        self._thread.join(timeout=_JOIN_SECONDS)
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        # Another thread may still wait in `next`.
        with contextlib.suppress(queue.Full):
            self._ready.put_nowait(self._ended)

    def __enter__(self) -> "DevicePrefetch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def device_prefetch(
    host_batches: Iterator[dict[str, np.ndarray]], sharding: Sharding, *, global_batch: int, depth: int
) -> DevicePrefetch:
    """Ships host batches to the devices from a thread of its own, in order, at most `depth` ahead.

    Each array but `index` becomes one global array [global_batch, ...]. Use as a context manager, or call
    `close`: both end the thread and close `host_batches`, also when the consumer stops early or raises.

    Args:
        host_batches: dicts of arrays [b, ...], b the number of `local_rows`.
        sharding: of dimension 0 of every array.
        global_batch: rows over all processes.
        depth: batches waiting, ready on the devices; one more may be on its way.
    """
    return DevicePrefetch(host_batches, sharding, global_batch=global_batch, depth=depth)


def _produce(
    host_batches: Iterator[dict[str, np.ndarray]],
    sharding: Sharding,
    global_batch: int,
    ready: queue.Queue,
    stop: threading.Event,
) -> None:
    try:
        while not stop.is_set():
            try:
                item = _ship(next(host_batches), sharding, global_batch)
            except BaseException as error:  # to be raised in the consumer, whatever it is
                item = error
            while not stop.is_set():
                try:
                    ready.put(item, timeout=_POLL_SECONDS)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return
    finally:
        close = getattr(host_batches, "close", None)
        if close is not None:
            close()


def _ship(batch: dict[str, np.ndarray], sharding: Sharding, global_batch: int) -> dict[str, jax.Array]:
    return {
        name: jax.make_array_from_process_local_data(sharding, array, (global_batch, *array.shape[1:]))
        for name, array in batch.items()
        if name != "index"
    }


def host_memory_bytes(
    *, example_bytes: int, local_batch: int, prefetch_buffer: int, num_workers: int, depth: int
) -> int:
    """Upper estimate of the host memory that finished images take, for the log at the start of a run.

    Per reading process the prefetched examples and the batches in the making; then `depth` batches waiting
    for the device, one being shipped and one in use. The encoded files being decoded, one per thread, are not
    counted.

    Args:
        example_bytes: H * W * C.
        local_batch: rows per step on this process.
        prefetch_buffer, num_workers: as in `train_batches`.
        depth: as in `prefetch.device_prefetch`.
    """
    batches = depth + 2
    if num_workers:
        batches += num_workers * (BATCHES_PER_WORKER + 1)
    examples = max(1, num_workers) * prefetch_buffer + batches * local_batch
    return examples * example_bytes
