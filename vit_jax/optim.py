"""Optimizers, built from optax: clip by global norm, direction, decoupled weight decay, learning rate."""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vit_jax.errors import UsageError, known_names

OPTIMIZERS = ("adam", "sgd")
WD_MODES = ("lr_scaled", "absolute")
MOMENTUM_DTYPES = ("float32", "bfloat16")


def make_optimizer(
    *,
    name: str,
    schedule: Callable[[jax.typing.ArrayLike], jax.Array],
    lr: float,
    wd: float,
    wd_mode: str,
    wd_mask: str,
    clip_norm: float | None,
    b1: float,
    b2: float,
    eps: float,
    momentum: float,
    momentum_dtype: str,
) -> optax.GradientTransformation:
    """The update rule. `tx.update(grads, state, params)` gives what to add to the parameters.

    Args:
      name: "adam" (bias-corrected, decay decoupled: AdamW) or "sgd" (heavy ball).
      schedule: learning rate by optimizer step, the first step being 0.
      lr: the schedule's peak. Used by `wd_mode="absolute"` only.
      wd: weight decay, decoupled from the direction.
      wd_mode: "lr_scaled": w -= lr(t) * wd * w, as in the ViT and AugReg papers;
        "absolute": w -= lr(t) / lr * wd * w. Paper 0.1 at lr 1e-3 is absolute 1e-4.
      wd_mask: regex of the whole path ("encoder/block_0/mlp/fc1/kernel") of parameters that decay.
      clip_norm: largest global norm of the gradient that reaches the optimizer; None doesn't clip.
      b1, b2, eps: Adam's.
      momentum: SGD's.
      momentum_dtype: "float32" or "bfloat16" storage of Adam's first moment or SGD's buffer. In bfloat16
        optax rounds the decay constant too: 0.9 acts as 0.8984.

    Raises:
      UsageError: unknown name or mode, value out of range; on `init`, a decay that no parameter gets.
    """
    _check(name, "optim.name", OPTIMIZERS)
    _check(wd_mode, "optim.wd_mode", WD_MODES)
    _check(momentum_dtype, "optim.momentum_dtype", MOMENTUM_DTYPES)
    if clip_norm is not None and not clip_norm > 0:
        raise UsageError(f"optim.clip_norm is {clip_norm}", "give a positive norm, or None not to clip")
    if not wd >= 0:
        raise UsageError(f"optim.wd is {wd}", "give 0 or a positive number")
    for key, decay in (("b1", b1), ("b2", b2), ("momentum", momentum)):
        if not 0 <= decay < 1:
            raise UsageError(f"optim.{key} is {decay}", "give a number in [0, 1)")
    if not eps > 0:  # 0 / 0 wherever a gradient is zero
        raise UsageError(f"optim.eps is {eps}", "give a positive number")
    if wd and wd_mode == "absolute" and not lr > 0:
        raise UsageError(f"optim.lr is {lr} with optim.wd_mode='absolute'", "give a positive lr")

    chain = [optax.clip_by_global_norm(clip_norm)] if clip_norm is not None else []
    if name == "adam":
        chain.append(optax.scale_by_adam(b1, b2, eps, mu_dtype=jnp.dtype(momentum_dtype)))
    else:
        chain.append(optax.trace(momentum, accumulator_dtype=jnp.dtype(momentum_dtype)))
    if wd:
        decay = wd / lr if wd_mode == "absolute" else wd  # the learning rate comes after
        chain.append(optax.add_decayed_weights(decay, mask=lambda params: decay_mask(params, wd_mask)))
    chain.append(optax.scale_by_learning_rate(schedule))
    return optax.chain(*chain)


def decay_mask(params: Any, wd_mask: str) -> Any:
    """True for the parameters whose whole path matches; same structure as `params`.

    Raises:
      UsageError: the regex is malformed, or matches nothing.
    """
    try:
        regex = re.compile(wd_mask)
    except re.error as e:
        raise UsageError(
            f"optim.wd_mask {wd_mask!r} is no regular expression: {e}", "mend the pattern"
        ) from e
    mask = jax.tree_util.tree_map_with_path(lambda path, _: regex.fullmatch(_name(path)) is not None, params)
    if not any(jax.tree.leaves(mask)):
        first = _name(jax.tree_util.tree_leaves_with_path(params)[0][0])
        raise UsageError(
            f"optim.wd_mask {wd_mask!r} matches no parameter",
            f"it must match whole paths such as {first!r}; set optim.wd=0 for no decay",
        )
    return mask


def decay_summary(params: Any, wd_mask: str) -> str:
    """Text for the start log: which parameters decay and which don't, with counts; blocks share a line."""
    mask = jax.tree.leaves(decay_mask(params, wd_mask))
    flat = jax.tree_util.tree_leaves_with_path(params)
    lines = []
    for wanted, title in ((True, "weight decay"), (False, "no weight decay")):
        chosen = [(path, x) for (path, x), decays in zip(flat, mask, strict=True) if decays is wanted]
        count = sum(math.prod(x.shape) for _, x in chosen)
        names = dict.fromkeys(re.sub(r"block_\d+", "block_*", _name(path)) for path, _ in chosen)
        lines.append(f"{title}: {count:,} parameters in {len(chosen)} arrays: {', '.join(names) or '-'}")
    return "\n".join(lines)


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _check(value: str, key: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{key} {value!r} is unknown", known_names(value, known))
