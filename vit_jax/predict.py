"""Names the classes of images with a trained run.

    python -m vit_jax.predict --checkpoint=runs/ft photo1.jpg photos/
    python -m vit_jax.predict --checkpoint=runs/ft@best --json --top=1 photos/ > answers.json

Folders are searched for images, those below them too. An image that can't be read is named on stderr, the others
are predicted all the same, and the exit code is 1.
"""

import contextlib
import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol, TextIO

from tqdm import tqdm

from vit_jax import cli, workdir
from vit_jax.distributed import EXIT_OK
from vit_jax.errors import RunFailed, UsageError
from vit_jax.metrics import shows_bars
from vit_jax.predictor import Prediction, Predictor


class Report(Protocol):
    """Writes the predictions of one image after the other."""

    def image(self, path: str, best: list[Prediction]) -> None: ...

    def end(self) -> None: ...


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code.

    Raises:
      UsageError: refused before any work.
      RunFailed: some inputs couldn't be read; the others are predicted.
    """
    flags, words = cli.parse_words(_parser(), argv)
    if not words:
        raise UsageError("no images given", "give files or folders: … photo1.jpg photos/")
    if flags.top < 1:
        raise UsageError(f"--top is {flags.top}", "give at least 1")
    paths = Predictor.expand(words)
    predictor = Predictor.from_checkpoint(
        flags.checkpoint, subtree=flags.subtree, classes=flags.classes, preprocess=flags.preprocess,
        batch_size=flags.batch, **cli.model_fields(flags.field),
    )  # fmt: skip
    unusable = 0
    with _opened(flags.output) as file, cli.work():
        report = REPORTS[flags.form](file, paths)
        with tqdm(
            total=len(paths), unit="image", dynamic_ncols=True, disable=not shows_bars(sys.stderr)
        ) as bar:
            for answer in predictor.stream(paths):
                if answer.logits is None:
                    unusable += 1
                    bar.write(f"{answer.name}: {answer.problem}", file=sys.stderr)
                else:
                    probabilities = predictor.probabilities(answer.logits)[None]
                    report.image(answer.name, predictor.top(probabilities, flags.top)[0])
                bar.update(1)
        report.end()
    if unusable:
        raise RunFailed(f"{unusable} of {len(paths)} images couldn't be used (they are named above)")
    return EXIT_OK


def _parser() -> cli.Parser:
    parser = cli.Parser("python -m vit_jax.predict", __doc__)
    parser.usage = "%(prog)s --checkpoint=RUN [options] IMAGE|FOLDER …"
    parser.add_argument(
        "--checkpoint", required=True, help="RUN, RUN@STEP, RUN@best, or a file or folder of weights"
    )
    parser.add_argument("--top", type=int, default=5, help="classes shown per image; default: 5")
    form = parser.add_mutually_exclusive_group()
    for name in REPORTS:
        form.add_argument(
            f"--{name}", dest="form", action="store_const", const=name, default="table",
            help=REPORTS[name].__doc__,
        )  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="write there instead of to stdout")
    parser.add_argument(
        "--batch", type=_batch, default=32, metavar="N|eval",
        help="images computed at once; eval: as many as the run's evaluation, for the same bits; default: 32",
    )  # fmt: skip
    parser.add_argument("--subtree", help="params | ema; default: params")
    cli.add_fields(parser)
    parser.add_argument("--classes", metavar="FILE", help="class names, one a line; default: the run's own")
    parser.add_argument("--preprocess", metavar="STRING", help="default: the run's data.preprocess_eval")
    return parser


def _batch(text: str) -> int | None:
    return None if text == "eval" else int(text)


@contextlib.contextmanager
def _opened(path: str | None) -> Iterator[TextIO]:
    """The file, or stdout, for text in UTF-8 in which paths of any bytes come out as they are."""
    try:
        raw = sys.stdout.buffer if path is None else open(path, "wb")  # noqa: SIM115 - closed below
    except OSError as e:
        raise UsageError(f"can't write {path}: {e.strerror}", "choose another --output") from e
    text = io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape", newline="", write_through=True)
    try:
        yield text
    finally:
        text.detach()
        raw.flush() if path is None else raw.close()


class Table:
    """aligned columns, for reading (the default)"""

    def __init__(self, file: TextIO, paths: Sequence[str]) -> None:
        self._file = file
        self._width = max(map(len, ["path", *paths]))
        print(f"{'path':<{self._width}}  probability  class", file=file)

    def image(self, path: str, best: list[Prediction]) -> None:
        for found in best:
            print(f"{path:<{self._width}}  {found.probability:11.4f}  {found.name}", file=self._file)

    def end(self) -> None:
        self._file.flush()


class Csv:
    """a line per image and class: path,rank,class,index,probability"""

    def __init__(self, file: TextIO, paths: Sequence[str]) -> None:
        del paths
        self._writer = csv.writer(file, lineterminator="\n")
        self._writer.writerow(["path", "rank", "class", "index", "probability"])

    def image(self, path: str, best: list[Prediction]) -> None:
        for rank, found in enumerate(best, 1):
            self._writer.writerow([path, rank, found.name, found.index, found.probability])

    def end(self) -> None:
        """Every line is written already."""


class Json:
    """one list of {path, predictions: [{class, index, probability}]}"""

    def __init__(self, file: TextIO, paths: Sequence[str]) -> None:
        del paths
        self._file = file
        self._before = "["

    def image(self, path: str, best: list[Prediction]) -> None:
        found = [{"class": p.name, "index": p.index, "probability": p.probability} for p in best]
        entry = workdir.plain({"path": path, "predictions": found})  # NaN, of a broken model, becomes null
        try:
            path.encode()
            readable = True
        except UnicodeEncodeError:  # JSON has to be UTF-8; \udcXX stands for a byte that isn't
            readable = False
        text = json.dumps(entry, ensure_ascii=not readable, allow_nan=False)
        self._file.write(f"{self._before}\n{text}")
        self._before = ","

    def end(self) -> None:
        self._file.write("[]\n" if self._before == "[" else "\n]\n")


REPORTS: dict[str, type[Report]] = {"table": Table, "csv": Csv, "json": Json}


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
