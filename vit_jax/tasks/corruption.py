"""Which patches of an image are hidden from the model, and how: ViT (arXiv 2010.11929), appendix B.1.2.

Shapes: B batch, H x W image, C channels, P patch, N patches in reading order.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Corruption(NamedTuple):
    """What happens to each patch.

    Attributes:
      corrupted: bool [B, N], the patches that are to be predicted.
      masked: bool [B, N], those of them whose embedding the mask token replaces.
      source: int32 [B, N], the patch of the same image whose pixels are seen at each place; mostly its own.
    """

    corrupted: jax.Array
    masked: jax.Array
    source: jax.Array


def draw(keys: jax.Array, patches: int, count: int, *, mask_share: float, swap_share: float) -> Corruption:
    """Corrupts `count` of the N patches of every image, drawn without replacement.

    Each of these is, independently, masked, swapped for another patch, or left as it is.

    Args:
      keys: [B] of jax.random, one for each image: all that its corruption depends on.
      patches: N, at least 2.
      count: 1 to N.
      mask_share, swap_share: probabilities, of a sum of at most 1.
    """

    def of_one(key: jax.Array) -> Corruption:
        order, kind, other = jax.random.split(key, 3)
        corrupted = jax.random.permutation(order, patches) < count
        u = jax.random.uniform(kind, (patches,))
        own = jnp.arange(patches, dtype=jnp.int32)
        another = (own + jax.random.randint(other, (patches,), 1, patches)) % patches
        swapped = corrupted & (u >= mask_share) & (u < mask_share + swap_share)
        return Corruption(corrupted, corrupted & (u < mask_share), jnp.where(swapped, another, own))

    return jax.vmap(of_one)(keys)


def to_patches(images: jax.Array, size: int) -> jax.Array:
    """[B, H, W, C] -> [B, N, P, P, C], in the order of the model's tokens."""
    B, H, W, C = images.shape
    grid = images.reshape(B, H // size, size, W // size, size, C).swapaxes(2, 3)
    return grid.reshape(B, -1, size, size, C)


def to_images(patches: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """[B, N, P, P, C] -> [B, H, W, C], the reverse of `to_patches` for a grid of (rows, columns)."""
    B, _, P, _, C = patches.shape
    rows = patches.reshape(B, *grid, P, P, C).swapaxes(2, 3)
    return rows.reshape(B, grid[0] * P, grid[1] * P, C)


def swap(patches: jax.Array, source: jax.Array) -> jax.Array:
    """[B, N, ...] -> the same, at each place the patch that `source` [B, N] names.

    A patch's embedding is a function of its pixels alone, so exchanging pixels is exchanging embeddings, and needs
    no gradient.
    """
    index = source.reshape(*source.shape, *(1 for _ in patches.shape[2:]))
    return jnp.take_along_axis(patches, index, axis=1)
