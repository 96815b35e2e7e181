"""Whole weights at the place of use: one explicit gather of a layer's FSDP shards instead of the compiler's choice.

Left to the shardings of the parameters alone, XLA turns each matmul into a loop over shards: by its own estimate
3.5 times the step of L/16 on 16 chips. Kernels are cast to the computation's type before they move, which halves
the bytes; their gradients come back by the reverse, summed over the mesh in that type.
"""

import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import AbstractMesh, Mesh

from vit_jax import sharding

PyTree = Any
Gather = Callable[[PyTree], PyTree]

# Parameters that the layers of an encoder gather for themselves, one layer at a time, and again going backward.
_IN_LAYERS = re.compile(r"^encoder/block")


def layer_gather(mesh: Mesh | AbstractMesh, fsdp_min_size: int, dtype: jnp.dtype | str) -> Gather | None:
    """For a model's field `gather`: the parameters of one layer -> the same, whole but for tensor parallelism.

    Kernels come in `dtype`, that of the computation; biases and scales of norms as they are.

    Returns:
      None where nothing is split over `fsdp`.
    """
    if mesh.shape["fsdp"] == 1:
        return None

    def gather(path: str, x: jax.Array, whole: jax.sharding.NamedSharding) -> jax.Array:
        x = x.astype(dtype) if path.endswith("kernel") else x
        return jax.lax.with_sharding_constraint(x, whole)

    return lambda params: _map_split(gather, params, mesh, fsdp_min_size)


def gather_outside_layers(mesh: Mesh | AbstractMesh, fsdp_min_size: int, model: nn.Module) -> Gather:
    """For the training step: all parameters -> the same with those whole that no layer gathers for itself.

    Their types stay: the classifier computes in float32.
    """
    by_layers = getattr(model, "gather", None) is not None

    def gather(path: str, x: jax.Array, whole: jax.sharding.NamedSharding) -> jax.Array:
        return x if by_layers and _IN_LAYERS.match(path) else jax.lax.with_sharding_constraint(x, whole)

    return lambda params: _map_split(gather, params, mesh, fsdp_min_size)


def _map_split(
    function: Callable[[str, jax.Array, jax.sharding.NamedSharding], jax.Array],
    params: PyTree,
    mesh: Mesh | AbstractMesh,
    fsdp_min_size: int,
) -> PyTree:
    """Calls (path, leaf, its sharding without fsdp) for the leaves that `fsdp` splits; the others stay."""

    def placed(min_size: int) -> PyTree:
        return sharding.tree_shardings(params, mesh, rules=sharding.TENSOR_RULES, fsdp_min_size=min_size)

    def visit(path: Any, x: jax.Array, split: Any, whole: Any) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return x if split.spec == whole.spec else function(name, x, whole)

    return jax.tree_util.tree_map_with_path(visit, params, placed(fsdp_min_size), placed(sys.maxsize))
