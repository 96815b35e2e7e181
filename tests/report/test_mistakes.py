"""The worst confusions, their examples, and pictures of them."""

import cv2
import numpy as np
import pytest

from vit_jax.data.preprocess import parse
from vit_jax.data.source import ClassMap, Example, Source
from vit_jax.data.source_memory import ArraySource
from vit_jax.report import mistakes

CONFUSION = np.array([[5, 2, 0], [1, 8, 1], [0, 2, 0]])


def test_pairs_in_order_of_count_then_of_share():
    assert mistakes.worst_pairs(CONFUSION) == [(2, 1), (0, 1), (1, 0), (1, 2)]
    assert mistakes.worst_pairs(CONFUSION, 1) == [(2, 1)]
    assert mistakes.worst_pairs(np.diag([3, 0, 4])) == []
    assert mistakes.worst_pairs(np.zeros((2, 2), int)) == []


def batches_of(labels, predictions, size, seen):
    """Batches whose logits say the predictions; padding has mask 0. Appends to `seen` what is asked for."""

    def batches():
        for first in range(0, len(labels), size):
            seen.append(first)
            part = slice(first, first + size)
            pad = (0, size - len(labels[part]))
            yield {
                "rows": np.pad(5.0 * np.eye(3, dtype=np.float32)[predictions[part]], (pad, (0, 0))),
                "label": np.pad(labels[part], pad),
                "mask": np.pad(np.ones(len(labels[part]), np.float32), pad),
            }

    return batches


def test_examples_are_the_places_of_the_mistakes():
    labels, predictions, seen = np.array([0, 2, 0, 1, 2, 2, 0]), np.array([0, 1, 1, 1, 1, 1, 2]), []
    batches = batches_of(labels, predictions, 3, seen)
    found = mistakes.find_examples([(2, 1), (0, 1)], batches, lambda _, batch: batch, None, most=2)
    sure = pytest.approx(np.exp(5) / (np.exp(5) + 2))
    assert found == {(2, 1): [(1, sure), (4, sure)], (0, 1): [(2, sure)]}
    assert seen == [0, 3, 6]


def test_the_pass_ends_when_all_are_found():
    labels, predictions, seen = np.zeros(40, int), np.ones(40, int), []
    found = mistakes.find_examples(
        [(0, 1)], batches_of(labels, predictions, 2, seen), lambda _, batch: batch, None, most=2
    )
    assert [place for place, _ in found[0, 1]] == [0, 1] and len(seen) < 5
    assert mistakes.find_examples([], None, None, None, most=2) == {}


def test_description_with_names_and_pictures():
    images = np.zeros((4, 8, 8, 3), np.uint8)
    source = ArraySource("made", "test", images, np.arange(4) % 3, ClassMap(("a", "b", "c"), None, "made"))
    program = parse("decode|value_range(-1, 1)")
    found = mistakes.describe(
        "test", source, program, ("a", "b", "c"), CONFUSION, {(0, 1): [(3, 0.514)], (2, 1): []}
    )
    first, second = found.pairs
    assert (first.label, first.prediction, first.count, first.of) == ("a", "b", 2, 7)
    assert (first.examples[0].alt, first.examples[0].caption) == ("a, taken for b", "51 % sure")
    assert second.examples == ()
    assert found.classes == (("c", 0.0, 2), ("a", 5 / 7, 7), ("b", 0.8, 10))
    right = mistakes.describe("test", source, program, ("a", "b"), np.diag([3, 0]), {})
    assert right.pairs == right.classes == ()


@pytest.mark.parametrize(
    ("shape", "kind", "size"),
    [
        ((8, 8, 3), "png", (112, 112)),
        ((300, 150, 3), "jpeg", (112, 56)),
        ((28, 28, 1), "png", (112, 112)),
        ((100, 80, 1), "jpeg", (100, 80)),
        ((1, 3000, 3), "jpeg", (1, 112)),
        ((60, 60, 4), "jpeg", (60, 60)),
    ],
)
def test_pictures_are_small_and_pixels_stay_pixels(shape, kind, size):
    image = np.zeros(shape, np.uint8)
    image[..., 0] = 200
    found = mistakes.encoded(image, "alt")
    decoded = cv2.imdecode(np.frombuffer(found.data, np.uint8), cv2.IMREAD_COLOR)
    assert (found.kind, decoded.shape[:2]) == (kind, size)
    if shape[-1] == 3:  # red stays red
        assert decoded[..., 2].mean() > 150 > 60 > decoded[..., 0].mean()


def test_an_image_that_cannot_be_read_has_no_picture():
    class Broken(Source):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return Example(b"nothing", 0, "broken")

        def memory_bytes(self):
            return 0

    assert mistakes.picture(Broken(), 0, parse("decode|value_range(-1, 1)"), "", "") is None
