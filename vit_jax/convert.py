"""Converts weights from any supported format to another, and checks that the result computes the same.

    python -m vit_jax.convert runs/ft ft_timm --to=timm
    python -m vit_jax.convert B_16.npz b16.onnx --to=onnx
    python -m vit_jax.convert vit.safetensors vit.npz --to=npz --field=num_heads=12

SOURCE is a run (RUN, RUN@STEP, RUN@best), an .npz or .safetensors file, a folder, gs://… or hf://owner/repo.
"""

import dataclasses
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vit_jax import cli, export, pretrained, workdir
from vit_jax.data import preprocess
from vit_jax.data.ops import Resize
from vit_jax.distributed import EXIT_OK
from vit_jax.errors import UsageError, known_names
from vit_jax.formats import writing
from vit_jax.formats.resize import MODES
from vit_jax.formats.weights import Weights

_log = logging.getLogger("vit_jax.convert")

TARGETS = (*writing.FILES, *writing.FOLDERS, "onnx", "stablehlo")
# Largest difference of logits, relative to their largest value. A layout of weights is read back into the same
# numbers; other programs add up in another order.
TOLERANCE = {"onnx": 1e-4, "stablehlo": 1e-5}
_SAME_NUMBERS = 1e-6
# What marks a folder as the result of a conversion; nothing else is ever replaced.
_EXPORTS = (("config.json", "model.safetensors"), ("model.stablehlo", "metadata.json"))


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code.

    Raises:
      UsageError: refused before anything is written, also what the target can't express.
      RunFailed: the result doesn't compute the same; nothing is left at the destination.
    """
    flags = _parser().parse_args(list(argv))
    destination = Path(flags.destination)
    if flags.to not in TARGETS:
        raise UsageError(f"unknown format --to={flags.to}", known_names(flags.to, TARGETS))
    _check_destination(destination, flags.to, flags.overwrite)
    weights = _source(flags)
    _say_what_is_lost(weights, flags.to)
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=destination.absolute().parent) as folder:
        made = Path(folder) / destination.name
        _write(weights, made, flags.to)
        with cli.work():
            difference = _parity(weights, made, flags.to)
        _move(Path(folder), _results(destination, flags.to))
    count = sum(leaf.size for leaf in jax.tree.leaves(weights.params))
    print(
        f"wrote {destination} ({flags.to}): {count / 1e6:.2f} M parameters; logits equal those of "
        f"{weights.origin} to {difference[0]:.2g} absolute, {difference[1]:.2g} relative",
        flush=True,
    )
    return EXIT_OK


def _parser() -> cli.Parser:
    parser = cli.Parser("python -m vit_jax.convert", __doc__)
    parser.add_argument("source", metavar="SOURCE", help="what to convert, see above")
    parser.add_argument(
        "destination",
        metavar="DESTINATION",
        help="a new .npz or .onnx file; a new folder for timm, hf, stablehlo",
    )
    parser.add_argument("--to", required=True, metavar="FORMAT", help=" | ".join(TARGETS))
    parser.add_argument("--subtree", help="params (default) or ema of a run or training state, or a prefix")
    parser.add_argument("--image-size", metavar="PX|HxW", help="resizes the position table")
    parser.add_argument("--num-classes", type=int, metavar="K", help="another head of zeros; 0: none")
    parser.add_argument(
        "--posemb-resize", metavar="MODE", help=" | ".join(MODES) + "; default: as the source does"
    )
    parser.add_argument("--classes", metavar="FILE", help="class names, one a line")
    cli.add_fields(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace what is at the destination")
    return parser


def _source(flags: Any) -> Weights:
    hints = cli.model_fields(flags.field)
    if flags.image_size is not None:
        hints["image_size"] = _image_size(flags.image_size)
    weights = pretrained.read(flags.source, hints=hints, subtree=flags.subtree)
    changes = {name: hints[name] for name in ("image_size", "rep_size", "posemb_cls") if name in hints}
    if flags.num_classes is not None:
        changes["num_classes"] = flags.num_classes
    weights = pretrained.adapted(weights, changes, posemb_resize=flags.posemb_resize)
    if flags.classes is not None:
        classes = workdir.read_class_file(Path(flags.classes))
        weights = dataclasses.replace(weights, classes=classes)
    if weights.classes is not None and len(weights.classes) > weights.fields["num_classes"] > 0:
        raise UsageError(
            f"{len(weights.classes)} class names for {weights.fields['num_classes']} classes",
            "give as many names",
        )
    return weights


def _image_size(text: str) -> tuple[int, int]:
    parts = text.split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--image-size={text}", "give pixels, such as 384 or 224x448 (height x width)")
    return int(parts[0]), int(parts[-1])


def _check_destination(path: Path, to: str, overwrite: bool) -> None:
    suffix = ".npz" if to in writing.FILES else ".onnx" if to == "onnx" else None
    if suffix is not None and path.suffix != suffix:
        raise UsageError(f"{path} is to be an {suffix} file", f"name it {path.name}{suffix}")
    for result in _results(path, to):
        if result.exists() and not overwrite:
            raise UsageError(f"{result} exists already", "choose another destination, or give --overwrite")
    inside = {p.name for p in path.iterdir()} if path.is_dir() else set()
    if path.is_dir() and ("run.json" in inside or not any(set(names) <= inside for names in _EXPORTS)):
        raise UsageError(f"{path} is a folder that no conversion made", "choose another destination")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"no folder {path.absolute().parent}", "make it first")


def _say_what_is_lost(weights: Weights, to: str) -> None:
    """Warnings of what a user of the result must know, because it doesn't say."""
    if weights.loss == "sigmoid_xent" and to != "hf":
        _log.warning(
            "%s is trained with sigmoid_xent: take a sigmoid of its logits, not a softmax", weights.origin
        )
    if weights.preprocess is not None and to in writing.FOLDERS and not _squashes(weights.preprocess):
        _log.warning(
            "%s evaluates images by %r, which %s has no place for: its config says, squash to the model's size",
            weights.origin, weights.preprocess, to,
        )  # fmt: skip
    if to not in writing.FILES:
        return
    if set(weights.mean) != {127.5} or set(weights.std) != {127.5}:
        _log.warning("%s files don't tell how images are normalised; these want mean %s, std %s (of 0..255)", to,
                     _numbers(weights.mean), _numbers(weights.std))  # fmt: skip
    if weights.classes is not None:
        _log.warning(
            "%s files hold no class names; keep classes.txt, and give it to predict as --classes", to
        )


def _squashes(text: str) -> bool:
    """Whether a preprocessing does nothing but resize, if that."""
    return all(isinstance(op, Resize) for op in preprocess.parse(text).ops)


def _numbers(values: Sequence[float]) -> str:
    return "(" + ", ".join(f"{v:.6g}" for v in values) + ")"


def _write(weights: Weights, path: Path, to: str) -> None:
    try:
        if to in (*writing.FILES, *writing.FOLDERS):
            writing.write(weights, path, to)
            return
        model = weights.model()
        keywords = {"normalization": (weights.mean, weights.std), "class_names": weights.classes}
        if to == "onnx":
            export.write_onnx(model, weights.params, path, **keywords)
        else:
            export.write_stablehlo(model, weights.params, path, **keywords)
    except OSError as error:
        raise UsageError(
            f"can't write {path.name}: {error.strerror or error}", "check the destination"
        ) from None


def _parity(weights: Weights, path: Path, to: str) -> tuple[float, float]:
    """Largest absolute and relative difference of logits on random images.

    Raises:
      UsageError: larger than the format allows.
    """
    model = weights.model()
    height, width = model.image_size
    images = np.random.default_rng(0).uniform(-1, 1, (2, height, width, model.channels)).astype(np.float32)
    ours, features = _outputs(model, weights.params, images)
    if not np.isfinite(ours).all():
        raise UsageError(
            f"{weights.origin} gives logits that aren't finite: nothing to compare", "mend the weights"
        )
    if to == "onnx":
        theirs = export.read_back_logits_onnx(path, images)
    elif to == "stablehlo":
        theirs = np.asarray(export.load_stablehlo(path)(images))
    else:
        again = pretrained.read(path, hints=writing.hints_of(weights, to))
        theirs, read_back = _outputs(again.model(), again.params, images)
        # A head of zeros would hide what comes before it.
        ours, theirs = (np.concatenate(pair, axis=-1) for pair in ((ours, features), (theirs, read_back)))
    absolute, relative = export.parity(ours, theirs)
    allowed = TOLERANCE.get(to, _SAME_NUMBERS)
    if absolute and relative > allowed:
        raise UsageError(
            f"the {to} result differs from {weights.origin} by {absolute:.3g} ({relative:.3g} relative, allowed "
            f"{allowed:g}): nothing was written",
            "please report this",
        )
    return absolute, relative


def _outputs(model: Any, params: Any, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and what the head reads."""
    with jax.default_matmul_precision("highest"):
        logits, aux = jax.jit(model.apply)({"params": params}, images)
    return np.asarray(logits), np.asarray(aux["pre_logits"])


def _results(destination: Path, to: str) -> list[Path]:
    """What a conversion may leave: a large ONNX program keeps its weights in a file of their own."""
    return [destination, destination.with_name(destination.name + ".data")] if to == "onnx" else [destination]


def _move(folder: Path, results: list[Path]) -> None:
    """Puts the finished results in their places; what was there is gone only then."""
    replaced = folder / "replaced"
    replaced.mkdir()
    for path in results:
        if path.exists():
            path.rename(replaced / path.name)
        if (folder / path.name).exists():
            (folder / path.name).rename(path)


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
