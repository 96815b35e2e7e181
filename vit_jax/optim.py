"""Optimizers, built from optax: clip by global norm, direction, decoupled weight decay, learning rate."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.adafactor import scale_by_adafactor
from vit_jax.errors import UsageError, known_names
from vit_jax.param_groups import Multiplier, Pairs, first_match, matching, path_name, paths_of

OPTIMIZERS = ("adafactor", "adam", "sgd")
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
    b2_cap: float,
    factor_min_dim: int,
    wd_mults: Pairs = (),
    multipliers: Mapping[str, Multiplier] | None = None,
) -> optax.GradientTransformation:
    """The update rule. `tx.update(grads, state, params)` gives what to add to the parameters that train.

    Frozen ones aren't in any of the three trees (param_groups.split).

    Args:
      name: "adam" (bias-corrected, decay decoupled: AdamW), "adafactor" (see there) or "sgd" (heavy ball).
      schedule: learning rate by optimizer step, the first step being 0.
      lr: the schedule's peak. Used by `wd_mode="absolute"` only.
      wd: weight decay, decoupled from the direction.
      wd_mode: "lr_scaled": w -= lr(t) * wd * w, as in the ViT and AugReg papers;
        "absolute": w -= lr(t) / lr * wd * w. Paper 0.1 at lr 1e-3 is absolute 1e-4.
      wd_mask: regex of the whole path ("encoder/block_0/mlp/fc1/kernel") of parameters that decay.
      clip_norm: largest global norm of the gradient that reaches the optimizer; None doesn't clip.
      b1: of the first moment of Adam and Adafactor. b2, eps: Adam's.
      momentum: SGD's.
      momentum_dtype: "float32" or "bfloat16" storage of the first moment or of SGD's buffer. In bfloat16
        optax rounds the decay constant too: 0.9 acts as 0.8984.
      b2_cap, factor_min_dim: Adafactor's.
      wd_mults: (regex, multiplier) pairs of parameters that decay by another weight decay than `wd`, whether
        `wd_mask` matches them or not; the first match counts.
      multipliers: path -> factor on the learning rate (param_groups.ParamGroups). In wd_mode "lr_scaled" it acts
        on the decay too, as the parameter's learning rate does; in "absolute" it doesn't (big_vision).

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
    for key, decay in (("b1", b1), ("b2", b2), ("b2_cap", b2_cap), ("momentum", momentum)):
        if not 0 <= decay < 1:
            raise UsageError(f"optim.{key} is {decay}", "give a number in [0, 1)")
    if not eps > 0:  # 0 / 0 wherever a gradient is zero
        raise UsageError(f"optim.eps is {eps}", "give a positive number")
    if factor_min_dim < 1:
        raise UsageError(f"optim.factor_min_dim is {factor_min_dim}", "give at least 1")
    if wd and wd_mode == "absolute" and not lr > 0:
        raise UsageError(f"optim.lr is {lr} with optim.wd_mode='absolute'", "give a positive lr")

    chain = [optax.clip_by_global_norm(clip_norm)] if clip_norm is not None else []
    if name == "adam":
        chain.append(optax.scale_by_adam(b1, b2, eps, mu_dtype=jnp.dtype(momentum_dtype)))
    elif name == "adafactor":
        chain.append(
            scale_by_adafactor(
                b1=b1,
                b2_cap=b2_cap,
                factor_min_dim=factor_min_dim,
                momentum_dtype=jnp.dtype(momentum_dtype),
            )
        )
    else:
        chain.append(optax.trace(momentum, accumulator_dtype=jnp.dtype(momentum_dtype)))
    scale = [_scale_by_multipliers(multipliers)] if multipliers else []
    if wd_mode == "absolute":
        chain += scale
    if wd:
        decay = wd / lr if wd_mode == "absolute" else wd  # the learning rate comes after
        chain.append(_add_decay(decay, wd_mask, wd_mults))
    if wd_mode == "lr_scaled":
        chain += scale
    chain.append(optax.scale_by_learning_rate(schedule))
    return optax.chain(*chain)


def decay_mask(params: Any, wd_mask: str) -> Any:
    """True for the parameters whose whole path matches; same structure as `params`.

    Raises:
      UsageError: the regex is malformed, or matches nothing.
    """
    decays = set(
        matching(wd_mask, paths_of(params), "optim.wd_mask", otherwise="; set optim.wd=0 for no decay")
    )
    return jax.tree_util.tree_map_with_path(lambda path, _: path_name(path) in decays, params)


def decay_factors(params: Any, wd_mask: str, wd_mults: Pairs = ()) -> Any:
    """What `optim.wd` is multiplied by, a float per parameter; same structure as `params`.

    Raises:
      UsageError: a malformed regex, or one without a match; no pairs of regex and number.
    """
    others = first_match(wd_mults, list(paths_of(params)), "optim.wd_mults")
    return jax.tree_util.tree_map_with_path(
        lambda path, decays: others.get(path_name(path), float(decays)), decay_mask(params, wd_mask)
    )


def decay_summary(params: Any, wd_mask: str, wd_mults: Pairs = ()) -> str:
    """Text for the start log: which parameters decay and which don't, with counts; blocks share a line."""
    factors = jax.tree.leaves(decay_factors(params, wd_mask, wd_mults))
    leaves = paths_of(params)
    lines = []
    for factor in sorted({0.0, 1.0, *factors}, key=lambda f: (f != 1, -f)):
        title = {1.0: "weight decay", 0.0: "no weight decay"}.get(factor, f"weight decay x {factor:g}")
        chosen = [path for path, own in zip(leaves, factors, strict=True) if own == factor]
        count = sum(math.prod(leaves[path].shape) for path in chosen)
        names = dict.fromkeys(re.sub(r"block_\d+", "block_*", path) for path in chosen)
        lines.append(f"{title}: {count:,} parameters in {len(chosen)} arrays: {', '.join(names) or '-'}")
    return "\n".join(lines)


def _add_decay(wd: float, wd_mask: str, wd_mults: Pairs) -> optax.GradientTransformation:
    def init(params: Any) -> optax.EmptyState:
        decay_factors(params, wd_mask, wd_mults)  # refuses early
        return optax.EmptyState()

    def update(updates: Any, state: optax.EmptyState, params: Any) -> tuple[Any, optax.EmptyState]:
        factors = decay_factors(params, wd_mask, wd_mults)
        decayed = jax.tree.map(lambda u, p, f: u + wd * f * p if f else u, updates, params, factors)
        return decayed, state

    return optax.GradientTransformation(init, update)


def _scale_by_multipliers(multipliers: Mapping[str, Multiplier]) -> optax.GradientTransformation:
    def scaled(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
        multiplier = multipliers.get(path_name(path), 1.0)
        if isinstance(multiplier, np.ndarray):  # [L] -> [L, 1, ...]
            multiplier = jnp.asarray(multiplier.reshape(-1, *[1] * (update.ndim - 1)), update.dtype)
        return update * multiplier

    return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scaled, updates))


def _check(value: str, key: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{key} {value!r} is unknown", known_names(value, known))
