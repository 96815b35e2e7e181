"""Adafactor as "Scaling Vision Transformers" (arXiv 2106.04560) adapts it: the second moment as rows and columns.

Of arXiv 1804.04235 it keeps the factored second moment alone: no step size relative to the parameters, no clipping
of updates. The moment's decay is capped, and a first moment, in bfloat16 if wanted, comes on top.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from vit_jax.param_groups import merge, paths_of, split
from vit_jax.sharding import STACKED

PyTree = Any

_EXPONENT = 0.8  # of the growing decay, 1 - t^-0.8
_EPS = 1e-30  # added to squared gradients: keeps 0 / 0 away and is lost beside any other


class FactoredState(NamedTuple):
    """Means of squared gradients, float32.

    The axis that a mean is over stays, with size 1, so that a mesh splits the others as it splits the parameter's.

    Attributes:
      count: int32 [], updates made.
      rows: of factored parameters, over their longest axis.
      columns: of the same, over their second longest.
      full: of all other parameters, of their shapes.
    """

    count: jax.Array
    rows: PyTree
    columns: PyTree
    full: PyTree


def scale_by_adafactor(
    *, b1: float, b2_cap: float, factor_min_dim: int, momentum_dtype: jnp.dtype
) -> optax.GradientTransformation:
    """Gradients over the root of their second moment, then averaged: big_vision's direction of that name.

    Args:
      b1: decay of the average, which isn't corrected for its start at 0; 0: no average.
      b2_cap: the second moment's decay at update t = 1, 2, ... is min(b2_cap, 1 - t^-0.8).
      factor_min_dim: a parameter is factored over its two longest axes, a matrix for each index of the others, if
        both have at least this size. The layer axis of stacked layers is none of them.
      momentum_dtype: that the average is stored in.
    """
    scale = _scale_by_factored_rms(b2_cap, factor_min_dim)
    if b1 == 0:
        return scale
    return optax.chain(scale, optax.ema(b1, debias=False, accumulator_dtype=momentum_dtype))


def factored_axes(tree: PyTree, factor_min_dim: int) -> dict[str, tuple[int, int]]:
    """Path -> (longest axis, second longest), of the parameters that are factored; the later of equals is longer.

    Args:
      tree: nested dicts; leaves with a `shape`.
    """
    found = {}
    for path, leaf in paths_of(tree).items():
        first = 1 if STACKED.search(path) else 0
        axes = sorted(range(first, len(leaf.shape)), key=lambda axis, leaf=leaf: leaf.shape[axis])
        if len(axes) >= 2 and leaf.shape[axes[-2]] >= factor_min_dim:
            found[path] = (axes[-1], axes[-2])
    return found


def _scale_by_factored_rms(b2_cap: float, factor_min_dim: int) -> optax.GradientTransformation:
    def init(params: PyTree) -> FactoredState:
        axes = factored_axes(params, factor_min_dim)
        plain, factored = split(params, axes)
        rows = _means(factored, axes, 0)
        columns = _means(factored, axes, 1)
        zeros = jax.tree.map(jnp.zeros_like, (rows, columns, plain))
        return FactoredState(jnp.zeros((), jnp.int32), *zeros)

    def update(grads: PyTree, state: FactoredState, params: PyTree = None) -> tuple[PyTree, FactoredState]:
        del params
        axes = factored_axes(grads, factor_min_dim)
        plain, factored = split(grads, axes)
        t = (state.count + 1).astype(jnp.float32)
        decay = jnp.minimum(b2_cap, 1.0 - t**-_EXPONENT)

        def averaged(old: jax.Array, new: jax.Array) -> jax.Array:
            return decay * old + (1.0 - decay) * new

        squares = jax.tree.map(lambda g: jnp.square(g) + _EPS, grads)
        plain_squares, factored_squares = split(squares, axes)
        full = jax.tree.map(averaged, state.full, plain_squares)
        rows = jax.tree.map(averaged, state.rows, _means(factored_squares, axes, 0))
        columns = jax.tree.map(averaged, state.columns, _means(factored_squares, axes, 1))

        # The rank-1 matrix with these means of rows and columns: rows x columns / mean. Each root for itself: their
        # product may leave float32's range.
        means = _means(rows, axes, 1)
        direction = jax.tree.map(
            lambda g, row, column, mean: g * jax.lax.rsqrt(row / mean) * jax.lax.rsqrt(column),
            factored, rows, columns, means,
        )  # fmt: skip
        plain_direction = jax.tree.map(lambda g, v: g * jax.lax.rsqrt(v), plain, full)
        new = FactoredState(optax.safe_increment(state.count), rows, columns, full)
        return merge(direction, plain_direction), new

    return optax.GradientTransformation(init, update)


def _means(tree: PyTree, axes: Mapping[str, tuple[int, int]], which: int) -> PyTree:
    """Each leaf's mean over one of its two axes, which stays with size 1."""
    flat, treedef = jax.tree.flatten(tree)
    over = [axes[path][which] for path in paths_of(tree)]
    return jax.tree.unflatten(
        treedef, [x.mean(axis, keepdims=True) for x, axis in zip(flat, over, strict=True)]
    )
