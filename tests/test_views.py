"""The numbers behind the paper's figures: rollout and distances against reference values, the rest by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import views


@pytest.fixture(scope="module")
def reference(golden):
    with np.load(golden / "rollout.npz") as file:
        return dict(file)


@pytest.mark.parametrize("case", ["cls_4x4", "no_cls_3x5", "one_layer"])
def test_rollout_equals_the_reference(reference, case):
    joint = views.rollout(reference[f"{case}/attention"])
    np.testing.assert_allclose(joint, reference[f"{case}/joint"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(joint[-1], reference[f"{case}/rollout"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(joint.sum(-1), 1, rtol=0, atol=1e-12)


def test_the_class_tokens_map_equals_the_reference(reference):
    mean = reference["cls_4x4/attention"].mean(axis=2)
    read = views.readout(17, 1, class_token=True)
    for image, expected in enumerate(reference["cls_4x4/cls_mask"]):
        np.testing.assert_allclose(views.attended(mean[:, image], read, (4, 4)), expected, rtol=0, atol=1e-6)


def test_without_a_class_token_the_map_is_the_mean_row_of_the_rollout(reference):
    attention, rollout = reference["no_cls_3x5/attention"], reference["no_cls_3x5/rollout"]
    found = views.attended(attention.mean(axis=2)[:, 0], views.readout(15, 0, class_token=False), (3, 5))
    np.testing.assert_allclose(found, rollout[0].mean(axis=0).reshape(3, 5), rtol=0, atol=1e-6)


def test_registers_are_left_out_of_the_map():
    """Two tokens before a 1x2 grid. One layer in which all look at the last patch: half of each stays."""
    attention = np.zeros((1, 4, 4))
    attention[:, :, 3] = 1
    by_class_token = views.attended(attention, views.readout(4, 2, class_token=True), (1, 2))
    np.testing.assert_allclose(by_class_token, [[0, 0.5]], atol=1e-15)
    by_patches = views.attended(attention, views.readout(4, 2, class_token=False), (1, 2))
    np.testing.assert_allclose(by_patches, [[0.25, 0.75]], atol=1e-15)


@pytest.mark.parametrize("kind", ["raw", "renormalised"])
def test_distances_equal_the_reference(reference, kind):
    attention, expected = reference["cls_4x4/attention"], reference[f"cls_4x4/mean_distance_patch8_{kind}"]
    options = {"grid": (4, 4), "stride": 8, "renormalise": kind == "renormalised"}
    found = views.mean_distance(attention.astype(np.float64), **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    traced = jax.jit(lambda a: views.mean_distance(a, **options))(jnp.asarray(attention))
    assert traced.dtype == jnp.float32
    np.testing.assert_allclose(traced, expected, rtol=1e-5)


def test_distance_on_a_tiny_grid_by_hand():
    """2x2 patches of 10 pixels behind a class token: neighbours are 10 away, diagonals 10 sqrt 2."""
    attention = np.zeros((5, 5))
    attention[0] = 0.2
    attention[1] = [0.5, 0.5, 0, 0, 0]  # itself alone: 0
    attention[2] = [0, 0, 0, 0, 1]  # the patch below: 10
    attention[3] = [0.5, 0, 0.5, 0, 0]  # the diagonal, with half of what it gives: 5 sqrt 2, or 10 sqrt 2
    attention[4] = [0, 0.25, 0.25, 0.25, 0.25]  # all four: (10 sqrt 2 + 10 + 10 + 0) / 4
    everywhere = (10 * 2**0.5 + 20) / 4
    raw = views.mean_distance(attention, (2, 2), 10, renormalise=False)
    np.testing.assert_allclose(raw, (0 + 10 + 5 * 2**0.5 + everywhere) / 4, rtol=1e-15)
    renormalised = views.mean_distance(attention, (2, 2), 10, renormalise=True)
    np.testing.assert_allclose(renormalised, (0 + 10 + 10 * 2**0.5 + everywhere) / 4, rtol=1e-15)


def test_distances_on_a_grid_that_is_not_square():
    found = views.patch_distances((1, 3), 4)
    np.testing.assert_array_equal(found, [[0, 4, 8], [4, 0, 4], [8, 4, 0]])
    assert views.patch_distances((3, 2), 4)[0, 5] == pytest.approx(np.hypot(8, 4))


def test_filters_are_principal_components():
    """Filters made of three patterns of falling strength: those come back, in order, whatever the mean filter."""
    rng = np.random.default_rng(0)
    patterns = np.linalg.qr(rng.normal(size=(4 * 4 * 3, 3)))[0]
    amounts = rng.normal(size=(64, 3))
    amounts = np.linalg.qr(amounts - amounts.mean(axis=0))[0] * [9, 3, 1]  # orthogonal, of mean zero
    kernel = (patterns @ amounts.T + rng.normal(size=(48, 1))).reshape(4, 4, 3, 64)
    found = views.embedding_filters(kernel, 3)
    assert found.images.shape == (3, 4, 4, 3)
    for image, pattern in zip(found.images.reshape(3, -1), patterns.T, strict=True):
        sign = np.sign(pattern[np.abs(pattern).argmax()])
        np.testing.assert_allclose(image, sign * pattern, atol=1e-12)
    np.testing.assert_allclose(found.variance, np.array([81, 9, 1]) / 91, rtol=1e-12)


@pytest.mark.parametrize("flip", [1, -1])
def test_the_sign_of_a_filter_is_that_of_its_largest_entry(flip):
    """The same components for the negated kernel; of entries of one magnitude the first is positive."""
    kernel = np.zeros((1, 2, 1, 4))
    kernel[0, :, 0] = np.array([[1, -1, 2, -2], [-1, 1, -2, 2]]) * flip
    found = views.embedding_filters(kernel)
    np.testing.assert_allclose(found.images[0].ravel(), np.array([1, -1]) / 2**0.5, rtol=1e-12)
    rng = np.random.default_rng(1)
    kernel = rng.normal(size=(4, 4, 3, 32))
    one, other = views.embedding_filters(kernel), views.embedding_filters(flip * kernel)
    np.testing.assert_allclose(one.images, other.images, atol=1e-12)
    flat = one.images.reshape(len(one.images), -1)
    assert (np.take_along_axis(flat, np.abs(flat).argmax(axis=1)[:, None], axis=1) > 0).all()


def test_rounding_does_not_decide_a_sign():
    rows = np.array([[0.1, -0.5, 0.5], [-0.5, 0.5, 0.1], [0.2, 0.1, -0.9], [0, 0, 0]])
    expected = [[-1], [-1], [-1], [1]]
    for nudge in (0, 1e-15, -1e-15):
        assert views.component_signs(rows * [1, 1, 1 + nudge]).tolist() == expected
        assert views.component_signs(rows * [1, 1 + nudge, 1]).tolist() == expected


def test_there_are_no_more_filters_than_the_kernel_has():
    rng = np.random.default_rng(0)
    assert len(views.embedding_filters(rng.normal(size=(2, 2, 1, 64))).images) == 4
    assert len(views.embedding_filters(rng.normal(size=(8, 8, 3, 6))).images) == 5
    assert len(views.embedding_filters(rng.normal(size=(8, 8, 3, 64))).images) == views.FILTERS
    constant = views.embedding_filters(np.ones((2, 2, 1, 8)))
    assert np.isfinite(constant.images).all() and (constant.variance == 0).all()


def test_similarity_of_positions():
    table = np.array([[1.0, 0], [0, 2], [3, 3], [-1, 0], [0, 0], [5, 0]])
    found = views.position_similarity(table, (2, 3))
    assert found.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(found[0, 0], [[1, 0, 0.5**0.5], [-1, 0, 1]], atol=1e-15)
    assert not found[1, 1].any()  # a row of zeros
    np.testing.assert_array_equal(found, found.transpose(2, 3, 0, 1))
