"""The linear probe against scikit-learn's logistic regression, and its choice of strength."""

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from vit_jax.errors import UsageError
from vit_jax.evaluators import linear
from vit_jax.evaluators.classifiers import accuracy
from vit_jax.evaluators.features import Features

PROBE = linear.LinearProbe("lbfgs", (1e-3, 1e-2), max_steps=500, lr=0.1, epochs=30, batch_size=64)


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = data.data[order].astype(np.float32), data.target[order].astype(np.int32)
    return x[:600], y[:600], x[600:], y[600:]


def objective(kernel, bias, x, y, l2):
    """Mean cross-entropy + l2 / 2 |W|^2, float64."""
    logits = x @ kernel + bias
    fit = np.mean(logsumexp(logits, axis=1) - logits[np.arange(len(y)), y])
    return fit + l2 / 2 * np.sum(np.square(kernel.astype(np.float64)))


@pytest.mark.parametrize("l2", [1e-3, 1e-1])
def test_lbfgs_finds_scikit_learns_minimum(digits, l2):
    x, y, x_test, y_test = digits
    model = linear.fit(x, y, 10, l2=l2)
    standard = model.standardize(x)
    peer = LogisticRegression(C=1 / (l2 * len(y)), max_iter=5000, tol=1e-6).fit(standard, y)
    # L-BFGS ends where no gradient is above 1e-6: the kernels agree to that, divided by l2.
    np.testing.assert_allclose(model.kernel, peer.coef_.T, atol=2e-6 / l2 + 1e-3)
    want = peer.score(model.standardize(x_test), y_test)
    assert accuracy(model, x_test, y_test) == pytest.approx(want, abs=0.003)  # 3 of 1197 near a border


def test_a_weak_strength_converges_too(digits):
    x, y, _, _ = digits
    model = linear.fit(x, y, 10, l2=1e-5)
    standard = model.standardize(x)
    peer = LogisticRegression(C=1 / (1e-5 * len(y)), max_iter=20_000, tol=1e-8).fit(standard, y)
    lowest = objective(peer.coef_.T, peer.intercept_, standard, y, 1e-5)
    assert objective(model.kernel, model.bias, standard, y, 1e-5) == pytest.approx(lowest, rel=3e-3)


def test_sgd_comes_within_a_point(digits):
    x, y, x_test, y_test = digits
    model = linear.fit_sgd(x, y, 10, l2=1e-2, lr=0.1, epochs=50, batch_size=64)
    peer = LogisticRegression(C=1 / (1e-2 * len(y)), max_iter=5000).fit(model.standardize(x), y)
    want = peer.score(model.standardize(x_test), y_test)
    assert abs(accuracy(model, x_test, y_test) - want) < 0.01
    again = linear.fit_sgd(x, y, 10, l2=1e-2, lr=0.1, epochs=50, batch_size=64)
    assert np.array_equal(model.kernel, again.kernel)


def test_a_class_without_images_is_never_predicted(digits):
    x, y, x_test, _ = digits
    keep = y != 3
    model = linear.fit(x[keep], y[keep], 10, l2=1e-2)
    assert model.kernel.shape == (64, 10)
    assert 3 not in np.argmax(model.scores(x_test), axis=1)


def test_the_strength_is_chosen_on_training_images(digits):
    x, y, x_test, y_test = digits
    probe = linear.LinearProbe("lbfgs", (10.0, 1e-2), max_steps=200, lr=0.1, epochs=1, batch_size=1)
    train, test = Features(x, y, np.arange(len(y))), Features(x_test, y_test, np.arange(len(y_test)))
    found = probe.measure(train, test, classes=tuple("0123456789"))
    assert found["linear/l2"] == 1e-2
    assert found["linear/accuracy"] == accuracy(linear.fit(x, y, 10, l2=1e-2, max_steps=200), x_test, y_test)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [({"solver": "adam"}, "known: lbfgs, sgd"), ({"l2s": ()}, "linear.l2"), ({"epochs": 0}, "above 0")],
)
def test_what_means_nothing_is_refused(numbers, says):
    with pytest.raises(UsageError, match=says):
        linear.LinearProbe(**(PROBE.__dict__ | numbers))
