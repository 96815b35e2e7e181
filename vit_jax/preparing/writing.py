"""Writes the shards of a plan, several at a time, and the manifest when all are there.

Threads: decoding, resizing, writing and hashing leave Python's lock free. Equal plans give equal files, whatever
the number of threads and however often the work was broken off.
"""

import contextlib
import hashlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python import array_record_module

from vit_jax import files
from vit_jax.data.arrayrecord import (
    CONTIGUOUS,
    WRITER_OPTIONS,
    encode_record,
    shard_name,
    write_manifest,
)
from vit_jax.data.decode import BadImage
from vit_jax.data.source import Example
from vit_jax.errors import RunFailed, UsageError
from vit_jax.preparing.destination import Destination, cannot_write
from vit_jax.preparing.plan import Plan, SplitPlan
from vit_jax.preparing.threads import Progress, Stopped, as_they_end

_log = logging.getLogger("vit_jax.prepare")

_SHOWN = 20  # skipped images that are logged one by one


class _Leave(Exception):
    """Raised in a thread that shall drop its shard."""


def write(
    plan: Plan,
    destination: Destination,
    *,
    threads: int,
    skip_bad: bool,
    stop: threading.Event,
    progress: Progress,
    show: Callable[[], None],
) -> dict[str, dict[str, Any]]:
    """Writes what isn't written yet.

    Args:
      plan: the work.
      destination: begun with this plan.
      threads: shards at a time.
      skip_bad: leave out images that can't be used, instead of failing.
      stop: set from outside to break off.
      progress: is counted up.
      show: called about ten times a second.

    Returns:
      the `splits` of the manifest.

    Raises:
      RunFailed: a bad image, or a disk that can't be written.
      Stopped: `stop` was set.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    jobs: list[tuple[SplitPlan, int, Path]] = []
    for split in plan.splits:
        folder = destination.root / split.name
        try:
            folder.mkdir(exist_ok=True)
        except OSError as e:
            raise cannot_write(folder, e.strerror or str(e)) from e
        for leftover in folder.glob(".*.part"):
            leftover.unlink()
        for index in range(split.num_shards):
            path = folder / shard_name(index, split.num_shards)
            entry = destination.shard(split.name, index, path)
            if entry is None:
                jobs.append((split, index, path))
            else:
                found[split.name, index] = entry
                progress.add(len(split.places(index)))
    _check_skipped(found, skip_bad)
    if found:
        _log.info("going on: %d of %d shards are there", len(found), len(found) + len(jobs))
    writer = _ShardWriter(plan, destination, skip_bad, stop, progress)
    found |= _run(writer, jobs, threads, stop, show)
    return {split.name: _entry(split, plan, found) for split in plan.splits}


def write_out(plan: Plan, destination: Destination, splits: dict[str, dict[str, Any]]) -> None:
    """Writes the manifest: from now on the data set is there."""
    try:
        write_manifest(str(destination.root), plan.classes, splits, plan.made_from)
    except OSError as e:
        raise cannot_write(destination.root, e.strerror or str(e)) from e
    destination.finish()


def _run(
    writer: "_ShardWriter",
    jobs: list[tuple[SplitPlan, int, Path]],
    threads: int,
    stop: threading.Event,
    show: Callable[[], None],
) -> dict[tuple[str, int], dict[str, Any]]:
    """The entries of all jobs; breaks off at the first failure."""
    with ThreadPoolExecutor(threads, thread_name_prefix="prepare") as pool:
        futures = {pool.submit(writer, *job): (job[0].name, job[1]) for job in jobs}
        try:
            for future in as_they_end(list(futures), stop, show):
                if future.exception() is not None:
                    break
        finally:
            writer.leave.set()
            pool.shutdown(wait=True, cancel_futures=True)
    failures = [f.exception() for f in futures if not f.cancelled() and f.exception() is not None]
    for failure in failures:
        if not isinstance(failure, _Leave):
            raise failure
    if failures:
        raise Stopped
    return {key: future.result() for future, key in futures.items()}


@dataclass
class _ShardWriter:
    """Writes one shard; called in threads."""

    plan: Plan
    destination: Destination
    skip_bad: bool
    stop: threading.Event
    progress: Progress
    leave: threading.Event = field(default_factory=threading.Event)

    def __call__(self, split: SplitPlan, index: int, path: Path) -> dict[str, Any]:
        temporary = path.with_name(f".{path.name}.part")
        try:
            entry = self._write(split, index, temporary)
            with _writing(path):
                _sync(temporary)
                os.replace(temporary, path)
                _sync(path.parent)
            self.destination.note(split.name, index, entry)
        except BaseException:
            self.leave.set()
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return entry

    def _write(self, split: SplitPlan, index: int, path: Path) -> dict[str, Any]:
        counts: Counter[int] = Counter()
        count, multi_label, skipped = 0, False, []
        with _writing(path):
            writer = array_record_module.ArrayRecordWriter(str(path), WRITER_OPTIONS)
        try:
            for place in split.places(index):
                if self.stop.is_set() or self.leave.is_set():
                    raise _Leave
                try:
                    example = self._read(split, place)
                except BadImage as e:
                    skipped.append(self._refuse(e))
                    self.progress.add(1)
                    continue
                with _writing(path):
                    writer.write(encode_record(example))
                count += 1
                if isinstance(example.label, np.ndarray) and example.label.ndim == 1:
                    multi_label = True
                    counts.update(np.flatnonzero(example.label).tolist())
                else:
                    counts[int(example.label)] += 1
                self.progress.add(1)
        except BaseException:
            with contextlib.suppress(Exception):
                writer.close()
            raise
        with _writing(path):
            writer.close()
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {
            "count": count, "bytes": path.stat().st_size, "sha256": digest, "multi_label": multi_label,
            "class_counts": sorted(counts.items()), "skipped": skipped,
        }  # fmt: skip

    def _read(self, split: SplitPlan, place: int) -> Example:
        example = split.source[place]
        image = self.plan.images(example.image, example.name)
        return replace(example, image=image, name=self.plan.own_name(example.name))

    def _refuse(self, error: BadImage) -> dict[str, str]:
        name = self.plan.own_name(error.name)
        if not self.skip_bad:
            raise RunFailed(
                f"{error.name} can't be used: {error.why} "
                "(mend or remove it, or leave such images out with --on-bad-image=skip)"
            ) from error
        return {"name": name, "why": error.why}


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns what a full or lost disk raises into one clear failure."""
    try:
        yield
    except OSError as e:
        raise cannot_write(path, e.strerror or str(e)) from e
    except RuntimeError as e:  # array_record's kind
        raise cannot_write(path, files.line(e)) from e


def _sync(path: Path) -> None:
    """Has a file or folder reach the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _check_skipped(found: dict[tuple[str, int], dict[str, Any]], skip_bad: bool) -> None:
    skipped = [image for entry in found.values() for image in entry["skipped"]]
    if skipped and not skip_bad:
        raise UsageError(
            f"on_bad_image: skip there, error here: {len(skipped)} images were left out before, "
            f"such as {skipped[0]['name']}: {skipped[0]['why']}",
            "give --on-bad-image=skip again, or another DESTINATION",
        )


def _entry(split: SplitPlan, plan: Plan, found: dict[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    """The manifest's entry of a split. RunFailed when nothing of it was left."""
    shards = [found[split.name, index] for index in range(split.num_shards)]
    skipped = [image for shard in shards for image in shard["skipped"]]
    for image in skipped[:_SHOWN]:
        _log.warning("skipped %s: %s", image["name"], image["why"])
    if len(skipped) > _SHOWN:
        _log.warning("skipped %d more, which manifest.json names", len(skipped) - _SHOWN)
    count = sum(shard["count"] for shard in shards)
    if not count:
        raise RunFailed(f"none of the {len(skipped)} images of {split.name} can be used (check the source)")
    counts = np.zeros(len(plan.classes), np.int64)
    for shard in shards:
        for label, number in shard["class_counts"]:
            counts[label] += number
    return {
        "count": count,
        "order": CONTIGUOUS,
        "multi_label": any(shard["multi_label"] for shard in shards),
        "shards": [
            {"file": shard_name(i, split.num_shards)} | {key: s[key] for key in ("count", "bytes", "sha256")}
            for i, s in enumerate(shards)
        ],
        "skipped": skipped,
        "class_counts": counts.tolist(),
    }
