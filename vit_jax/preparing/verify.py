"""Reads a whole data set again and compares it with its manifest."""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from array_record.python import array_record_module

from vit_jax import files
from vit_jax.data.arrayrecord import decode_record
from vit_jax.errors import RunFailed
from vit_jax.preparing.threads import Progress, as_they_end

_AT_ONCE = 256  # records read by one call


class Damaged(RunFailed):
    """Files that aren't what was written."""


def verify(
    root: str, manifest: dict[str, Any], *, threads: int, progress: Progress, show: Callable[[], None],
    stop: threading.Event,
) -> None:  # fmt: skip
    """Compares size, digest, number of records and labels of every shard, and the classes of every split.

    Raises:
      Damaged: the first line names the first bad file, the others follow.
    """
    jobs = [
        (split, shard, Path(root) / split / shard["file"])
        for split, entry in manifest["splits"].items()
        for shard in entry["shards"]
    ]
    num_classes = len(manifest["classes"])
    with ThreadPoolExecutor(threads) as pool:
        futures = {pool.submit(_check, path, shard, num_classes, stop): shard for _, shard, path in jobs}
        for future in as_they_end(list(futures), stop, show):
            progress.add(futures[future]["count"])
    counts: dict[str, Counter[int]] = {split: Counter() for split in manifest["splits"]}
    problems = []
    for (split, _, path), future in zip(jobs, futures, strict=True):
        why, found = future.result()
        counts[split] += found
        if why:
            problems.append(f"{path}: {why}")
    if not problems:
        totals = [_totals(split, entry, counts[split]) for split, entry in manifest["splits"].items()]
        problems = [line for line in totals if line]
    if problems:
        first, *more = problems
        raise Damaged(
            f"{first}{f' (and {len(more)} more, above)' if more else ''} "
            f"(remove {root} and prepare it again, or copy it again)" + "".join(f"\n{line}" for line in more)
        )


def _check(
    path: Path, shard: dict[str, Any], num_classes: int, stop: threading.Event
) -> tuple[str, Counter[int]]:
    """(what is wrong with a shard, if anything; how often each class occurs in it)."""
    found: Counter[int] = Counter()
    if not path.is_file():
        return "the file is missing", found
    size = path.stat().st_size
    if size != shard.get("bytes", size):
        return f"{size} bytes, the manifest says {shard['bytes']}", found
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != shard.get("sha256", digest):
            return "its content was changed: another SHA-256 than the manifest's", found
        reader = array_record_module.ArrayRecordReader(str(path))
        count = reader.num_records()
        if count != shard["count"]:
            return f"{count} records, the manifest says {shard['count']}", found
        for start in range(0, count, _AT_ONCE):
            if stop.is_set():
                return "", found
            for record in reader.read(start, min(start + _AT_ONCE, count)):
                label = decode_record(record)[1]
                found.update(label if isinstance(label, list) else [label])
    except (OSError, RuntimeError, ValueError, KeyError) as e:
        return f"can't be read: {files.line(e)}", found
    beyond = [label for label in found if not 0 <= label < num_classes]
    return (f"label {beyond[0]}, the classes are 0 to {num_classes - 1}" if beyond else ""), found


def _totals(split: str, entry: dict[str, Any], found: Counter[int]) -> str:
    """What is wrong with the sums of a split, if anything."""
    count = sum(shard["count"] for shard in entry["shards"])
    if count != entry["count"]:
        return f"manifest.json: split {split} has {entry['count']} examples, its shards {count}"
    wrong = [i for i, n in enumerate(entry["class_counts"]) if found[i] != n]
    if wrong:
        i = wrong[0]
        return (
            f"manifest.json: split {split} has {entry['class_counts'][i]} of class {i}, its shards {found[i]}"
        )
    return ""
