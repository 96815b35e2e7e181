"""Makes a data set of ArrayRecord shards, which training reads at random, of images in any layout.

    python -m vit_jax.prepare photos/ prepared/                                  # SPLIT/CLASS/ or CLASS/ folders
    python -m vit_jax.prepare ILSVRC2012_img_train.tar prepared/                 # tars of a class, or class folders
    python -m vit_jax.prepare 'shards/train-{000..146}.tar' prepared/            # WebDataset
    python -m vit_jax.prepare photos/ prepared/ --labels=labels.csv              # PATH,CLASS;CLASS
    python -m vit_jax.prepare tfds:cifar10 prepared/ --split=train='train[:98%]' --split=val='train[98%:]'
    python -m vit_jax.prepare --verify --find-duplicates prepared/

SOURCE is KIND:LOCATION as in a config (folder:, idx:, cifar10:, arrayrecord:, tfds: ...), tar: or webdataset:, or a
path, which is looked at. Training reads the result as arrayrecord:DESTINATION@SPLIT. A command that was stopped or
killed goes on when it is started again, and the shards are then the same, byte for byte.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from vit_jax import cli
from vit_jax.data.arrayrecord import read_manifest
from vit_jax.distributed import EXIT_OK, EXIT_PREEMPTED
from vit_jax.errors import UsageError
from vit_jax.metrics import shows_bars
from vit_jax.preparing import duplicates, writing
from vit_jax.preparing.destination import Destination
from vit_jax.preparing.images import Images
from vit_jax.preparing.inputs import open_input
from vit_jax.preparing.plan import Plan, check_options, make_plan
from vit_jax.preparing.threads import Progress, Stopped
from vit_jax.preparing.verify import verify

_log = logging.getLogger("vit_jax.prepare")

_EXIT_INTERRUPTED = 130
_LOG_EVERY_S = 30.0


@dataclass(frozen=True)
class Watch:
    """How work is stopped and shown."""

    stop: threading.Event
    progress: Progress
    show: Callable[[], None]


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code: 0 done, 42 stopped by SIGTERM, 130 by Ctrl-C.

    Raises:
      UsageError: refused before anything is written.
      RunFailed: a bad image, a full disk; what is whole stays.
    """
    flags, words = cli.parse_words(_parser(), argv)
    if flags.threads < 1:
        raise UsageError(f"--threads={flags.threads}", "give at least 1")
    if not 0 <= flags.near_bits <= 16:
        raise UsageError(f"--near-bits={flags.near_bits}", "give 0 to 16 of the 128 bits")
    looks = flags.verify or flags.find_duplicates
    if len(words) == 1 and looks:
        return _look(words[0], flags)
    if len(words) != 2:
        raise UsageError(f"{len(words)} words given, not SOURCE DESTINATION", f"see {_parser().prog} --help")
    code = _prepare(*words, flags)
    return _look(words[1], flags) if code == EXIT_OK and looks else code


def _parser() -> cli.Parser:
    parser = cli.Parser("python -m vit_jax.prepare", __doc__)
    parser.usage = "%(prog)s SOURCE DESTINATION [options]"
    parser.add_argument(
        "--split", action="append", default=[], metavar="NAME[=EXPRESSION]",
        help="a split to write, from that of the source or an expression; may be repeated; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--classes", metavar="FILE|imagenet21k",
        help="class names in label order, one a line; or the 21,843 of ImageNet-21k; default: those of the source",
    )  # fmt: skip
    parser.add_argument(
        "--labels", metavar="FILE",
        help="CSV or JSON of PATH and CLASS, or classes, for a folder or archive without class folders",
    )  # fmt: skip
    parser.add_argument(
        "--multi-label",
        action="store_true",
        help="label vectors, though each image of --labels has one class",
    )
    parser.add_argument(
        "--on-bad-image", choices=("error", "skip"), default="error",
        help="an image that can't be read or decoded ends the command, or is left out and listed; default: error",
    )  # fmt: skip
    parser.add_argument("--no-check", action="store_true", help="don't decode images that stay as they are")
    parser.add_argument(
        "--resize-short-side", type=int, default=0, metavar="PX",
        help="images with a longer short side are averaged down to it and stored as JPEG",
    )  # fmt: skip
    parser.add_argument(
        "--jpeg-quality", type=int, default=95, metavar="Q", help="of resized images; default: 95"
    )
    parser.add_argument(
        "--exif", action="store_true", help="turn resized images as their EXIF orientation says"
    )
    parser.add_argument(
        "--shuffle", type=int, metavar="SEED",
        help="write every split in a random order, so that a part such as train[:98%%] has all classes",
    )  # fmt: skip
    parser.add_argument(
        "--verify", action="store_true",
        help="read the result again and compare it with its manifest; without SOURCE: of a data set that is there",
    )  # fmt: skip
    parser.add_argument(
        "--find-duplicates", action="store_true",
        help="list equal and nearly equal images, and what of a split is in another, in duplicates.json",
    )  # fmt: skip
    parser.add_argument(
        "--near-bits",
        type=int,
        default=8,
        metavar="N",
        help="of 128, in which nearly equal images differ; default: 8",
    )
    parser.add_argument(
        "--shards", type=int, metavar="N", help="of every split; default: one for 1000 images, 1024 at most"
    )
    parser.add_argument(
        "--threads", type=int, default=_cpus(), metavar="N", help="default: %(default)s, one a core"
    )
    return parser


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_apart(source: str, root: str) -> None:
    """A result inside its source would be part of it at the next start."""
    path = os.path.realpath(os.path.expanduser(source.partition(":")[2] or source))
    target = os.path.realpath(os.path.expanduser(root))
    if os.path.isdir(path) and os.path.commonpath([path, target]) == path:
        raise UsageError(f"{root} lies in the source {source}", "choose a DESTINATION beside it")


def _prepare(source: str, root: str, flags: Any) -> int:
    images = Images(
        short_side=flags.resize_short_side, jpeg_quality=flags.jpeg_quality, exif=flags.exif,
        check=not flags.no_check,
    )  # fmt: skip
    check_options(shards=flags.shards, images=images, shuffle=flags.shuffle)
    _check_apart(source, root)
    destination = Destination(root)
    try:
        given = open_input(
            source, destination.scratch, splits=flags.split, classes=flags.classes, labels=flags.labels,
            multi_label=flags.multi_label,
        )  # fmt: skip
        plan = make_plan(given, images, shards=flags.shards, shuffle=flags.shuffle)
        if not destination.begin(plan.made_from):
            print(f"{root} is finished already", flush=True)
            return EXIT_OK
        parts = [f"{s.name} {len(s.source)} images in {s.num_shards} shards" for s in plan.splits]
        _log.info("%s, %d classes", ", ".join(parts), len(plan.classes))
        with cli.work():
            return _watched(plan.num_examples, lambda watch: _write(plan, destination, flags, watch))
    finally:
        destination.release()


def _write(plan: Plan, destination: Destination, flags: Any, watch: Watch) -> None:
    splits = writing.write(
        plan, destination, threads=flags.threads, skip_bad=flags.on_bad_image == "skip", stop=watch.stop,
        progress=watch.progress, show=watch.show,
    )  # fmt: skip
    writing.write_out(plan, destination, splits)
    parts = [
        f"{name} {entry['count']} images in {len(entry['shards'])} shards"
        + (f" ({len(entry['skipped'])} skipped)" if entry["skipped"] else "")
        for name, entry in splits.items()
    ]
    print(f"done {destination.root}: {', '.join(parts)}, {len(plan.classes)} classes", flush=True)


def _look(root: str, flags: Any) -> int:
    """Looks at a data set that is there."""
    root = os.path.expanduser(root)
    manifest = read_manifest(root)
    count = sum(entry["count"] for entry in manifest["splits"].values())

    def check(watch: Watch) -> None:
        verify(
            root, manifest, threads=flags.threads, progress=watch.progress, show=watch.show, stop=watch.stop
        )
        print(f"verified {root}: {count} examples are as they were written", flush=True)

    def compare(watch: Watch) -> None:
        images = duplicates.look_at(
            root, manifest, threads=flags.threads, progress=watch.progress, show=watch.show, stop=watch.stop
        )
        found = duplicates.report(images, flags.near_bits)
        print(
            "\n".join([*duplicates.lines(found), f"wrote {duplicates.write_report(root, found)}"]), flush=True
        )

    code = EXIT_OK
    with cli.work():
        for wanted, work in ((flags.verify, check), (flags.find_duplicates, compare)):
            if wanted and code == EXIT_OK:
                code = _watched(count, work)
    return code


def _watched(total: int, work: Callable[[Watch], None]) -> int:
    """Does work of so many images, with a progress bar; returns the exit code."""
    stop, progress = threading.Event(), Progress(total)
    with _stopping(stop) as received, _shown(progress) as show:
        try:
            work(Watch(stop, progress, show))
        except Stopped:
            return _say_stopped(received[0])
    return EXIT_OK


def _say_stopped(number: int) -> int:
    """SIGTERM is a machine's word (launchers start 42 again), Ctrl-C a person's."""
    if number == signal.SIGTERM:
        print("preempted: finished shards are saved; the same command continues", flush=True)
        return EXIT_PREEMPTED
    print("error: interrupted (finished shards stay; the same command goes on)", file=sys.stderr, flush=True)
    return _EXIT_INTERRUPTED


@contextlib.contextmanager
def _stopping(stop: threading.Event) -> Iterator[list[int]]:
    """Sets `stop` on SIGTERM and SIGINT, whose number is noted; a second one acts as usual."""
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, _: object) -> None:
        received.append(number)
        stop.set()
        restore()

    for number in before:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        restore()


@contextlib.contextmanager
def _shown(progress: Progress) -> Iterator[Any]:
    """A function that shows how far the work is: a bar on a terminal, else a line every half minute."""
    began = said = time.monotonic()
    with tqdm(
        total=progress.total, unit="image", dynamic_ncols=True, disable=not shows_bars(sys.stderr)
    ) as bar:
        first: int | None = None  # done before this start

        def show() -> None:
            nonlocal said, first
            now, first = time.monotonic(), progress.done if first is None else first
            if not bar.disable:
                bar.update(progress.done - bar.n)
            elif now - said >= _LOG_EVERY_S:
                said = now
                rate = (progress.done - first) / (now - began)
                _log.info("%d of %d images, %.0f a second", progress.done, progress.total, rate)

        yield show


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
