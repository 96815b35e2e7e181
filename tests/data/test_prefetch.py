"""Shipping to devices: rows by sharding, order, errors in their place, clean ends."""

import gc
import threading
import time
from itertools import islice

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.data.fakes import NOISY, FakeSource
from vit_jax.data.pipeline import Reading, train_batches
from vit_jax.data.prefetch import device_prefetch, host_memory_bytes, local_rows
from vit_jax.errors import UsageError

SHAPES = [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4), (1, 1, 8)]


def batch_sharding(*shape, devices=None):
    names = ("replica", "fsdp", "tensor")
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * 3, devices=devices)
    return NamedSharding(mesh, PartitionSpec(("replica", "fsdp")))


class Counted:
    """Host batches 0, 1, 2, ...: remembers how many were taken, raises at `fails`, ends at `ends`."""

    def __init__(self, fails=None, ends=None):
        self.taken, self.closed, self.fails, self.ends = 0, False, fails, ends

    def __iter__(self):
        return self

    def __next__(self):
        if self.taken == self.fails:
            raise RuntimeError("broken at its step")
        if self.taken == self.ends:
            raise StopIteration
        batch = {
            "image": np.full((8, 2, 2, 3), self.taken, np.uint8),
            "label": np.arange(8, dtype=np.int32) + self.taken,
            "index": np.arange(8),
        }
        self.taken += 1
        return batch

    def close(self):
        self.closed = True


def prefetch(host, sharding=None, depth=2):
    return device_prefetch(host, sharding or batch_sharding(8, 1, 1), global_batch=8, depth=depth)


def settle(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def shippers():
    return [t for t in threading.enumerate() if t.name == "device-prefetch"]


@pytest.mark.parametrize("shape", SHAPES)
def test_content_and_sharding(shape):
    sharding = batch_sharding(*shape)
    with prefetch(Counted(ends=3), sharding) as batches:
        got = list(batches)
    assert len(got) == 3
    for step, batch in enumerate(got):
        assert batch.keys() == {"image", "label"}
        assert batch["image"].sharding.is_equivalent_to(sharding, 4)
        assert batch["image"].dtype == np.uint8
        np.testing.assert_array_equal(batch["label"], np.arange(8) + step)
        for shard in batch["label"].addressable_shards:
            np.testing.assert_array_equal(shard.data, np.arange(8)[shard.index] + step)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_process_holds_all_rows(shape):
    rows = local_rows(batch_sharding(*shape), 16)
    assert rows.dtype == np.int64
    np.testing.assert_array_equal(rows, np.arange(16))


class PartOfASharding:
    """A sharding as a process sees it that owns some of the devices only."""

    def __init__(self, sharding, devices):
        self.sharding, self.devices = sharding, devices

    def addressable_devices_indices_map(self, shape):
        return {d: s for d, s in self.sharding.devices_indices_map(shape).items() if d in self.devices}


@pytest.mark.parametrize(
    ("shape", "owned", "expected"),
    [
        ((8, 1, 1), [2, 3], [4, 5, 6, 7]),
        ((1, 8, 1), [7, 0], [0, 1, 14, 15]),
        ((2, 2, 2), [4, 5], [8, 9, 10, 11]),
        ((1, 2, 4), [0, 1], list(range(8))),
        ((1, 1, 8), [5], list(range(16))),
    ],
)
def test_rows_of_some_devices(shape, owned, expected):
    devices = jax.devices()
    sharding = batch_sharding(*shape, devices=devices)
    flat = sharding.mesh.devices.reshape(-1)
    part = PartOfASharding(sharding, [flat[i] for i in owned])
    assert local_rows(part, 16).tolist() == expected


def test_indivisible_batch():
    with pytest.raises(UsageError, match=r"global batch 10 is not divisible by 8 data shards"):
        local_rows(batch_sharding(8, 1, 1), 10)
    with pytest.raises(UsageError, match="global batch 6 is not divisible by 4 data shards"):
        local_rows(batch_sharding(2, 2, 2), 6)


def test_error_comes_at_its_step_and_stays():
    host = Counted(fails=2)
    with prefetch(host, depth=4) as batches:
        settle(lambda: host.closed)  # the thread has met the error by now; nobody has asked for a batch yet
        assert int(next(batches)["image"].max()) == 0
        assert int(next(batches)["image"].max()) == 1
        for _ in range(2):
            with pytest.raises(RuntimeError, match="broken at its step"):
                next(batches)
    assert not shippers()


def test_end_stays_the_end():
    batches = prefetch(Counted(ends=1))
    next(batches)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)
    assert not shippers()


def test_depth_bounds_what_is_taken():
    host = Counted()
    with prefetch(host, depth=2) as batches:
        settle(lambda: host.taken == 3)  # two ready, one in hand
        time.sleep(0.3)
        assert host.taken == 3
        next(batches)
        settle(lambda: host.taken == 4)
        time.sleep(0.3)
        assert host.taken == 4


def test_leaving_early_ends_the_thread_and_closes_the_host_batches():
    host = Counted()
    with pytest.raises(KeyError), prefetch(host) as batches:
        next(batches)
        raise KeyError("the consumer failed")
    assert host.closed and not shippers()
    with pytest.raises(StopIteration):
        next(batches)
    batches.close()


def test_an_abandoned_iterator_ends_its_thread():
    host = Counted()
    batches = prefetch(host)
    next(batches)
    del batches
    gc.collect()
    settle(lambda: host.closed and not shippers())


def test_close_in_the_middle_of_a_slow_batch():
    class Slow(Counted):
        def __next__(self):
            time.sleep(0.5)
            return super().__next__()

    host = Slow()
    start = time.monotonic()
    prefetch(host).close()
    assert time.monotonic() - start < 3
    assert host.closed and not shippers()


def test_close_frees_a_consumer_that_waits_in_another_thread():
    class Slow(Counted):
        def __next__(self):
            time.sleep(0.5)
            return super().__next__()

    batches = prefetch(Slow())
    got = []
    consumer = threading.Thread(target=lambda: got.append(next(batches, "end")))
    consumer.start()
    time.sleep(0.1)
    batches.close()
    consumer.join(timeout=5)
    assert not consumer.is_alive() and got == ["end"]


def test_waiting_is_measured():
    class Slow(Counted):
        def __next__(self):
            time.sleep(0.2)
            return super().__next__()

    with prefetch(Slow(ends=2)) as batches:
        next(batches)
        first = batches.data_wait_seconds
        assert first >= 0.15
        time.sleep(0.6)  # a step as long as three batches: the next one is ready
        next(batches)
        assert batches.data_wait_seconds - first < 0.1


def test_whole_pipeline_to_devices():
    reading = Reading(num_threads=4, prefetch_buffer=32, num_workers=0, on_bad_image="error")
    settings = {"seed": 1, "global_batch": 16}
    sharding = batch_sharding(2, 2, 2)
    rows = local_rows(sharding, 16)
    source = FakeSource(50)
    with train_batches(source, NOISY, reading, start_step=2, local_rows=rows, **settings) as host:
        expected = list(islice(host, 4))
    host = train_batches(source, NOISY, reading, start_step=2, local_rows=rows, **settings)
    with device_prefetch(host, sharding, global_batch=16, depth=2) as batches:
        got = list(islice(batches, 4))
    for device, plain in zip(got, expected, strict=True):
        for name in ("image", "label", "mask"):
            np.testing.assert_array_equal(device[name], plain[name])


def test_memory_estimate():
    example = 224 * 224 * 3
    count = {"example_bytes": example, "local_batch": 512, "prefetch_buffer": 1024, "depth": 2}
    assert host_memory_bytes(**count, num_workers=0) == (1024 + 4 * 512) * example
    assert host_memory_bytes(**count, num_workers=3) == (3 * 1024 + (4 + 3 * 2) * 512) * example
