"""Mixtures of data sets: one class map, labels by name, batches that depend on nothing but (seed, step)."""

import re

import cv2
import numpy as np
import pytest

from vit_jax.config import base_config
from vit_jax.data import mixture
from vit_jax.data.dataset import open_dataset
from vit_jax.data.pipeline import Reading, train_batches
from vit_jax.data.preprocess import parse
from vit_jax.data.source import Example, Source
from vit_jax.errors import UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Grey 8-pixel images: 12 of `cat` (level 200) and 5 of `3` (level 100), and a test split of cats."""
    root = tmp_path_factory.mktemp("mixed")
    for split, name, count, level in (
        ("train", "cat", 12, 200),
        ("train", "3", 5, 100),
        ("test", "cat", 3, 200),
    ):
        (root / split / name).mkdir(parents=True)
        for i in range(count):
            cv2.imwrite(str(root / split / name / f"{i}.png"), np.full((8, 8, 3), level, np.uint8))
    return root


def pairs(folder, digits="digits@train[:100]", weights=(3, 1)):
    return (digits, weights[0]), (f"folder:{folder}@train", weights[1])


def data(mixed, **changes):
    config = base_config().data
    config.train, config.mixture = "", mixed
    for key, value in changes.items():
        config[key] = value
    return open_dataset(config, seed=0, num_classes=None)


def test_classes_merge_by_name_and_labels_follow(folder):
    source = mixture.open_mixture(pairs(folder))
    assert source.classes == (*"0123456789", "cat")
    assert len(source) == 117
    examples = [source[i] for i in range(117)]
    assert [e.label for e in examples] == source.labels().tolist()
    assert source.labels()[100:].tolist() == [3] * 5 + [10] * 12
    assert all("/3/" in e.name for e in examples[100:105]) and "/cat/" in examples[116].name
    assert [source.name(i) for i in (0, 99, 100)] == [examples[i].name for i in (0, 99, 100)]
    assert source.place(99) == (0, 99) and source.place(100) == (1, 0)
    for wrong in (-1, 117):
        with pytest.raises(IndexError):
            source.place(wrong)


def test_the_first_source_gives_the_first_numbers(folder):
    source = mixture.open_mixture(pairs(folder)[::-1])
    assert source.classes == ("3", "cat", *"012456789")
    assert source.labels()[:17].tolist() == [0] * 5 + [1] * 12
    digits = mixture.open_mixture((("digits@train[:20]", 1),))
    names = [digits.classes[label] for label in digits.labels()]
    assert [source.classes[label] for label in source.labels()[17:37]] == names


def test_a_run_on_a_mixture(folder):
    found = data(pairs(folder), test=f"folder:{folder}@test", val="digits@test", repeats=2)
    facts = found.facts()
    assert (facts.num_examples, facts.num_classes, facts.image_shape) == (117, 11, (8, 8, 3))
    assert found.evals["test"][0].label == 10 and found.evals["val"].classes == found.classes
    ids = found.step_ids(0, 5, 16)
    assert ids["ids"][:8] == ids["ids"][8:] and ids["sources"][:8] == ids["sources"][8:]
    assert all(place < (100, 17)[number] for place, number in zip(ids["ids"], ids["sources"], strict=True))
    assert re.fullmatch(
        r"(digits@train\[:100\] \d+|folder:\S+@train \d+)(, |$)", found.named_ids(ids).split(", ")[0]
    )
    text = found.describe(16)
    assert "117 (digits@train[:100] 100 images, 75 % of the draws, 0.8775 passes in an epoch; folder:" in text
    assert "every image 2 times in a batch" in text


def test_batches_are_the_same_for_any_hosts_and_restarts(folder):
    source = mixture.open_mixture(pairs(folder))
    program = parse("decode|flip_lr")

    def batches(count, start=0, rows=tuple(range(8))):
        reading = Reading(num_threads=2, prefetch_buffer=8, num_workers=0, on_bad_image="error")
        with train_batches(
            source, program, reading, seed=1, global_batch=8, start_step=start, local_rows=np.array(rows),
            num_classes=11, order=source.order(),
        ) as made:  # fmt: skip
            return [next(made) for _ in range(count)]

    whole = batches(6)
    for batch in whole:
        cats = batch["label"] == 10
        assert np.all(batch["image"][cats] == 200) and np.all(batch["index"][cats] >= 105)
    again = batches(2, start=4, rows=(1, 2, 6))
    for a, b in zip(whole[4:], again, strict=True):
        for key, values in b.items():
            np.testing.assert_array_equal(a[key][[1, 2, 6]], values)


class Vectors(Source):
    """Images with label vectors over classes `3` and `dog`."""

    spec, split, classes = "fake:vectors", "train", ("3", "dog")

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return Example(np.zeros((8, 8, 3), np.uint8), np.array([1, index], np.float32), f"v/{index}")

    def memory_bytes(self):
        return 0


def test_label_vectors_map_by_name_too(folder, monkeypatch):
    source = mixture.Mixture([Vectors(), Vectors()], mixture.shares_of((1, 1)))
    other = mixture.Relabelled(Vectors(), ("cat", "dog", "3"))
    np.testing.assert_array_equal(other.labels(), [[0, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(other[1].label, [0, 1, 1])
    assert source.classes == ("3", "dog")
    monkeypatch.setattr(
        mixture, "open_mixture",
        lambda pairs: mixture.Mixture([mixture.open_source("digits", default_split="train"), Vectors()],
                                      mixture.shares_of((1, 1))),
    )  # fmt: skip
    with pytest.raises(
        UsageError, match="digits@train has one class number per image, fake:vectors@train has label"
    ):
        data(pairs(folder), test="")


@pytest.mark.parametrize(
    ("mixed", "changes", "says"),
    [
        (
            (("digits", 1),),
            {"train": "digits@train"},
            "data.train 'digits@train' and data.mixture are both set",
        ),
        ((("digits", 1), ("digits", 0)), {}, "the weight 0"),
        ((("digits", 1), "digits"), {}, "data.mixture has 'digits'"),
        ((("digits", 1), ("folder:/nowhere", 1)), {}, "/nowhere"),
        ((("digits", 1), ("digit", 1)), {}, "did you mean 'digits'"),
        ((("digits", 1), ("digits@dev", 1)), {}, "no split 'dev'"),
        ((("digits", 1),), {"test": "test"}, "the split 'test' has no source"),
    ],
)
def test_what_makes_no_mixture_is_refused(mixed, changes, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        data(mixed, **changes)


def test_images_of_two_sizes_are_refused_before_any_work(folder, tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "train" / "a" / "0.png"), np.zeros((9, 9, 3), np.uint8))
    mixed = (*pairs(folder), (f"folder:{tmp_path}", 1))
    with pytest.raises(
        UsageError, match=r"gives images \[8, 8, 3\] for digits.* and \[9, 9, 3\] for folder:"
    ):
        data(mixed, test="")
    resized = {"preprocess_train": "decode|resize(8)", "preprocess_eval": "decode|resize(8)"}
    assert data(mixed, test="", **resized).facts().num_classes == 12
