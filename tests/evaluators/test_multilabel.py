"""Precision at 1 and mean average precision of label vectors."""

import jax
import numpy as np
import pytest

from tests.evaluators.fakes import NumberedSource, batches_of, lookup_step, state_of
from vit_jax import sharding
from vit_jax.evaluators.features import NotFinite
from vit_jax.evaluators.multilabel import MultiLabel, mean_average_precision, precision_at_1


def by_hand(scores, labels):
    """Average precision of each class: mean over the positives of precision at their rank; no ties."""
    found = []
    for c in np.flatnonzero(labels.any(axis=0)):
        ranked = labels[np.argsort(-scores[:, c]), c] > 0
        found.append(np.mean([ranked[: i + 1].mean() for i in np.flatnonzero(ranked)]))
    return np.mean(found)


def test_map_is_the_mean_precision_at_the_positives():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(40, 8)), (rng.random((40, 8)) < 0.2).astype(np.float32)
    labels[:, 3], labels[5] = 0, 0
    value, classes = mean_average_precision(scores, labels)
    assert classes == 7
    assert value == pytest.approx(by_hand(scores, labels), abs=1e-12)
    assert mean_average_precision(labels, labels)[0] == 1.0


def test_the_case_counts_labelled_rows_alone(golden):
    with np.load(golden / "cases" / "multilabel.npz") as case:
        logits, labels = case["logits"], case["labels"]
    assert (labels.sum(axis=1) == 0).sum() == 1
    right = [labels[i, np.argmax(row)] > 0 for i, row in enumerate(logits) if labels[i].any()]
    assert precision_at_1(logits, labels) == (np.mean(right), 8)


def test_without_any_label_there_is_no_number():
    nothing = np.zeros((3, 4), np.float32)
    assert np.isnan(precision_at_1(nothing, nothing)[0]) and np.isnan(
        mean_average_precision(nothing, nothing)[0]
    )


def evaluate(logits, labels, devices, batch):
    mesh = sharding.make_mesh(-1, 1, 1, jax.devices()[:devices])
    source = NumberedSource(labels, [str(c) for c in range(labels.shape[1])])
    batches = batches_of(source, mesh, batch, labels.shape[1])
    return MultiLabel(source, batches, lookup_step(mesh)).run(state_of(logits, mesh))


@pytest.mark.parametrize(("devices", "batch"), [(1, 1), (1, 32), (2, 10), (8, 16)])
def test_every_example_counts_once(devices, batch):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(53, 5)), (rng.random((53, 5)) < 0.3).astype(np.float32)
    found = evaluate(logits.astype(np.float32), labels, devices, batch)
    assert found["count"] == 53 and found["labelled"] == int(labels.any(axis=1).sum())
    assert found["precision_at_1"] == precision_at_1(logits, labels)[0]
    assert found["map"] == pytest.approx(by_hand(logits, labels), abs=1e-12)


def test_scores_that_are_not_finite_are_named():
    with pytest.raises(NotFinite, match="image 1"):
        evaluate(np.array([[0.0, 1], [np.nan, 0]]), np.eye(2, dtype=np.float32), 1, 2)
