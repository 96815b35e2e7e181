"""Which patches are hidden, and how: shares, independence, and the patches' order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.embed import PatchEmbed
from vit_jax.tasks import corruption

IMAGES, PATCHES = 2000, 16


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


@pytest.fixture(scope="module")
def drawn():
    """Half of 16 patches of 2000 images."""
    made = corruption.draw(keys(IMAGES), PATCHES, 8, mask_share=0.8, swap_share=0.1)
    return jax.tree.map(np.asarray, made)


def within(found, share, count):
    """Whether a frequency is within 4 standard errors of the share; 4.5 would be 1 in 150,000."""
    return abs(found - share) < 4 * np.sqrt(share * (1 - share) / count)


def test_every_image_has_the_same_number_of_corrupted_patches(drawn):
    assert (drawn.corrupted.sum(axis=1) == 8).all()
    assert all(within(share, 0.5, IMAGES) for share in drawn.corrupted.mean(axis=0))
    pairs = (drawn.corrupted[:, :1] & drawn.corrupted[:, 1:]).mean(axis=0)
    assert all(within(share, 8 * 7 / (16 * 15), IMAGES) for share in pairs)  # drawn without replacement


def test_of_the_corrupted_80_10_and_10_percent(drawn):
    corrupted = drawn.corrupted.sum()
    moved = drawn.source != np.arange(PATCHES)
    assert not (drawn.masked & ~drawn.corrupted).any()
    assert not (moved & ~drawn.corrupted).any() and not (moved & drawn.masked).any()
    kept = drawn.corrupted & ~drawn.masked & ~moved
    assert within(drawn.masked.sum() / corrupted, 0.8, corrupted)
    assert within(moved.sum() / corrupted, 0.1, corrupted)
    assert within(kept.sum() / corrupted, 0.1, corrupted)


def test_a_swapped_patch_is_any_other_one_of_the_image(drawn):
    distance = (drawn.source - np.arange(PATCHES)) % PATCHES
    counts = np.bincount(distance[distance > 0], minlength=PATCHES)[1:]
    assert len(counts) == 15 and all(within(n / counts.sum(), 1 / 15, counts.sum()) for n in counts)


def test_an_images_corruption_is_a_function_of_its_key_alone():
    options = {"mask_share": 0.5, "swap_share": 0.5}
    together = corruption.draw(keys(6), 9, 4, **options)
    alone = [corruption.draw(keys(6)[i : i + 1], 9, 4, **options) for i in range(6)]
    for i, one in enumerate(alone):
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b[0]), together, one)
    assert len({row.tobytes() for row in np.asarray(together.corrupted)}) > 1
    other = corruption.draw(keys(6, seed=1), 9, 4, **options)
    assert (other.corrupted != together.corrupted).any()


@pytest.mark.parametrize(("mask", "swap"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_shares_of_one_and_zero_are_exact(mask, swap):
    made = corruption.draw(keys(50), 4, 3, mask_share=mask, swap_share=swap)
    np.testing.assert_array_equal(made.masked, made.corrupted if mask else np.zeros((50, 4), bool))
    moved = np.asarray(made.source) != np.arange(4)
    np.testing.assert_array_equal(moved, made.corrupted if swap else np.zeros((50, 4), bool))


def test_patches_are_in_the_order_of_the_tokens():
    """Swapping pixels is swapping embeddings, which the step relies on."""
    images = jax.random.randint(jax.random.key(0), (3, 8, 12, 2), 0, 256).astype(jnp.uint8)
    patches = corruption.to_patches(images, 4)
    assert patches.shape == (3, 6, 4, 4, 2)
    np.testing.assert_array_equal(corruption.to_images(patches, (2, 3)), images)
    source = jax.random.randint(jax.random.key(1), (3, 6), 0, 6)
    swapped = corruption.to_images(corruption.swap(patches, source), (2, 3))
    embed = PatchEmbed(4, 5, jnp.dtype("float32"))
    params = embed.init(jax.random.key(2), images.astype(jnp.float32))
    before = embed.apply(params, images.astype(jnp.float32))
    after = embed.apply(params, swapped.astype(jnp.float32))
    np.testing.assert_allclose(
        after, np.take_along_axis(np.asarray(before), np.asarray(source)[..., None], 1), rtol=1e-6
    )
