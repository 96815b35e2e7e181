"""Random shares of a split: nested, disjoint, fixed by a seed of their own, even over classes where asked for."""

import pickle
import re

import numpy as np
import pytest

from vit_jax.data.dataset import full_spec
from vit_jax.data.order import example_index, share_order, share_place
from vit_jax.data.shares import stratified_order, take_share
from vit_jax.data.source import Example, Source
from vit_jax.data.sources import open_source
from vit_jax.data.splits import parse_split
from vit_jax.errors import UsageError


def names(split):
    source = open_source(f"digits@{split}", default_split="train")
    return [source.name(i) for i in range(len(source))]


def share(text):
    return parse_split(f"train{text}")[0].share


@pytest.mark.parametrize("n", [1, 2, 3, 10, 103, 1437])
def test_the_order_is_a_permutation_and_the_same_pointwise(n):
    order = share_order(3, n)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    assert [share_place(3, rank, n) for rank in range(n)] == order.tolist()


def test_pinned_values():
    # Whatever changes these changes what all runs on shares were trained on.
    assert share_order(0, 1437)[:6].tolist() == [418, 867, 1145, 186, 932, 147]
    assert share_place(0, 123_456_789, 300_000_000) == 220442572


def test_it_is_not_the_order_of_training():
    first = example_index(0, np.arange(1437), 1437)
    assert np.sum(first == share_order(0, 1437)) <= 8


@pytest.mark.parametrize("kind", ["", "-stratified", "#7", "-stratified#7"])
def test_shares_are_nested_and_slices_of_one_order(kind):
    small, large, whole = (names(f"train{{{stop}{kind}}}") for stop in ("3%", "10%", "100%"))
    assert (len(small), len(large), len(whole)) == (43, 144, 1437)
    assert whole[:144] == large and large[:43] == small
    assert sorted(whole) == sorted(names("train"))
    assert names(f"train{{10%:{kind}}}") == whole[144:]
    assert names(f"train{{-10:{kind}}}") == whole[-10:]
    assert names(f"train{{43:144{kind}}}") == whole[43:144]


def test_another_seed_is_another_draw():
    draws = [set(names(f"train{{10%{seed}}}")) for seed in ("", "#1", "#2")]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert 2 <= len(a & b) <= 30  # 14 on average


def test_a_share_of_a_slice_and_sums():
    assert set(names("train[:100]{50%}")) < set(names("train[:100]"))
    both = names("train{:10%}+train{90%:}+test[:5]")
    assert len(both) == len(set(both)) == 144 + 144 + 5
    assert len(names("all{10%}")) == 144 + 36


def test_labels_classes_and_copies_agree_with_the_examples():
    for spec in ("digits@train{5%}", "digits@train[100:]{5%-stratified}", "digits@train{5%}+test{3%}"):
        source = open_source(spec, default_split="train")
        labels = [source[i].label for i in range(len(source))]
        assert source.labels().tolist() == labels
        assert [source[i].name for i in range(len(source))] == [source.name(i) for i in range(len(source))]
        assert source.classes == tuple("0123456789")
        assert pickle.loads(pickle.dumps(source))[7].name == source[7].name
        with pytest.raises(IndexError):
            source[len(source)]


def test_an_unstratified_share_keeps_nothing_per_example():
    source = open_source("digits@train{50%}", default_split="train")
    whole = open_source("digits@train", default_split="train")
    assert source.memory_bytes() == whole.memory_bytes()


def test_stratified_shares_are_even_however_rare_the_class():
    rng = np.random.default_rng(0)
    sizes = np.array([1000, 250, 250, 40, 10, 3, 1])
    labels = rng.permutation(np.repeat(np.arange(7), sizes))
    order = stratified_order(labels, tuple("abcdefg"), 0)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(labels)))
    for stop in range(0, len(labels), 7):
        counts = np.bincount(labels[order[:stop]], minlength=7)
        assert np.all(np.abs(counts - stop * sizes / len(labels)) < 1.5), stop
    equal = np.repeat(np.arange(20), 250)
    first = stratified_order(equal, tuple(map(str, range(20))), 0)
    for share_of_class in (1, 25, 75):
        counts = np.bincount(equal[first[: 20 * share_of_class]], minlength=20)
        assert counts.tolist() == [share_of_class] * 20


def test_stratified_shares_round_a_rare_class_up_as_often_as_chance_would():
    labels = np.repeat(np.arange(51), [4] * 50 + [2000])  # a quarter of 4 is 1; a tenth is 0.4
    kept = []
    for seed in range(40):
        order = stratified_order(labels, tuple(f"{i}" for i in range(51)), seed)
        kept.append(np.bincount(labels[order[:220]], minlength=51)[:50].sum())
    assert abs(np.mean(kept) - 0.4 * 50) < 4 * np.sqrt(50 * 0.24 / 40)


def test_stratified_shares_go_by_class_names_not_by_their_numbers():
    labels = np.arange(300) % 3
    swapped = np.array([2, 0, 1])[labels]
    a = stratified_order(labels, ("x", "y", "z"), 5)
    np.testing.assert_array_equal(a, stratified_order(swapped, ("y", "z", "x"), 5))


def test_a_class_may_be_absent():
    labels = np.array([0, 2, 2, 0])
    assert sorted(stratified_order(labels, ("a", "b", "c"), 0)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("expression", "count", "expected"),
    [
        ("train{3%}", 300_000_000, (0, 9_000_000)),
        ("train{0.25%}", 10_000, (0, 25)),
        ("train{2.5%:}", 1000, (25, 1000)),
        ("train{5000}", 10_000, (0, 5000)),
        ("train{-10%:}", 1000, (900, 1000)),
        ("train{:}", 1000, (0, 1000)),
        ("train{ 10% : 20% }", 1000, (100, 200)),
    ],
)
def test_range(expression, count, expected):
    (term,) = parse_split(expression)
    assert term.share.range(count) == expected
    assert parse_split(str(term))[0] == term


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ("train{}", "can't be parsed at '{}'"),
        ("train{a}", "can't be parsed"),
        ("train{-10%}", "can't be parsed"),
        ("train{10%-even}", "can't be parsed"),
        ("train{1.5}", "can't be parsed"),
        ("train{10%}[:5]", "can't be parsed"),
        ("train{101%}", "beyond its 1437 examples"),
        ("train{1438}", "beyond its 1437 examples"),
        ("train{0.01%}", "empty split"),
    ],
)
def test_what_is_no_share_is_refused(split, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        names(split)


class Vectors(Source):
    spec, split, classes = "fake:x", "train", ("a", "b")

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Example(np.zeros((2, 2, 3), np.uint8), np.eye(4, 2, dtype=np.float32)[index], f"x/{index}")

    def memory_bytes(self):
        return 0


def test_label_vectors_have_no_classes_to_be_even_over():
    source = Vectors()
    assert len(take_share(source, share("{50%}"))) == 2
    with pytest.raises(UsageError, match="no stratified share of label vectors"):
        take_share(source, share("{50%-stratified}"))


def test_a_bare_split_may_be_a_share():
    assert full_spec("train{90%:}", "folder:a@train{:90%}") == "folder:a@train{90%:}"
    assert full_spec("train[:5]{1%-stratified#2}+test", "digits") == "digits@train[:5]{1%-stratified#2}+test"
