"""Finds images that are in a data set more than once, and those of a test split that training has seen.

Exact: equal pixels, whatever the files. Near: two small difference hashes (each pixel of an 8 x 8 gray miniature
brighter than the one to its right, and than the one below) that differ in few of 128 bits, and colours that agree
in an 8 x 8 miniature: the same picture resized, recompressed or slightly recoloured. The hash alone takes photos
of one studio for each other. Ten lines of our own: `imagehash` would bring PyWavelets along.
"""

import hashlib
import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from array_record.python import array_record_module

from vit_jax.data.arrayrecord import decode_record
from vit_jax.data.decode import BadImage, decode_image, to_channels
from vit_jax.errors import RunFailed
from vit_jax.preparing.threads import Progress, as_they_end

REPORT = "duplicates.json"
_BITS = 128
# Fewer set or unset bits: (nearly) one colour, which says nothing about the picture.
_FLAT = 16
# Mean difference of the colours of two miniatures, their own means taken off: of copies at JPEG quality 50, at half
# the size and at 0.9 times the contrast at most 7.7 (800 photographs), of different pictures that the hash took for
# one at least 8.5 (34 pairs of shirts).
_COLOUR_GAP = 8.0


@dataclass(frozen=True)
class Image:
    """One image of a data set.

    Attributes:
      split, name: which.
      label: class index, or indices.
      digest: of its pixels.
      bits: difference hash, uint8 [16]; None: too flat to compare.
      colours: miniature, uint8 [8, 8, 3].
    """

    split: str
    name: str
    label: int | tuple[int, ...]
    digest: bytes
    bits: bytes | None
    colours: bytes

    def like(self, other: "Image") -> bool:
        """Whether the colours agree."""
        gap = _centred(self.colours) - _centred(other.colours)
        return float(np.abs(gap).mean()) <= _COLOUR_GAP


def miniature(image: np.ndarray) -> bytes:
    """Colours of an image uint8 [H, W, C], uint8 [8, 8, 3]."""
    return cv2.resize(to_channels(image, 3), (8, 8), interpolation=cv2.INTER_AREA).tobytes()


def _centred(colours: bytes) -> np.ndarray:
    values = np.frombuffer(colours, np.uint8).reshape(64, 3).astype(np.float32)
    return values - values.mean(axis=0, keepdims=True)


def difference_hash(image: np.ndarray) -> bytes | None:
    """128 bits of an image uint8 [H, W, C]; None if it is flat."""
    gray = to_channels(image, 1)[:, :, 0]
    across = cv2.resize(gray, (9, 8), interpolation=cv2.INTER_AREA)
    down = cv2.resize(gray, (8, 9), interpolation=cv2.INTER_AREA)
    bits = np.concatenate([(across[:, :-1] > across[:, 1:]).ravel(), (down[:-1] > down[1:]).ravel()])
    if not _FLAT <= bits.sum() <= _BITS - _FLAT:
        return None
    return np.packbits(bits).tobytes()


def near_pairs(hashes: np.ndarray, distance: int) -> Iterator[tuple[int, int]]:
    """Pairs (i, j), i < j, of different hashes uint8 [n, 16] that differ in at most `distance` bits.

    Of distance + 1 bands of the bits one must be equal in such a pair, so only those are compared that share one.
    """
    bits = np.unpackbits(hashes, axis=1)
    seen: set[tuple[int, int]] = set()
    for band in np.array_split(np.arange(_BITS), distance + 1):
        keys = np.packbits(bits[:, band], axis=1)
        order = np.lexsort(keys.T)
        changes = np.flatnonzero((keys[order[1:]] != keys[order[:-1]]).any(axis=1)) + 1
        for group in np.split(order, changes):
            for place in range(len(group) - 1):
                one, others = group[place], group[place + 1 :]
                apart = np.bitwise_count(hashes[others] ^ hashes[one]).sum(axis=1)
                for other in others[apart <= distance]:
                    pair = (min(int(one), int(other)), max(int(one), int(other)))
                    if pair not in seen:
                        seen.add(pair)
                        yield pair


def look_at(
    root: str, manifest: dict[str, Any], *, threads: int, progress: Progress, show: Callable[[], None],
    stop: threading.Event,
) -> list[Image]:  # fmt: skip
    """All images of a data set, in order.

    Raises:
      RunFailed: an image or shard can't be read.
    """
    jobs = [
        (split, Path(root) / split / shard["file"])
        for split, entry in manifest["splits"].items()
        for shard in entry["shards"]
    ]
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(_shard, split, path, progress, stop) for split, path in jobs]
        for _ in as_they_end(futures, stop, show):
            pass
    return [image for future in futures for image in future.result()]


def report(images: Sequence[Image], distance: int) -> dict[str, Any]:
    """Groups of images that are equal, or nearly.

    Returns:
      {"exact": [group], "near": [group], "distance": bits, "summary": {...}}; a group is a list of
      {"split", "name", "label"}. `near` has one image of each exact group.
    """
    exact: dict[bytes, list[Image]] = defaultdict(list)
    for image in images:
        exact[image.digest].append(image)
    groups = [group for group in exact.values() if len(group) > 1]
    firsts = [group[0] for group in exact.values() if group[0].bits is not None]
    by_hash: dict[bytes, list[int]] = defaultdict(list)
    for i, image in enumerate(firsts):
        by_hash[image.bits].append(i)
    parent = list(range(len(firsts)))

    def top(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def join(members: Sequence[int], others: Sequence[int]) -> None:
        for i in members:
            for j in others:
                if i != j and top(i) != top(j) and firsts[i].like(firsts[j]):
                    parent[top(j)] = top(i)

    for members in by_hash.values():
        join(members, members)
    if len(by_hash) > 1:
        keys = list(by_hash)
        hashes = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)
        for i, j in near_pairs(hashes, distance):
            join(by_hash[keys[i]], by_hash[keys[j]])
    near: dict[int, list[Image]] = defaultdict(list)
    for i, image in enumerate(firsts):
        near[top(i)].append(image)
    close = [group for group in near.values() if len(group) > 1]
    return {
        "exact": [_plain(group) for group in groups],
        "near": [_plain(group) for group in close],
        "distance": distance,
        "summary": {"images": len(images), "exact": _summary(groups), "near": _summary(close)},
    }


def write_report(root: str, found: dict[str, Any]) -> str:
    """Writes it beside the manifest; returns its path."""
    path = os.path.join(root, REPORT)
    try:
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(found, file, ensure_ascii=False, indent=1)
    except OSError as e:
        raise RunFailed(f"can't write {path}: {e.strerror} (mend that)") from e
    return path


def lines(found: dict[str, Any]) -> Iterator[str]:
    """What is printed."""
    for kind in ("exact", "near"):
        part = found["summary"][kind]
        how = (
            "have the pixels of"
            if kind == "exact"
            else f"differ in at most {found['distance']} of 128 bits from"
        )
        several = f"{part['other_label']} of them with several labels"
        yield f"{kind}: {part['images']} images in {part['groups']} groups, {several}"
        for pair, count in part["leaks"].items():
            test, train = pair.split(" in ")
            yield f"{kind}: {count} images of {test} {how} one of {train}"


def _shard(split: str, path: Path, progress: Progress, stop: threading.Event) -> list[Image]:
    found = []
    try:
        reader = array_record_module.ArrayRecordReader(str(path))
        for i in range(reader.num_records()):
            if stop.is_set():
                break
            image, label, name = decode_record(reader.read([i])[0])
            pixels = image if isinstance(image, np.ndarray) else decode_image(image, name=name)
            digest = hashlib.sha256(
                repr(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes()
            ).digest()[:16]
            own = tuple(label) if isinstance(label, list) else label
            found.append(Image(split, name, own, digest, difference_hash(pixels), miniature(pixels)))
            progress.add(1)
    except (OSError, RuntimeError, ValueError, KeyError) as e:
        why = f"{e.name}: {e.why}" if isinstance(e, BadImage) else str(e)
        raise RunFailed(f"{path} can't be read: {why} (--verify names all damaged shards)") from e
    return found


def _plain(group: Sequence[Image]) -> list[dict[str, Any]]:
    return [{"split": image.split, "name": image.name, "label": image.label} for image in group]


def _summary(groups: Sequence[Sequence[Image]]) -> dict[str, Any]:
    """Counts, and for every two splits how many images of the later one have a copy in the earlier one."""
    leaks: dict[str, int] = defaultdict(int)
    for group in groups:
        splits = list(dict.fromkeys(image.split for image in group))
        for i, first in enumerate(splits):
            for later in splits[i + 1 :]:
                leaks[f"{later} in {first}"] += sum(image.split == later for image in group)
    return {
        "groups": len(groups),
        "images": sum(len(group) for group in groups),
        "other_label": sum(len({image.label for image in group}) > 1 for group in groups),
        "leaks": dict(leaks),
    }
