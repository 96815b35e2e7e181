"""Losses and accuracies per example; the caller takes sum(x * mask) / sum(mask) over the real ones."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from vit_jax.errors import UsageError, known_names

Loss = Callable[[jax.Array, jax.Array], jax.Array]


def softmax_xent(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """-sum_k t_k log softmax(x)_k. Targets that don't sum to 1 are used as they are.

    Args:
      logits: [B, K], any float dtype; computed in float32.
      targets: [B, K] float.

    Returns:
      [B] float32.
    """
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.sum(targets.astype(jnp.float32) * log_p, axis=-1)


def sigmoid_xent(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Binary cross-entropy **summed** over the classes, as for JFT and ImageNet-21k (ViT, table 3).

    Args:
      logits: [B, K], any float dtype; computed in float32.
      targets: [B, K] float in 0..1; a row without any label counts like the others.

    Returns:
      [B] float32.
    """
    x, t = logits.astype(jnp.float32), targets.astype(jnp.float32)
    return -jnp.sum(t * jax.nn.log_sigmoid(x) + (1 - t) * jax.nn.log_sigmoid(-x), axis=-1)


LOSSES: dict[str, Loss] = {"softmax_xent": softmax_xent, "sigmoid_xent": sigmoid_xent}


def make_loss(name: str, *, label_smoothing: float) -> Loss:
    """The named loss as (logits [B, K], targets [B, K]) -> [B] float32, targets smoothed by e before use.

    softmax_xent: (1 - e) t + e / K, mixing in the uniform distribution.
    sigmoid_xent: (1 - e) t + e / 2, mixing in a fair coin for each class.

    Raises:
      UsageError: unknown name, or smoothing outside [0, 1).
    """
    if name not in LOSSES:
        raise UsageError(f"loss {name!r} is unknown", known_names(name, LOSSES))
    if not 0 <= label_smoothing < 1:
        raise UsageError(f"label_smoothing is {label_smoothing}", "give a number in [0, 1)")
    loss = LOSSES[name]

    def smoothed(logits: jax.Array, targets: jax.Array) -> jax.Array:
        off = label_smoothing / (logits.shape[-1] if name == "softmax_xent" else 2)
        return loss(logits, (1 - label_smoothing) * targets + off)

    return smoothed if label_smoothing else loss


def to_targets(labels: jax.Array, num_classes: int) -> jax.Array:
    """Targets [B, K] float32 of class indices [B] (a negative one gives a zero row) or of rows [B, K]."""
    if labels.ndim == 1:
        return jax.nn.one_hot(labels, num_classes, dtype=jnp.float32)
    return labels.astype(jnp.float32)


def top1_correct(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether the first largest logit is (one of) the example's label(s).

    Args:
      logits: [B, K].
      labels: [B] class indices, or [B, K] with a positive entry per label.

    Returns:
      correct [B] float32, and counted [B] float32: 0 for an example without any label (a zero row or a
      negative index), which has no right answer and stays out of the accuracy. A row with a NaN is wrong.
    """
    best = jnp.argmax(logits, axis=-1)
    return _score(logits, labels, best[:, None])


def topk_correct(logits: jax.Array, labels: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Whether one of the k largest logits is a label; arguments and results as in `top1_correct`."""
    _, best = jax.lax.top_k(logits, min(k, logits.shape[-1]))
    return _score(logits, labels, best)


def _score(logits: jax.Array, labels: jax.Array, best: jax.Array) -> tuple[jax.Array, jax.Array]:
    """best: [B, k] class indices."""
    if labels.ndim == 1:
        hit = jnp.any(best == labels[:, None], axis=-1)
        counted = labels >= 0
    else:
        hit = jnp.any(jnp.take_along_axis(labels, best, axis=-1) > 0, axis=-1)
        counted = jnp.any(labels > 0, axis=-1)
    hit &= ~jnp.any(jnp.isnan(logits), axis=-1)
    return (hit & counted).astype(jnp.float32), counted.astype(jnp.float32)
