"""Mixup and CutMix inside the step: whole batches on the device, normalised float images.

Every example is mixed with the one before it, in the *global* batch or in its group of it, so the result is the
same on any mesh, for any number of processes and micro-batches. The targets are mixed as they are; label smoothing
comes after that, in the loss, and as it is affine the order doesn't matter.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from vit_jax.errors import UsageError, known_names

PARTNERS = ("global", "per_shard")


@dataclass(frozen=True)
class Mix:
    """How the examples of a batch are mixed: which of the two methods, how far, with whom.

    Attributes:
      mixup_alpha, cutmix_alpha: of the Beta distributions; 0 turns the method off.
      cutmix_prob: share of the steps that take CutMix, where both are on.
      group: examples that mix among themselves, contiguous in the global batch; None: all of it.
    """

    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    cutmix_prob: float = 0.5
    group: int | None = None

    def __post_init__(self) -> None:
        for name in ("mixup_alpha", "cutmix_alpha"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is {getattr(self, name)}", "give 0 (off) or a positive number")
        if not 0 <= self.cutmix_prob <= 1:
            raise UsageError(f"cutmix_prob is {self.cutmix_prob}", "give a share of the steps, 0 to 1")

    @property
    def on(self) -> bool:
        """Whether anything is mixed."""
        return self.mixup_alpha > 0 or self.cutmix_alpha > 0


def group_size(partner: str, shard_examples: int | None) -> int | None:
    """Mix.group of the config's keys mixup_partner and mixup_shard_examples.

    Raises:
      UsageError: an unknown partner, or a size that is missing or not used.
    """
    if partner not in PARTNERS:
        raise UsageError(f"mixup_partner {partner!r} is unknown", known_names(partner, PARTNERS))
    if (partner == "per_shard") != (shard_examples is not None):
        raise UsageError(
            f"mixup_partner is {partner} and mixup_shard_examples {shard_examples}",
            "set mixup_shard_examples with per_shard, and only then",
        )
    return shard_examples


def check_batch(group: int | None, global_batch: int) -> None:
    """Raises UsageError for a batch that isn't made of whole groups."""
    if group is not None and global_batch % group:
        raise UsageError(
            f"global_batch {global_batch} not divisible by mixup_shard_examples {group}",
            "change one of them, or take mixup_partner=global",
        )


def mix(
    key: jax.Array, images: jax.Array, targets: jax.Array, mask: jax.Array, how: Mix
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mixes every example with its partner; method, weight and box are drawn once per step.

    Mixup: the weight of an example's own is max(a, 1 - a), a ~ Beta(alpha, alpha), as AugReg trains. CutMix
    (arXiv 1905.04899): a box of the partner's covers a share 1 - a of the image's area, a ~ Beta(alpha, alpha), at
    the same place in both; the box is cut off at the edges, and the targets are weighted by what is left of it.

    A single example stays as it is. A masked example (padding, unreadable image) is nobody's partner: its neighbour
    stays unmixed, so no blank pixels and no missing label leak into it.

    Args:
      images: [B, H, W, C] float. targets: [B, K] float. mask: [B], 1 for real examples.

    Returns:
      images and targets, same shapes and dtypes, and the mask of rows that count: here the one given.
    """
    if not how.on or images.shape[0] == 1:
        return images, targets, mask
    own, share = _weights(key, images.shape[1:3], how)
    paired = (mask > 0) & (partner(mask, how.group) > 0)
    images = blend(images, where_paired(own, paired), how.group)
    return images, blend(targets, where_paired(share, paired), how.group), mask


def _weights(key: jax.Array, size: tuple[int, int], how: Mix) -> tuple[jax.Array, jax.Array]:
    """Weight of an example's own pixels, [] or [H, W, 1], and of its own target, []."""
    kind_key, box_key = jax.random.fold_in(key, 1), jax.random.fold_in(key, 2)
    if how.cutmix_alpha == 0:
        weight = _symmetric(_beta(key, how.mixup_alpha))
        return weight, weight
    cut = jnp.bool(True)
    alpha: float | jax.Array = how.cutmix_alpha
    if how.mixup_alpha > 0:
        cut = jax.random.uniform(kind_key) < how.cutmix_prob
        alpha = jnp.where(cut, how.cutmix_alpha, how.mixup_alpha)  # one sampler for both
    a = _beta(key, alpha)
    box = cutmix_box(box_key, a, size)
    weight = _symmetric(a)
    return jnp.where(cut, 1.0 - box, weight)[..., None], jnp.where(cut, 1.0 - box.mean(), weight)


def _beta(key: jax.Array, alpha: float | jax.Array) -> jax.Array:
    return jax.random.beta(key, alpha, alpha, dtype=jnp.float32)


def _symmetric(a: jax.Array) -> jax.Array:
    return jnp.maximum(a, 1 - a)


def cutmix_box(key: jax.Array, a: jax.Array, size: tuple[int, int]) -> jax.Array:
    """[H, W] float32, 1 inside a box with the image's aspect ratio, 1 - a of its area, and its centre anywhere.

    Half sides are whole pixels, and what lies beyond the edges is cut off, both as in the published code.
    """
    shrink = jnp.sqrt(1 - a)
    inside = []
    for axis, length in enumerate(size):
        half = (length * shrink).astype(jnp.int32) // 2
        centre = jax.random.randint(jax.random.fold_in(key, axis), (), 0, length)
        at = jnp.arange(length)
        inside.append((at >= centre - half) & (at < centre + half))
    return (inside[0][:, None] & inside[1][None, :]).astype(jnp.float32)


def where_paired(weight: jax.Array, paired: jax.Array) -> jax.Array:
    """`weight` [...] for every example, [B, ...], but 1 where `paired` [B] is false."""
    return jnp.where(paired.reshape((-1,) + (1,) * weight.ndim), weight[None], jnp.ones_like(weight)[None])


def partner(x: jax.Array, group: int | None) -> jax.Array:
    """The example before each, x[i - 1]; of the first of a group, its last. x [B, ...]."""
    if group is None:
        return jnp.roll(x, 1, axis=0)
    return jnp.roll(x.reshape(-1, group, *x.shape[1:]), 1, axis=1).reshape(x.shape)


def blend(x: jax.Array, weight: jax.Array, group: int | None = None) -> jax.Array:
    """weight[i] * x[i] + (1 - weight[i]) * partner of x[i]; x [B, ...], weight [B] or broadcastable to x."""
    w = weight.reshape(weight.shape + (1,) * (x.ndim - weight.ndim)).astype(x.dtype)
    return w * x + (1 - w) * partner(x, group)
