"""Few-shot regression against the reference's weights and draws, and its behaviour with too few images."""

import json
import logging

import numpy as np
import pytest
from sklearn.linear_model import Ridge as SklearnRidge

from vit_jax.errors import UsageError
from vit_jax.evaluators import fewshot
from vit_jax.evaluators.classifiers import accuracy
from vit_jax.evaluators.features import Features

CASES = ("n_lt_d", "n_ge_d", "n_eq_d1", "one_shot")
TIE = 1e-6  # scores closer than this may be ranked either way


@pytest.fixture(scope="module")
def reference(golden):
    with np.load(golden / "fewshot.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("case", CASES)
def test_weights_and_accuracies_are_the_references(reference, case):
    x, y, x_test, y_test = (reference[f"{case}/{n}"] for n in ("x_train", "y_train", "x_test", "y_test"))
    num_classes = json.loads(str(reference["spec"]))[case]["num_classes"]
    models = fewshot.fit_path(x, y, num_classes, reference["l2"].astype(np.float64))
    for i, model in enumerate(models):
        want = reference[f"{case}/weights_float64"][i]
        # The golden tolerance for a float64 implementation, relative to the largest weight.
        assert np.abs(model.weights - want).max() <= 1e-6 * np.abs(want).max(), reference["l2"][i]
        scores = model.scores(x_test)
        np.testing.assert_allclose(scores, reference[f"{case}/scores_float64"][i], atol=1e-6)
        if reference[f"{case}/min_margin_float64"][i] > TIE:
            assert accuracy(model, x_test, y_test) == reference[f"{case}/accuracy_float64"][i]
        if reference["l2"][i] >= 2**5 and reference[f"{case}/min_margin_float64"][i] > TIE:
            single = np.float32(reference[f"{case}/accuracy"][i])
            assert np.float32(accuracy(model, x_test, y_test)) == pytest.approx(single, abs=1e-6)


def test_draws_are_the_references(reference):
    labels = reference["selection/labels"]
    names = [name for name in reference if name.startswith("selection/seed")]
    assert len(names) == 9
    for name in names:
        seed, shots = map(int, name.removeprefix("selection/seed").split("_shots"))
        assert np.array_equal(fewshot.draw(labels, shots, seed, 4), reference[name])


@pytest.mark.parametrize("shape", [(30, 50), (80, 20)])
def test_predictions_are_scikit_learns(shape):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=shape).astype(np.float32), rng.integers(0, 4, shape[0])
    x_test = rng.normal(size=(200, shape[1])).astype(np.float32)
    model = fewshot.fit(x, y, 4, l2=2.0**10)

    def columns(features):
        standard = (features.astype(np.float64) - model.standardize.mean) / model.standardize.scale
        return np.concatenate([standard, np.full((len(standard), 1), 100.0)], axis=1)

    peer = SklearnRidge(alpha=2.0**10, fit_intercept=False).fit(columns(x), 2.0 * np.eye(4)[y] - 1)
    want = peer.predict(columns(x_test))
    np.testing.assert_allclose(model.scores(x_test), want, atol=1e-9)
    assert np.array_equal(np.argmax(model.scores(x_test), 1), np.argmax(want, 1))


def clusters(counts, seed=0, spread=0.3):
    """Features around a centre per class, with so many rows of each class."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    centres = np.random.default_rng(7).normal(size=(len(counts), 8))
    rows = (centres[labels] + spread * rng.normal(size=(len(labels), 8))).astype(np.float32)
    return Features(rows, labels, np.arange(len(labels)))


METHOD = fewshot.FewShot(shots=(1, 5), seeds=3, l2=2.0**10)


def test_mean_and_deviation_over_the_draws():
    train, test = clusters([9, 9, 9]), clusters([20, 20, 20], seed=1, spread=1.0)
    found = METHOD.measure(train, test, labels=train.labels, classes=("a", "b", "c"))
    single = []
    for seed in range(3):
        chosen = fewshot.draw(train.labels, 5, seed, 3)
        model = fewshot.fit(train.rows[chosen], train.labels[chosen], 3, l2=2.0**10)
        single.append(accuracy(model, test.rows, test.labels))
    assert found["5shot/accuracy"] == np.mean(single) and found["5shot/sd"] == np.std(single, ddof=1)
    assert set(found) == {f"{k}shot/{m}" for k in (1, 5) for m in ("accuracy", "sd")}


def test_only_what_is_drawn_is_needed():
    train, test = clusters([40, 40, 40]), clusters([20, 20, 20], seed=1, spread=1.0)
    wanted = METHOD.wanted(train.labels, 3)
    assert 15 <= len(wanted) < 50
    part = Features(train.rows[wanted], train.labels[wanted], wanted)
    whole = METHOD.measure(train, test, labels=train.labels, classes=("a", "b", "c"))
    assert METHOD.measure(part, test, labels=train.labels, classes=("a", "b", "c")) == whole


def test_the_sweep_never_sees_a_test_label():
    train, test = clusters([12, 12, 12], spread=2.0), clusters([30, 30, 30], seed=1, spread=2.0)
    method = fewshot.FewShot(shots=(5,), seeds=2, l2=2.0**10, l2_sweep=(2.0**-5, 2.0**5, 2.0**15))
    names = ("a", "b", "c")
    found = method.measure(train, test, labels=train.labels, classes=names)
    assert found["5shot/swept/l2"] in method.l2_sweep
    other = Features(test.rows, (test.labels + 1) % 3, test.index)
    again = method.measure(train, other, labels=train.labels, classes=names)
    assert again["5shot/swept/l2"] == found["5shot/swept/l2"]
    fixed = fewshot.FewShot(shots=(5,), seeds=2, l2=2.0**10).measure(
        train, test, labels=train.labels, classes=names
    )
    assert found["5shot/accuracy"] == fixed["5shot/accuracy"]


def test_a_class_with_one_image_ends_five_shots_and_not_one(caplog):
    train, test = clusters([20, 1]), clusters([10, 10], seed=1)
    with caplog.at_level(logging.WARNING):
        found = METHOD.measure(train, test, labels=train.labels, classes=("many", "one"))
    assert set(found) == {"1shot/accuracy", "1shot/sd"}
    assert "5 shots left out, too few training images of class 'one (1)'" in caplog.text


def test_without_any_possible_number_of_shots_the_class_is_named():
    train = clusters([20, 1])
    with pytest.raises(UsageError, match=r"class 'one' has 1 training images.*\(5,\)"):
        fewshot.FewShot(shots=(5,), seeds=1, l2=1.0).measure(
            train, train, labels=train.labels, classes=("many", "one")
        )


def test_a_class_without_training_images_is_named_and_its_test_images_are_wrong(caplog):
    train, test = clusters([9, 0, 9], spread=0.01), clusters([10, 10, 10], seed=1, spread=0.01)
    with caplog.at_level(logging.WARNING):
        found = METHOD.measure(train, test, labels=train.labels, classes=("a", "b", "c"))
    assert found["5shot/accuracy"] == 20 / 30
    assert "no training image of class 'b'" in caplog.text


def test_unreadable_images_are_counted(caplog):
    train, test = clusters([9, 9]), clusters([10, 10], seed=1)
    kept = np.arange(1, 18)
    part = Features(train.rows[kept], train.labels[kept], kept)
    with caplog.at_level(logging.WARNING):
        found = fewshot.FewShot(shots=(9,), seeds=1, l2=1.0).measure(
            part, test, labels=train.labels, classes=("a", "b")
        )
    assert "1 of 18 images drawn by seed 0 couldn't be read" in caplog.text
    assert 0.5 < found["9shot/accuracy"] <= 1


@pytest.mark.parametrize(
    "numbers", [{"shots": ()}, {"shots": (0, 5)}, {"seeds": 0}, {"l2": 0.0}, {"l2_sweep": (1.0, -1.0)}]
)
def test_numbers_that_mean_nothing_are_refused(numbers):
    with pytest.raises(UsageError, match="fewshot"):
        fewshot.FewShot(**({"shots": (1,), "seeds": 1, "l2": 1.0} | numbers))
