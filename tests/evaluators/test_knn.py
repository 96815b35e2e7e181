"""Nearest neighbours against a direct computation in float64."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from vit_jax.errors import UsageError
from vit_jax.evaluators.features import Features
from vit_jax.evaluators.knn import KNearest, vote


def data(n, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n).astype(np.int32)
    centres = np.random.default_rng(9).normal(size=(4, 6))
    return (centres[labels] + rng.normal(size=(n, 6))).astype(np.float32), labels


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_votes_are_those_of_a_direct_computation(temperature):
    (train, labels), (test, _) = data(150, 0), data(70, 1)
    unit = [
        x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
        for x in (train, test)
    ]
    similarity = unit[1] @ unit[0].T
    found = vote(train, labels, test, 4, ks=(1, 10, 150), temperature=temperature)
    for k, predicted in zip((1, 10, 150), found, strict=True):
        near = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        weights = np.exp(np.take_along_axis(similarity, near, 1) / temperature)
        votes = np.stack([np.sum(weights * (labels[near] == c), axis=1) for c in range(4)], axis=1)
        margin = np.sort(votes, axis=1)
        clear = margin[:, -1] - margin[:, -2] > 1e-4 * margin[:, -1]  # float32 similarities
        assert clear.mean() > 0.9
        assert np.array_equal(predicted[clear], np.argmax(votes, axis=1)[clear])


def test_one_neighbour_is_scikit_learns():
    (train, labels), (test, _) = data(150, 0), data(70, 1)
    peer = KNeighborsClassifier(1, metric="cosine").fit(train, labels)
    assert np.array_equal(vote(train, labels, test, 4, ks=(1,), temperature=0.07)[0], peer.predict(test))


def test_chunks_change_nothing(monkeypatch):
    (train, labels), (test, _) = data(50, 0), data(70, 1)
    whole = vote(train, labels, test, 4, ks=(5,), temperature=0.07)
    monkeypatch.setattr("vit_jax.evaluators.knn._CHUNK", 16)
    assert np.array_equal(vote(train, labels, test, 4, ks=(5,), temperature=0.07), whole)


def test_accuracy_and_more_neighbours_than_images():
    train, test = (Features(*data(n, seed), np.arange(n)) for n, seed in ((20, 0), (30, 1)))
    found = KNearest((1, 200), 0.07).measure(train, test, classes="abcd")
    assert set(found) == {"knn1/accuracy", "knn200/accuracy"}
    expected = vote(train.rows, train.labels, test.rows, 4, ks=(200,), temperature=0.07)[0] == test.labels
    assert found["knn200/accuracy"] == expected.mean()


@pytest.mark.parametrize("numbers", [((), 0.07), ((0,), 0.07), ((5,), 0.0)])
def test_what_means_nothing_is_refused(numbers):
    with pytest.raises(UsageError, match="knn"):
        KNearest(*numbers)
