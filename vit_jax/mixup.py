"""Augmentation inside the step: whole batches on the device, normalised float images."""

import jax
import jax.numpy as jnp

from vit_jax.errors import UsageError


def mixup(
    key: jax.Array, images: jax.Array, targets: jax.Array, mask: jax.Array, alpha: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mixup with one weight per step: max(a, 1 - a), a ~ Beta(alpha, alpha), as AugReg trains.

    Every example is blended with the one before it in the *global* batch, so the result is the same on any
    mesh, for any batch size; a single example stays as it is. A masked example (padding, unreadable image)
    is nobody's partner: its neighbour stays unmixed, so no blank pixels and no missing label leak into it.

    Args:
      images: [B, ...] float. targets: [B, K] float. mask: [B], 1 for real examples.
      alpha: 0 turns mixup off.

    Returns:
      images and targets, same shapes and dtypes, and the mask of rows that count: here the one given.

    Raises:
      UsageError: negative alpha.
    """
    if not alpha >= 0:
        raise UsageError(f"mixup_alpha is {alpha}", "give 0 (off) or a positive number")
    if alpha == 0 or images.shape[0] == 1:
        return images, targets, mask
    a = jax.random.beta(key, alpha, alpha, dtype=jnp.float32)
    weight = partner_weight(jnp.maximum(a, 1 - a), mask)
    return blend(images, weight), blend(targets, weight), mask


def partner_weight(weight: jax.Array, mask: jax.Array) -> jax.Array:
    """The scalar `weight` for every example [B], but 1 where it or its partner is masked."""
    both = (mask > 0) & (jnp.roll(mask, 1) > 0)
    return jnp.where(both, weight, jnp.ones_like(weight))


def blend(x: jax.Array, weight: jax.Array) -> jax.Array:
    """weight[i] * x[i] + (1 - weight[i]) * x[i - 1] over the leading axis; x [B, ...], weight [B]."""
    w = weight.reshape((-1,) + (1,) * (x.ndim - 1)).astype(x.dtype)
    return w * x + (1 - w) * jnp.roll(x, 1, axis=0)
