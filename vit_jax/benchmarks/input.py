"""Times the input pipeline, from files to host batches, beside OpenCV's bare decode and, if installed, tf.data.

    python -m vit_jax.bench input
    python -m vit_jax.bench input folder:/data/flowers@train --preprocess='decode|inception_crop(224)|flip_lr'
    python -m vit_jax.bench input --augment                                   # what each augmentation costs
    python -m vit_jax.bench input --augment 'randaug(2,10)' 'randaug(2,20)|random_erasing'

What is timed is what `train` runs: `vit_jax.data.pipeline`, threads and all; set-up is left out. Candidates take
turns over the same images; figures are medians, ± half the distance of the quartiles. Without SOURCE, JPEGs of
500x375 pixels are made in a temporary folder.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from vit_jax import cli
from vit_jax.benchmarks import augment, measure, tf_peer
from vit_jax.benchmarks.jpegs import make_jpegs
from vit_jax.data import pipeline, rows
from vit_jax.data.ops import InceptionCrop, Resize
from vit_jax.data.order import example_index, example_rng
from vit_jax.data.preprocess import Preprocess, parse
from vit_jax.data.sources import Source, open_source
from vit_jax.errors import UsageError

_DEFAULT = "decode|inception_crop(224)|flip_lr"
_MADE = 64  # pictures in the temporary folder; a turn goes over them several times
_SEED = 0
_COLUMNS = {
    "candidate": "candidate",
    "cpu_ms": "CPU ms/img",
    "noise": "±",
    "img_per_sec": "img/s",
    "ratio": "vs decode",
}


def parser() -> cli.Parser:
    """The command's flags."""
    p = cli.Parser("python -m vit_jax.bench input", __doc__)
    p.add_argument(
        "source", nargs="?", help="KIND:LOCATION[@SPLIT] as in the config, or a folder (default: made JPEGs)"
    )
    p.add_argument(
        "--preprocess", help=f"the preprocessing string (default: {_DEFAULT}; with --config: its own)"
    )
    p.add_argument(
        "--augment",
        nargs="*",
        metavar="STEPS",
        help="compare these steps instead (default: all augmentations)",
    )
    p.add_argument("--images", type=int, default=256, help="images a turn (default: 256)")
    p.add_argument("--batch", type=int, default=64, help="images a batch (default: 64)")
    p.add_argument("--prefetch", type=int, help="images held ahead (default: data.prefetch_examples)")
    p.add_argument("--threads", type=int, help="reader threads (default: data.num_threads of the config)")
    p.add_argument("--repeats", type=int, default=5, help="turns of every candidate (default: 5)")
    p.add_argument("--json", action="store_true", help="print only a JSON object")
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark and prints its tables; returns the exit code.

    Raises:
      UsageError: refused before any work.
    """
    with_config = any(word.split("=", 1)[0] == "--config" for word in argv)
    parsed = cli.parse(parser(), list(argv) if with_config else ["--config=base", *argv])
    flags, data = parsed.flags, parsed.config.data
    for name, value in (("threads", pipeline.reader_threads(data.num_threads)),
                        ("prefetch", data.prefetch_examples),
                        ("preprocess", data.preprocess_train if with_config else _DEFAULT),
                        ("source", data.train if with_config else None)):  # fmt: skip
        if getattr(flags, name) is None:
            setattr(flags, name, value)
    _check(flags)
    preprocess = parse(flags.preprocess)
    steps = augment.programs(flags.augment or ())
    with contextlib.ExitStack() as stack:
        spec = flags.source
        if spec is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            make_jpegs(Path(folder, "all"), min(_MADE, flags.images))
            spec = f"folder:{folder}/all"
        elif os.path.isdir(spec):
            spec = f"folder:{spec}"
        source = open_source(spec, default_split="train")
        shapes = rows.probe(source, preprocess, _SEED, None)
        stack.enter_context(cli.work())
        if flags.augment is None:
            result = _bench(source, preprocess, shapes, flags)
        else:
            result = augment.compare(source, steps, flags, _SEED)
    if flags.json:
        print(json.dumps(result, indent=1))
    elif flags.augment is not None:
        augment.show(result, source, flags)
    else:
        _print(result, flags)
    return 0


def _check(flags: argparse.Namespace) -> None:
    for name in ("images", "batch", "threads", "prefetch", "repeats"):
        value = getattr(flags, name)
        if value < 1:
            raise UsageError(f"--{name} is {value}", "give at least 1")


def _bench(source: Source, preprocess: Preprocess, shapes: rows.Shapes, flags: argparse.Namespace) -> dict:
    """The rows of the two tables, and the settings they hold for."""
    batches = max(1, flags.images // flags.batch)
    images = batches * flags.batch
    order = example_index(_SEED, np.arange(images), len(source))
    files = _files(source, order)
    turns: dict[str, Callable[[], None]] = {
        "pipeline": lambda: _pipeline(source, preprocess, shapes, batches, flags)
    }
    absent = {}
    if files:
        turns["decode"] = lambda: _decode(files)
    else:
        absent["decode"] = "the source holds arrays"
    why = tf_peer.missing() or (None if files else "the source holds arrays")
    if why is None and flags.preprocess != _DEFAULT:
        why = f"compares {_DEFAULT} only"
    if why is None and not all(data.startswith(b"\xff\xd8") for data in files):
        why = "not all files are JPEGs"
    if why is None:
        size = preprocess.output_size[0]
        turns["tf.data"] = tf_peer.tf_call(files, size=size, threads=flags.threads, batch=flags.batch)
    else:
        absent["tf.data"] = why
    for turn in turns.values():  # caches, thread pools, graphs
        turn()
    parts: list[dict[str, float]] = []
    turns["stages"] = lambda: parts.append(_stages(source, preprocess, order))
    costs = measure.rounds(turns, flags.repeats)
    return {
        "preprocess": flags.preprocess,
        "source": f"{source.spec}@{source.split}",
        "images": images,
        "batch": flags.batch,
        "threads": flags.threads,
        "bytes_per_image": float(np.mean([len(data) for data in files])) if files else None,
        "candidates": _candidate_rows({n: c for n, c in costs.items() if n != "stages"}, images),
        "stages": _stage_rows(parts, costs["pipeline"], images),
        "absent": absent,
    }


def _candidate_rows(costs: dict[str, list[measure.Cost]], images: int) -> list[dict[str, Any]]:
    out = []
    for name, turns in costs.items():
        cpu = [c.cpu / images for c in turns]
        ratio = None
        if "decode" in costs and name != "decode":
            ratio = measure.median([c.cpu / d.cpu for c, d in zip(turns, costs["decode"], strict=True)])
        out.append(
            {
                "candidate": name,
                "cpu_ms": 1e3 * measure.median(cpu),
                "noise": measure.spread(cpu),
                "img_per_sec": images / measure.median([c.wall for c in turns]),
                "ratio": ratio,
            }
        )
    return out


def _stage_rows(
    parts: list[dict[str, float]], pipeline_costs: list[measure.Cost], images: int
) -> list[dict[str, Any]]:
    """Milliseconds and share of the whole pipeline by stage; `rest` is what no stage accounts for."""
    whole = 1e3 * measure.median([c.cpu / images for c in pipeline_costs])
    ms = {name: 1e3 * measure.median([part[name] for part in parts]) / images for name in parts[0]}
    ms["rest"] = whole - sum(ms.values())
    return [{"stage": name, "cpu_ms": value, "share": value / whole} for name, value in ms.items()]


def _files(source: Source, order: np.ndarray) -> list[bytes]:
    """The encoded images at `order`, read once each; empty if the source holds arrays."""
    held = {int(i): source[int(i)].image for i in np.unique(order)}
    if not all(isinstance(image, bytes) for image in held.values()):
        return []
    return [held[int(i)] for i in order]


def _pipeline(
    source: Source, preprocess: Preprocess, shapes: rows.Shapes, batches: int, flags: argparse.Namespace
) -> None:
    """Takes `batches` training batches, and no work is done for more."""
    reading = pipeline.Reading(
        num_threads=flags.threads, prefetch_buffer=flags.prefetch, num_workers=0, on_bad_image="error"
    )
    made = rows.Rows(
        source, preprocess, shapes, seed=_SEED, global_batch=flags.batch, rows=np.arange(flags.batch),
        start_step=0, num_steps=batches, num_workers=0, chunk=reading.chunk,
    )  # fmt: skip
    with pipeline.HostBatches(made, shapes, reading, num_steps=batches) as iterator:
        for _ in iterator:
            pass


def _decode(files: list[bytes]) -> None:
    for data in files:
        cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)


def _stages(source: Source, preprocess: Preprocess, order: np.ndarray) -> dict[str, float]:
    """CPU seconds by stage for one pass over `order` in this thread: read, rng, decode, and every step."""
    steps = list(_steps(preprocess))
    spent = dict.fromkeys(["read", "rng", "decode", *(name for name, _ in steps)], 0.0)
    for position, index in enumerate(order):
        clock = _Clock(spent)
        example = source[int(index)]
        clock.book("read")
        rng = example_rng(_SEED, position) if preprocess.random else None
        clock.book("rng")
        image = preprocess.load(example.image, example.name)
        clock.book("decode")
        for name, step in steps:
            image = step(image, rng)
            clock.book(name)
    return spent


class _Clock:
    """Books this thread's CPU time since the last call."""

    def __init__(self, spent: dict[str, float]) -> None:
        self._spent, self._last = spent, time.thread_time()

    def book(self, name: str) -> None:
        now = time.thread_time()
        self._spent[name] += now - self._last
        self._last = now


def _steps(preprocess: Preprocess) -> Iterator[tuple[str, Callable[..., np.ndarray]]]:
    """The steps by name; an Inception crop as its two halves, crop and resize."""
    for op in preprocess.ops:
        if isinstance(op, InceptionCrop) and op.size is not None:
            yield "crop", dataclasses.replace(op, size=None)
            whole = Resize(op.size, op.method, op.antialias)
            yield "resize", lambda image, _rng, step=whole: step(image)
        elif op.random:
            yield type(op).__name__, op
        else:
            yield type(op).__name__, lambda image, _rng, step=op: step(image)


def _print(result: dict, flags: argparse.Namespace) -> None:
    weight = "" if result["bytes_per_image"] is None else f", {result['bytes_per_image'] / 1e3:.0f} kB a file"
    print(f"{result['source']}{weight}; {result['images']} images a turn in batches of {result['batch']}, "
          f"{result['threads']} threads, {flags.repeats} turns\n{result['preprocess']}\n")  # fmt: skip
    candidates = [{**row, "noise": f"{100 * row['noise']:.1f} %"} for row in result["candidates"]]
    print(measure.table(candidates, _COLUMNS))
    stages = [{**row, "share": f"{100 * row['share']:.0f} %"} for row in result["stages"]]
    print("\n" + measure.table(stages, {"stage": "stage", "cpu_ms": "CPU ms/img", "share": "share"}))
    for name, why in result["absent"].items():
        print(f"\n{name}: absent ({why})")
