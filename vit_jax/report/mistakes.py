"""What a classifier confuses, with images; and pictures of images small enough for a page."""

from collections.abc import Sequence

import cv2
import numpy as np

from vit_jax.data.decode import BadImage
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.source import Source
from vit_jax.evaluators.features import Batches, FeaturesStep, stream
from vit_jax.report.content import Confusion, Mistakes, Picture
from vit_jax.step import PyTree

PAIRS, EXAMPLES, CLASSES = 6, 4, 8
_SIDE = 112  # pixels of the longer side of a picture


def worst_pairs(confusion: np.ndarray, count: int = PAIRS) -> list[tuple[int, int]]:
    """(label, prediction) of the most frequent mistakes, the worst first; of equals the larger share of its label.

    Args:
      confusion: int64 [K, K], examples by label and prediction.
    """
    totals = confusion.sum(axis=1)
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    labels, predictions = np.nonzero(wrong)
    counts = wrong[labels, predictions]
    order = np.lexsort((predictions, labels, -counts / totals[labels], -counts))
    return [(int(labels[i]), int(predictions[i])) for i in order[:count]]


def find_examples(
    pairs: Sequence[tuple[int, int]], batches: Batches, logits_step: FeaturesStep, params: PyTree, most: int
) -> dict[tuple[int, int], list[tuple[int, float]]]:
    """Up to `most` examples of each pair: their place in the source and the probability of the wrong answer.

    One pass over the split, broken off when all are found. Collective.
    """
    found: dict[tuple[int, int], list[tuple[int, float]]] = {pair: [] for pair in pairs}
    if not found:
        return found
    for part in stream(batches, logits_step, params):
        best = part.rows.argmax(axis=1)
        for row in np.flatnonzero(best != part.labels):
            here = found.get((int(part.labels[row]), int(best[row])))
            if here is not None and len(here) < most:
                logits = part.rows[row].astype(np.float64)
                sure = float(1 / np.exp(logits - logits.max()).sum())
                here.append((int(part.index[row]), sure))
        if all(len(examples) == most for examples in found.values()):
            break
    return found


def describe(
    split: str,
    source: Source,
    program: Preprocess,
    names: Sequence[str],
    confusion: np.ndarray,
    examples: dict[tuple[int, int], list[tuple[int, float]]],
) -> Mistakes:
    """The mistakes with names and pictures.

    Args:
      names: of the classes, by index.
      confusion: int64 [K, K].
      examples: see find_examples; the order is that of the pairs.
    """
    totals, right = confusion.sum(axis=1), np.diag(confusion)
    pairs = []
    for (label, prediction), places in examples.items():
        pictures = []
        for place, sure in places:
            alt = f"{names[label]}, taken for {names[prediction]}"
            shown = picture(source, place, program, alt, f"{100 * sure:.0f} % sure")
            pictures += [shown] if shown is not None else []
        pairs.append(
            Confusion(
                names[label], names[prediction], int(confusion[label, prediction]), int(totals[label]),
                tuple(pictures),
            )
        )  # fmt: skip
    seen = np.flatnonzero(right < totals)
    shares = right[seen] / totals[seen]
    worst = seen[np.lexsort((seen, shares))][:CLASSES]
    classes = tuple((names[i], float(right[i] / totals[i]), int(totals[i])) for i in worst)
    return Mistakes(split, tuple(pairs), classes)


def picture(source: Source, place: int, program: Preprocess, alt: str, caption: str) -> Picture | None:
    """An example of a source as it is before any crop, small; None if it can't be read."""
    try:
        example = source[place]
        return encoded(program.load(example.image, example.name), alt, caption)
    except BadImage:
        return None


def encoded(image: np.ndarray, alt: str, caption: str = "") -> Picture:
    """A picture of an image uint8 [H, W, C]: scaled down as photos are, or up in whole pixels."""
    if image.shape[-1] not in (1, 3):
        image = image.mean(axis=-1, keepdims=True).astype(np.uint8)
    longer = max(image.shape[:2])
    if longer > _SIDE:
        size = [max(1, round(side * _SIDE / longer)) for side in image.shape[1::-1]]
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    elif longer <= _SIDE // 2:
        factor = _SIDE // longer
        image = image.repeat(factor, axis=0).repeat(factor, axis=1)
    image = image if image.ndim == 3 else image[..., None]
    pixels = image[..., ::-1] if image.shape[-1] == 3 else image
    kind, suffix, options = ("jpeg", ".jpg", [cv2.IMWRITE_JPEG_QUALITY, 85])
    if longer <= _SIDE // 2:
        kind, suffix, options = "png", ".png", []
    return Picture(
        cv2.imencode(suffix, np.ascontiguousarray(pixels), options)[1].tobytes(), kind, alt, caption
    )
