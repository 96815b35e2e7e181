"""Specs, the digits source, split views, and what every source owes."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vit_jax.data.sources import KINDS, open_source, parse_spec
from vit_jax.errors import UsageError


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("digits", ("digits", "", None)),
        ("digits@test[:5]", ("digits", "", "test[:5]")),
        ("folder:/data/a b", ("folder", "/data/a b", None)),
        ("folder:/data/me@home/x", ("folder", "/data/me@home/x", None)),
        ("folder:/data/me@home/x@train", ("folder", "/data/me@home/x", "train")),
        ("tfds:set/config:1.0.0@train[:98%]", ("tfds", "set/config:1.0.0", "train[:98%]")),
    ],
)
def test_parse_spec(spec, expected):
    assert parse_spec(spec) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digit", "unknown kind 'digit'.*did you mean 'digits'"),
        ("/data/flowers", "unknown kind '/data/flowers'.*known: " + ", ".join(KINDS)),
        ("folder", "folder needs a location"),
        ("digits:/x", "digits takes no location"),
        ("digits@validation", "no split 'validation'.*it has train, test"),
        ("digits@train[5:5]", r"empty split 'train\[5:5\]'.*train has 1437"),
    ],
)
def test_refused(spec, message):
    with pytest.raises(UsageError, match=message):
        open_source(spec, default_split="train")


def test_digits_are_the_documented_permutation():
    train = open_source("digits", default_split="train")
    test = open_source("digits", default_split="test", classes=train.classes)
    assert (len(train), len(test)) == (1437, 360)
    assert train.classes == tuple("0123456789")
    data = load_digits()
    order = np.random.default_rng(0).permutation(1797)
    for source, index, original in ((train, 0, order[0]), (train, 1436, order[1436]), (test, 359, order[-1])):
        example = source[index]
        assert example.image.shape == (8, 8, 1)
        assert example.image.dtype == np.uint8
        assert np.array_equal(example.image[..., 0], np.rint(data.images[original] * 255 / 16))
        assert example.label == data.target[original]
        assert example.name == f"digits/{source.split}/{index}"
    np.testing.assert_array_equal(train.labels(), data.target[order[:1437]])


def test_labels_follow_the_class_map_by_name():
    plain = open_source("digits@test", default_split="train")
    turned = open_source("digits@test", default_split="train", classes=("x", *"9876543210"))
    assert turned.classes[0] == "x"
    np.testing.assert_array_equal(turned.labels(), 10 - plain.labels())
    assert turned[3].label == 10 - plain[3].label


def test_missing_class_is_named():
    with pytest.raises(UsageError, match="digits@test has class '7', which the class map"):
        open_source("digits@test", default_split="train", classes=tuple("012345689"))


def test_absent_class_warns_once(caplog):
    open_source("digits@test", default_split="train", classes=(*"0123456789", "ten"))
    (record,) = caplog.records
    assert record.getMessage() == "digits@test has no example of class 'ten'"


def test_view_of_several_ranges():
    train, test = (open_source("digits", default_split=s) for s in ("train", "test"))
    view = open_source("digits@train[10:12]+test[-1:]+train[:1]", default_split="train")
    expected = [train[10], train[11], test[359], train[0]]
    assert len(view) == 4
    for got, want in zip([view[i] for i in range(4)], expected, strict=True):
        assert (got.name, got.label) == (want.name, want.label)
        assert np.array_equal(got.image, want.image)
    assert view.labels().tolist() == [e.label for e in expected]
    for outside in (-1, 4):
        with pytest.raises(IndexError):
            view[outside]


def test_all_is_every_split_train_first():
    everything = open_source("digits@all", default_split="train")
    assert len(everything) == 1797
    assert (everything[0].name, everything[1796].name) == ("digits/train/0", "digits/test/359")
    # The slice applies to each split, as in TFDS.
    assert len(open_source("digits@all[:10%]", default_split="train")) == 144 + 36


def test_memory_and_pickle():
    source = open_source("digits@train[:100]", default_split="train")
    assert source.memory_bytes() == 1437 * (64 + 4)
    again = pickle.loads(pickle.dumps(source))
    assert np.array_equal(again[99].image, source[99].image)
