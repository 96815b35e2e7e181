"""Top-5, accuracy by class, calibration error and confusions against direct computations."""

import jax
import numpy as np
import pytest

from tests.evaluators.fakes import Lookup, NumberedSource, batches_of, state_of
from vit_jax import losses, sharding, step
from vit_jax.evaluators.classification import Classification
from vit_jax.mixup import Mix
from vit_jax.tasks.classify import Classify

N = 90


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, N)  # the last class has no example
    logits = rng.normal(size=(N, 7)).astype(np.float32) * 2
    logits[np.arange(N), labels] += 1.5
    return logits, labels


def evaluator(labels, num_classes, devices=1, batch=16, confusion=True):
    mesh = sharding.make_mesh(-1, 1, 1, jax.devices()[:devices])
    loss = losses.make_loss("softmax_xent", label_smoothing=0.0)
    task = Classify(num_classes, loss, loss, Mix(), 1, 0, (0.0,) * 3, (1.0,) * 3)
    jitted = jax.jit(
        lambda params, batch: step.eval_step(params, batch, model=Lookup(), task=task, confusion=confusion),
        out_shardings=sharding.replicated(mesh),
    )
    source = NumberedSource(labels, [str(c) for c in range(num_classes)])
    return Classification(batches_of(source, mesh, batch, num_classes), jitted), mesh


def calibration_error(logits, labels):
    """By hand, in float64."""
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == labels
    bins = np.minimum((confidence * 15).astype(int), 14)
    chosen = [bins == b for b in range(15) if np.any(bins == b)]
    return sum(m.mean() * abs(confidence[m].mean() - right[m].mean()) for m in chosen)


@pytest.mark.parametrize(("devices", "batch"), [(1, 1), (1, 64), (2, 20), (8, 96)])
def test_all_numbers_on_any_mesh(case, devices, batch):
    logits, labels = case
    classify, mesh = evaluator(labels, 7, devices, batch)
    found = classify.run(state_of(logits, mesh))
    best, order = np.argmax(logits, axis=1), np.argsort(-logits, axis=1)
    assert found["accuracy"] == np.sum(best == labels) / N
    assert found["top5_accuracy"] == np.sum(order[:, :5] == labels[:, None]) / N
    by_class = [np.mean(best[labels == c] == c) for c in range(6)]
    assert found["class_accuracy"] == pytest.approx(np.mean(by_class), abs=1e-12)
    assert found["ece"] == pytest.approx(calibration_error(logits, labels), abs=1e-6)  # float32 softmax

    details = classify.details
    np.testing.assert_allclose(details["class_accuracy"][:6], by_class)
    assert np.isnan(details["class_accuracy"][6]) and details["class_count"][6] == 0
    confusion = np.zeros((7, 7), int)
    np.add.at(confusion, (labels, best), 1)
    assert np.array_equal(details["confusion"], confusion)
    assert details["calibration"].shape == (3, 15) and details["calibration"][0].sum() == N


def test_few_classes_have_no_top_5(case):
    logits, labels = case
    classify, mesh = evaluator(labels % 5, 5, confusion=False)
    found = classify.run(state_of(logits[:, :5], mesh))
    assert "top5_accuracy" not in found and "confusion" not in classify.details


def test_several_labels_have_neither_classes_nor_calibration():
    labels = (np.random.default_rng(1).random((20, 7)) < 0.3).astype(np.float32)
    classify, mesh = evaluator(labels, 7)
    found = classify.run(state_of(np.random.default_rng(2).normal(size=(20, 7)), mesh))
    assert set(found) == {"accuracy", "loss", "correct", "count"} and classify.details == {}


def test_a_row_of_nan_is_wrong_and_in_no_bin(case):
    logits, labels = case
    broken = logits.copy()
    broken[0] = np.nan
    classify, mesh = evaluator(labels, 7)
    found = classify.run(state_of(broken, mesh))
    assert found["correct"] == np.sum(np.argmax(logits[1:], axis=1) == labels[1:])
    assert classify.details["calibration"][0].sum() == N - 1
    assert found["ece"] == pytest.approx(calibration_error(logits[1:], labels[1:]), abs=1e-6)
