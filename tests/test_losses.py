import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import losses
from vit_jax.errors import UsageError

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def reference(golden):
    with np.load(golden / "losses.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("kind", ["onehot", "multi_hot", "soft"])
@pytest.mark.parametrize("name", ["softmax_xent", "sigmoid_xent"])
def test_values_and_gradients(reference, name, kind):
    loss = losses.make_loss(name, label_smoothing=0.0)
    logits, targets = jnp.asarray(reference["logits"]), jnp.asarray(reference[kind])
    got = loss(logits, targets)
    assert got.shape == (9,) and got.dtype == jnp.float32
    np.testing.assert_allclose(got, reference[f"{name}/{kind}"], **TOLERANCE)
    np.testing.assert_allclose(got.mean(), reference[f"{name}_mean/{kind}"], **TOLERANCE)
    grad = jax.grad(lambda x: loss(x, targets).mean())(logits)
    np.testing.assert_allclose(grad, reference[f"{name}_grad/{kind}"], **TOLERANCE)


@pytest.mark.parametrize("smoothing", [0.1, 0.2])
def test_softmax_smoothing(reference, smoothing):
    got = losses.make_loss("softmax_xent", label_smoothing=smoothing)(
        jnp.asarray(reference["logits"]), losses.to_targets(jnp.asarray(reference["label_index"]), 7)
    )
    np.testing.assert_allclose(got, reference[f"softmax_xent_uniform_smoothing{smoothing}"], **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "key"), [("softmax_xent", "loss"), ("sigmoid_xent", "loss_sum_over_classes")]
)
def test_smoothing_case(golden, name, key):
    case = json.loads((golden / "cases/label_smoothing.json").read_text())
    loss = losses.make_loss(name, label_smoothing=case["smoothing"])
    got = loss(jnp.asarray(case["logits"]), losses.to_targets(jnp.asarray(case["labels"]), 3))
    assert float(got.mean()) == pytest.approx(case[name.removesuffix("_xent")][key], abs=1e-6)


def test_bfloat16_logits_are_summed_in_float32():
    logits = jnp.linspace(-3, 3, 4096).reshape(1, -1).astype(jnp.bfloat16)
    targets = jnp.zeros((1, 4096))
    exact = np.log1p(np.exp(np.asarray(logits, np.float64))).sum()
    assert float(losses.sigmoid_xent(logits, targets)[0]) == pytest.approx(exact, rel=1e-5)


def test_extreme_logits_stay_finite():
    logits, targets = jnp.array([[1e4, -1e4, 0.0]]), jnp.array([[0.0, 1.0, 0.0]])
    for loss in losses.LOSSES.values():
        value, grad = jax.value_and_grad(lambda x, loss=loss: loss(x, targets).sum())(logits)
        assert jnp.isfinite(value) and jnp.all(jnp.isfinite(grad))


def test_targets_of_indices_and_of_rows():
    np.testing.assert_array_equal(losses.to_targets(jnp.array([2, -1]), 3), [[0, 0, 1], [0, 0, 0]])
    rows = jnp.array([[1, 0, 1]])
    got = losses.to_targets(rows, 3)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, rows)


def test_multi_label_case(golden):
    with np.load(golden / "cases/multilabel.npz", allow_pickle=False) as file:
        logits, labels = jnp.asarray(file["logits"]), jnp.asarray(file["labels"])
    assert float(losses.sigmoid_xent(logits, labels).mean()) == pytest.approx(4.807576, abs=2e-6)
    correct, counted = losses.top1_correct(logits, labels)
    assert (float(correct.sum()), float(counted.sum())) == (2.0, 8.0)  # 9 rows, one without a label


def test_top1_of_the_reference(reference):
    logits = jnp.asarray(reference["logits"])
    correct, counted = losses.top1_correct(logits, jnp.asarray(reference["multi_hot"]))
    np.testing.assert_array_equal(correct, reference["top1_correct_multilabel"])
    np.testing.assert_array_equal(counted, reference["multi_hot"].sum(-1) > 0)


def test_top1_and_topk_of_indices():
    logits = jnp.array([[0.1, 0.9, 0.5], [0.9, 0.1, 0.5], [0.1, 0.2, 0.3], [0.5, jnp.nan, 0.1]])
    labels = jnp.array([1, 2, -1, 1])
    for correct, counted, expected in (
        (*losses.top1_correct(logits, labels), [1, 0, 0, 0]),
        (*losses.topk_correct(logits, labels, 1), [1, 0, 0, 0]),
        (*losses.topk_correct(logits, labels, 2), [1, 1, 0, 0]),
        (*losses.topk_correct(logits, labels, 5), [1, 1, 0, 0]),  # more than there are classes
    ):
        np.testing.assert_array_equal(correct, expected)
        np.testing.assert_array_equal(counted, [1, 1, 0, 1])


def test_refusals():
    with pytest.raises(UsageError, match="softmax_xent"):
        losses.make_loss("softmax", label_smoothing=0.0)
    for smoothing in (-0.1, 1.0):
        with pytest.raises(UsageError, match="label_smoothing"):
            losses.make_loss("softmax_xent", label_smoothing=smoothing)
