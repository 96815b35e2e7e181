"""Targets, losses and right answers by plain numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.tasks.corruption import to_patches
from vit_jax.tasks.patch_targets import MeanColour, Pixels, SmallPatch, colour_classes

MEAN, STD = (120.0, 110.0, 100.0), (60.0, 50.0, 40.0)


def images(channels=3, seed=0):
    """Of varied brightness: means all over the range."""
    rng = np.random.default_rng(seed)
    level = rng.integers(0, 200, (2, 2, 1, 3, 1, channels))
    noise = rng.integers(0, 56, (2, 2, 8, 3, 8, channels))
    return (level + noise).reshape(2, 16, 24, channels).astype(np.uint8)


def colour(pixels):
    """3 bits a channel of the mean in exact fractions, red first."""
    number = 0
    for channel in range(pixels.shape[-1]):
        values = [int(v) for v in pixels[..., channel].ravel()]
        number = 8 * number + sum(values) // (32 * len(values))
    return number


def by_hand(array, size):
    """[B][N] patches in reading order."""
    rows, columns = array.shape[1] // size, array.shape[2] // size
    return [
        [
            image[y * size : (y + 1) * size, x * size : (x + 1) * size]
            for y in range(rows)
            for x in range(columns)
        ]
        for image in array
    ]


@pytest.mark.parametrize("channels", [1, 3])
def test_mean_colour(channels):
    given = images(channels)
    target = MeanColour(channels)
    expected = [[colour(patch) for patch in image] for image in by_hand(given, 8)]
    found = target.of(to_patches(jnp.asarray(given), 8))
    np.testing.assert_array_equal(found, expected)
    assert target.outputs == 8**channels and len(np.unique(expected)) > channels + 1


def test_bins_are_exact_at_their_borders():
    """A mean of 32 is level 1, of 32 - 1/64 level 0; white is level 7."""
    at, below, white = np.full((8, 8, 1), 32), np.full((8, 8, 1), 32), np.full((8, 8, 1), 255)
    below[3, 4] = 31
    pixels = jnp.asarray(np.stack([at, below, white])[None], jnp.uint8)
    np.testing.assert_array_equal(colour_classes(pixels), [[1, 0, 7]])
    saturated = jnp.asarray(np.full((1, 1, 4, 4, 3), [255, 0, 128]), jnp.uint8)
    np.testing.assert_array_equal(colour_classes(saturated), [[7 * 64 + 4]])


def test_the_small_version_has_a_colour_for_each_cell():
    given = images()
    target = SmallPatch(3)
    expected = [
        [[colour(cell) for cell in by_hand(patch[None], 2)[0]] for patch in image]
        for image in by_hand(given, 8)
    ]
    np.testing.assert_array_equal(target.of(to_patches(jnp.asarray(given), 8)), expected)
    assert target.outputs == 16 * 512 and target.answers == 16


def log_softmax(x):
    x = x.astype(np.float64)
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


@pytest.mark.parametrize("target", [MeanColour(3), SmallPatch(3)])
def test_cross_entropy_and_right_answers(target):
    rng = np.random.default_rng(0)
    patches = to_patches(jnp.asarray(images()), 8)
    classes = np.asarray(target.of(patches)).reshape(2, 6, -1)
    logits = rng.normal(0, 3, (2, 6, classes.shape[-1], 512)).astype(np.float32)
    for place in np.ndindex(2, 3):  # some are right
        logits[place][0, classes[place][0]] = 50
    each = -np.take_along_axis(log_softmax(logits), classes[..., None], -1)[..., 0]
    outputs = jnp.asarray(logits.reshape(2, 6, -1))
    np.testing.assert_allclose(target.loss(outputs, target.of(patches)), each.mean(-1), rtol=1e-5)
    right = (logits.argmax(-1) == classes).sum(-1)
    np.testing.assert_array_equal(target.correct(outputs, patches), right)
    assert 6 <= right.sum() < right.size
    broken = outputs.at[0, 0, classes[0, 0, 0]].set(jnp.nan)
    assert target.correct(broken, patches)[0, 0] == right[0, 0] - 1


def test_pixels_are_regressed_as_the_model_sees_them():
    target = Pixels(8, 3, MEAN, STD)
    given = images()
    patches = to_patches(jnp.asarray(given), 8)
    expected = np.stack([np.stack(image) for image in by_hand((given - np.array(MEAN)) / STD, 8)])
    truth = target.of(patches)
    assert truth.shape == (2, 6, target.outputs)
    np.testing.assert_allclose(truth, expected.reshape(2, 6, -1), atol=1e-6)
    off = np.random.default_rng(1).normal(size=truth.shape).astype(np.float32)
    np.testing.assert_allclose(target.loss(truth + off, truth), (off**2).mean(-1), rtol=1e-4)


def test_predicted_pixels_are_judged_by_their_mean_colour():
    target = Pixels(8, 3, MEAN, STD)
    patches = jnp.full((1, 2, 8, 8, 3), 80, jnp.uint8)  # level 2, up to 95
    shift = jnp.asarray([10.0, 20.0]).reshape(1, 2, 1, 1, 1)  # 90 is level 2 too, 100 is level 3
    mean, std = (jnp.asarray(values).reshape(1, 1, 1, 1, 3) for values in (MEAN, STD))
    outputs = ((patches + shift - mean) / std).reshape(1, 2, -1)
    np.testing.assert_array_equal(target.correct(outputs, patches), [[1, 0]])
    np.testing.assert_array_equal(target.correct(outputs.at[0, 0, 0].set(jnp.nan), patches), [[0, 0]])
