"""Draws what a Vision Transformer has learned and what it looks at: the ViT paper's figures (arXiv 2010.11929).

    python -m vit_jax.visualize --checkpoint=runs/ft --image=photo.jpg --output=figures
    python -m vit_jax.visualize --checkpoint=B_16.npz --field=image_size=384 --image=photos/ --output=figures

filters.png has the first principal components of the patch embedding (Figure 7, left), positions.png the similarity
of position embeddings (Figure 7, centre), attention_distance.png the mean attention distance of every head in
pixels, mean over the images (Figure 7, right, and 11), rollout_N_NAME.png the attention rollout of image N (Figures
6 and 14). numbers.npz holds what they show. stdout is one JSON line: the files, what the rollout follows back
(class token, or mean of the patches), and what was left out and why.

Without --image only what the parameters alone show is drawn. An image that can't be read is named on stderr, the
others are drawn, and the exit code is 1.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax import cli, inspection, trained, workdir
from vit_jax.distributed import EXIT_OK
from vit_jax.errors import RunFailed, UsageError
from vit_jax.predictor import Predictor

_log = logging.getLogger("vit_jax.visualize")  # by name: run as a command, __name__ is __main__


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code.

    Raises:
      UsageError: refused before any work.
      RunFailed: some images couldn't be read; the others are drawn.
    """
    flags, words = cli.parse_words(_parser(), argv)
    if words:
        raise UsageError(f"unexpected {words[0]!r}", "images are --image=FILE, several times if need be")
    paths = Predictor.expand(flags.image)
    model = trained.read(
        flags.checkpoint, subtree=flags.subtree, preprocess=flags.preprocess, batch_size=1,
        fields=cli.model_fields(flags.field), headless=True,
    )  # fmt: skip
    inspector = inspection.Inspector(model.model, model.params, model.mesh, model.facts)
    output = _folder(flags.output)
    with cli.work():
        images = _read(paths, model)
        files, left_out = _draw(inspector, images, output)
    found = {
        "checkpoint": flags.checkpoint,
        "files": files,
        "rollout_of": inspector.reads if images else None,
        "left_out": left_out,
    }
    print(json.dumps(workdir.plain(found)), flush=True)
    if unusable := len(paths) - len(images):
        raise RunFailed(f"{unusable} of {len(paths)} images couldn't be used (they are named above)")
    return EXIT_OK


def _parser() -> cli.Parser:
    parser = cli.Parser("python -m vit_jax.visualize", __doc__)
    parser.add_argument(
        "--checkpoint", required=True, help="RUN, RUN@STEP, RUN@best, or a file or folder of weights"
    )
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE|FOLDER",
        help="an image; may be given repeatedly",
    )
    parser.add_argument(
        "--output", default="figures", metavar="DIR", help="folder for the figures; default: figures"
    )
    parser.add_argument("--subtree", help="params | ema, or a part of a file; default: the parameters")
    parser.add_argument(
        "--preprocess", metavar="STRING", help="default: the checkpoint's data.preprocess_eval"
    )
    cli.add_fields(parser)
    return parser


def _folder(path: str) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as e:
        raise UsageError(f"can't write to {path}: {e.strerror}", "choose another --output") from e
    return folder


def _read(paths: Sequence[str], model: trained.Trained) -> list[tuple[str, np.ndarray]]:
    """(path, image as the model takes it) of each; what can't be used is named and left out."""
    images = []
    for path in paths:
        row = model.row(path, path)
        if isinstance(row, str):
            print(f"{path}: {row}", file=sys.stderr)
        else:
            images.append((path, row))
    return images


def _draw(
    inspector: inspection.Inspector, images: Sequence[tuple[str, np.ndarray]], output: Path
) -> tuple[list[str], dict[str, str]]:
    """Writes all figures and numbers.npz. Returns their names, and figure -> why it was left out."""
    from vit_jax import figures  # here: it loads matplotlib, which nothing that trains needs

    drawn: dict[str, Any] = {}
    learned = inspector.learned()
    left_out, numbers = dict(learned.left_out), {}
    if learned.filters is not None:
        drawn[inspection.FILTERS] = figures.draw_filters(learned.filters)
        numbers |= {"filters": learned.filters.images, "filters_variance": learned.filters.variance}
    if learned.similarity is not None:
        drawn[inspection.POSITIONS] = figures.draw_positions(learned.similarity)
        numbers["position_similarity"] = learned.similarity
    looks = []
    for path, image in images:
        looks.append(inspector.look(image))
        number, stem = len(looks), re.sub(r"[^A-Za-z0-9._-]+", "_", Path(path).stem)[:60]
        drawn[f"{inspection.ROLLOUT}_{number}_{stem}"] = figures.draw_rollout(
            image, looks[-1].rollout, title=f"{path} (rollout of the {inspector.reads})"
        )
        _log.info("%s: seen", path)
    if looks:
        distance = np.stack([look.distance for look in looks])
        drawn[inspection.DISTANCE] = figures.draw_distance(distance.mean(axis=0), num_images=len(looks))
        numbers |= {
            "images": np.array([path for path, _ in images]),
            "rollout": np.stack([look.rollout for look in looks]),
            "attention_distance": distance,
            "attention_distance_raw": np.stack([look.distance_raw for look in looks]),
        }
    else:
        left_out |= dict.fromkeys((inspection.DISTANCE, inspection.ROLLOUT), "no image was given or readable")
    for name, why in left_out.items():
        _log.warning("%s left out: %s", name, why)
    for name, figure in drawn.items():
        (output / f"{name}.png").write_bytes(figures.png(figure))
    np.savez(output / "numbers.npz", **numbers)
    return [str(output / f"{name}.png") for name in drawn] + [str(output / "numbers.npz")], left_out


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
