"""Batches are a pure function of (seed, step), for any hosts, threads, workers and restarts."""

import json
import logging
import multiprocessing
import threading
from itertools import islice

import numpy as np
import pytest

from tests.data.fakes import NOISY, PLAIN, DeadlySource, FakeSource
from vit_jax.data.draws import Shuffled
from vit_jax.data.pipeline import BadImageLog, Reading, eval_batches, step_indices, train_batches
from vit_jax.data.rows import DataError
from vit_jax.errors import UsageError


def reading(threads, workers, more):
    settings = {"prefetch_buffer": 16, "on_bad_image": "error"}
    settings |= {name: more.pop(name) for name in (*settings, "bad_images") if name in more}
    return Reading(num_threads=threads, num_workers=workers, **settings)


def train(source, preprocess=NOISY, *, batch=8, start=0, rows=None, threads=2, workers=0, seed=3, **more):
    how = reading(threads, workers, more)
    rows = np.arange(batch) if rows is None else rows
    return train_batches(
        source, preprocess, how, seed=seed, global_batch=batch, start_step=start, local_rows=rows, **more
    )


def evaluate(source, preprocess=PLAIN, *, batch=8, rows=None, threads=2, workers=0, **more):
    how = reading(threads, workers, more)
    rows = np.arange(batch) if rows is None else rows
    return eval_batches(source, preprocess, how, global_batch=batch, local_rows=rows, **more)


def take(batches, count):
    with batches:
        return list(islice(batches, count))


def assert_same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.keys() == y.keys()
        for name in x:
            assert x[name].dtype == y[name].dtype
            np.testing.assert_array_equal(x[name], y[name])


def test_content_types_and_order():
    batches = take(train(FakeSource(21), PLAIN), 3)
    for step, batch in enumerate(batches):
        assert {k: (v.dtype.name, v.shape) for k, v in batch.items()} == {
            "image": ("uint8", (8, 4, 4, 3)),
            "label": ("int32", (8,)),
            "mask": ("float32", (8,)),
            "index": ("int64", (8,)),
        }
        ids = step_indices(Shuffled(21), 3, step, 8)
        np.testing.assert_array_equal(batch["index"], ids)
        np.testing.assert_array_equal(batch["image"][:, 2, 1, 0], ids)
        np.testing.assert_array_equal(batch["label"], ids % 10)
        np.testing.assert_array_equal(batch["mask"], 1)


def test_vector_labels():
    (batch,) = take(train(FakeSource(21, multi_hot=True), num_classes=10), 1)
    assert batch["label"].dtype == np.float32
    np.testing.assert_array_equal(batch["label"], np.eye(10)[batch["index"] % 10])


def test_batches_do_not_share_memory():
    first, second = take(train(FakeSource(21)), 2)
    assert not any(np.shares_memory(first[name], second[name]) for name in first)


def test_augmentation_differs_between_epochs_and_seeds():
    a, b = take(train(FakeSource(8)), 2)  # two epochs of one batch
    rows_a, rows_b = a["image"][np.argsort(a["index"])], b["image"][np.argsort(b["index"])]
    assert all((x != y).any() for x, y in zip(rows_a, rows_b, strict=True))
    (c,) = take(train(FakeSource(8), seed=4), 1)
    assert (c["image"] != a["image"]).any() and (c["index"] != a["index"]).any()


@pytest.fixture(scope="module")
def unbroken():
    """15 steps of 20 rows over 37 examples: 8 epochs, borders in nearly every batch."""
    return take(train(FakeSource(37), batch=20), 15)


@pytest.mark.parametrize("threads", [0, 1, 4, 16])
def test_resume_inside_a_window_equals_the_unbroken_run(unbroken, threads):
    # Leave the first run in the middle of what it had read ahead, and enter afresh at that step.
    broken = take(train(FakeSource(37), batch=20, threads=threads, prefetch_buffer=64), 7)
    resumed = take(train(FakeSource(37), batch=20, start=7, threads=threads, prefetch_buffer=64), 8)
    ids = np.concatenate([b["index"] for b in resumed])[:50]
    np.testing.assert_array_equal(ids, np.concatenate([b["index"] for b in unbroken[7:]])[:50])
    assert_same(broken + resumed, unbroken)


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("threads", [1, 4])
def test_hosts_together_hold_the_global_batch(unbroken, hosts, threads):
    parts = [
        take(train(FakeSource(37), batch=20, start=5, rows=rows, threads=threads), 6)
        for rows in np.split(np.arange(20), hosts)
    ]
    whole = [{k: np.concatenate([p[k] for p in step]) for k in step[0]} for step in zip(*parts, strict=True)]
    assert_same(whole, unbroken[5:11])


def test_scattered_rows(unbroken):
    rows = np.array([1, 2, 11, 17])
    got = take(train(FakeSource(37), batch=20, rows=rows), 15)
    assert_same(got, [{k: v[rows] for k, v in batch.items()} for batch in unbroken])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_worker_processes_change_nothing(unbroken, workers):
    rows = np.arange(5, 10)
    got = take(train(FakeSource(37), batch=20, rows=rows, start=7, workers=workers), 8)
    assert all(array.flags.owndata for batch in got for array in batch.values())  # not in shared memory
    assert_same(got, [{k: v[rows] for k, v in batch.items()} for batch in unbroken[7:]])


@pytest.mark.slow
def test_worker_processes_report_bad_images_and_end():
    source = FakeSource(21, bad=[2], missing=[9])
    batches = evaluate(source, workers=2, on_bad_image="skip")
    steps = list(batches)
    assert [s["mask"].sum() for s in steps] == [7, 7, 5]
    np.testing.assert_array_equal(np.concatenate([s["index"] for s in steps])[:21], np.arange(21))
    assert batches.bad_images.count == 2
    with (
        evaluate(source, workers=2) as batches,
        pytest.raises(DataError, match=r"can't read img/2.png: trunc"),
    ):
        next(batches)


@pytest.mark.slow
def test_a_dead_worker_is_an_error_not_a_hang():
    batches = evaluate(DeadlySource(32), workers=2)
    with pytest.raises(RuntimeError, match="terminated unexpectedly with exit code 9"):
        list(batches)
    assert not multiprocessing.active_children()


def test_starting_late_is_immediate():
    step = 10**12
    (batch,) = take(train(FakeSource(21), start=step), 1)
    np.testing.assert_array_equal(batch["index"], step_indices(Shuffled(21), 3, step, 8))


def test_epoch_border(golden):
    scenarios = json.loads((golden / "cases" / "resume_scenarios.json").read_text())["scenarios"]
    assert next(s for s in scenarios if s["id"] == "epoch-border")["do"] == "10 examples, batch 4, 2 epochs"
    batches = take(train(FakeSource(10), batch=4), 5)
    ids = np.concatenate([b["index"] for b in batches])
    for epoch in ids.reshape(2, 10):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(10))


@pytest.mark.parametrize(("batch", "hosts"), [(1, 1), (8, 1), (21, 1), (32, 1), (8, 2), (32, 2)])
def test_eval_counts_every_example_once(batch, hosts):
    seen = []
    for rows in np.split(np.arange(batch), hosts):
        steps = list(evaluate(FakeSource(21), batch=batch, rows=rows))
        assert len(steps) == -(-21 // batch)
        for step in steps:
            real = step["mask"] == 1
            np.testing.assert_array_equal(step["index"] >= 0, real)
            assert not step["image"][~real].any() and not step["label"][~real].any()
            np.testing.assert_array_equal(step["image"][real, 0, 0, 0], step["index"][real])
            seen += step["index"][real].tolist()
    assert sorted(seen) == list(range(21))


def test_eval_refuses_random_steps():
    with pytest.raises(UsageError, match="random steps"):
        evaluate(FakeSource(21), NOISY)


def test_bad_image_is_an_error_at_its_own_step():
    bad = int(step_indices(Shuffled(100), 3, 2, 8)[5])
    with train(FakeSource(100, bad=[bad]), threads=4, prefetch_buffer=64) as batches:
        next(batches)
        next(batches)
        with pytest.raises(
            DataError, match=rf"can't read img/{bad}.png: truncated .*on_bad_image='skip'"
        ) as e:
            next(batches)
    assert e.value.__cause__.name == f"img/{bad}.png"


def test_bad_images_are_skipped_counted_and_logged_once(caplog):
    source = FakeSource(16, bad=[0, 5], missing=[7])
    log = BadImageLog()
    with caplog.at_level(logging.WARNING):
        batches = take(train(source, on_bad_image="skip", threads=8, bad_images=log), 4)  # 2 epochs
    for batch in batches:
        bad = np.isin(batch["index"], [0, 5, 7])
        np.testing.assert_array_equal(batch["mask"], ~bad)
        assert not batch["image"][bad].any() and batch["image"][~bad].any()
    assert log.count == 6
    assert log.paths.keys() == {"img/0.png", "img/5.png", "img/7.png"}
    assert log.paths["img/5.png"] == "truncated" and "No such file" in log.paths["img/7.png"]
    assert sorted(r.getMessage().split(":")[0] for r in caplog.records) == [
        "skipped unreadable image img/0.png",
        "skipped unreadable image img/5.png",
        "skipped unreadable image img/7.png",
    ]


def test_bad_image_log_counts_across_threads():
    log = BadImageLog()

    def work(name):
        for _ in range(500):
            log.add(name, "why")

    threads = [threading.Thread(target=work, args=(f"{i % 2}.png",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.count == 4000 and len(log.paths) == 2


def test_a_batch_of_bad_images_only_keeps_its_shape():
    first = step_indices(Shuffled(100), 3, 0, 8).tolist()
    (batch,) = take(train(FakeSource(100, bad=first), on_bad_image="skip"), 1)
    assert batch["image"].shape == (8, 4, 4, 3) and not batch["mask"].any()


def test_nothing_readable_is_named_at_once():
    with pytest.raises(UsageError, match="none of the first 12 images can be read"):
        train(FakeSource(12, bad=range(12)), on_bad_image="skip")


def test_other_exceptions_are_not_swallowed():
    class Broken(FakeSource):
        def __getitem__(self, i):
            if i:
                raise ZeroDivisionError("a bug")
            return super().__getitem__(i)

    with train(Broken(9), on_bad_image="skip") as batches, pytest.raises(ZeroDivisionError):
        next(batches)


def test_images_of_different_shapes():
    with (
        train(FakeSource(8, odd=[6])) as batches,
        pytest.raises(
            UsageError,
            match=r"\[4, 4, 3\] \(img/0.png\) and \[5, 4, 3\] \(img/6.png\) \(add resize\(...\)",
        ),
    ):
        next(batches)


def test_label_out_of_range():
    with (
        train(FakeSource(8), num_classes=5) as batches,
        pytest.raises(UsageError, match=r"img/\d.png has label [567], outside 0 ... 4"),
    ):
        next(batches)
    with (
        train(FakeSource(8, multi_hot=True), num_classes=5) as batches,
        pytest.raises(UsageError, match="label vector of 10 entries, num_classes is 5"),
    ):
        next(batches)


def test_empty_source_and_unknown_policy():
    with pytest.raises(UsageError, match="the data source is empty"):
        train(FakeSource(0))
    with pytest.raises(UsageError, match="on_bad_image is 'ignore'"):
        train(FakeSource(3), on_bad_image="ignore")
    with pytest.raises(ValueError, match="row numbers below 8"):
        train(FakeSource(3), rows=np.array([0, 8]))


def test_closing_ends_the_threads():
    before = set(threading.enumerate())
    batches = train(FakeSource(100), threads=4)
    next(batches)
    batches.close()
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
        assert not thread.is_alive()


def test_reading_ahead_is_bounded():
    reads = []

    class Counting(FakeSource):
        def __getitem__(self, i):
            reads.append(i)
            return super().__getitem__(i)

    with train(Counting(1000), threads=4, prefetch_buffer=16) as batches:
        for _ in range(3):
            next(batches)
        # 1 to learn the shape, 3 batches of 8, and at most 16 ahead.
        assert len(reads) <= 1 + 24 + 16
