"""Digests of arrays that depend on their content alone, not on sharding, mesh, process count or backend.

Every element contributes mix(bits, position) to a sum modulo 2**32, in two independent lanes. Sums don't care
how the array is split; `_mix` is a bijection of 32 bits, so any change of one element changes both sums for
certain, and other changes (swapped elements, shifted blocks) go unseen with probability 2**-64. All
arithmetic is on uint32, hence exact everywhere, and the work stays on the device that holds the shard.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.paths import named_leaves

_GOLDEN = 0x9E3779B9  # odd: multiplying by it permutes the 32-bit numbers
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@dataclasses.dataclass(frozen=True)
class Started:
    """Digests under way on the devices."""

    names: tuple[str, ...]
    partial: tuple[jax.Array, ...]  # per name: uint32 [parts, 2], to be summed over the parts
    combined: jax.Array | None  # uint32 [names, 2], whole on every process; where `partial` isn't all at hand


def tree_digests(tree: Any) -> dict[str, str]:
    """Path -> digest (16 hex digits) of every array: any shape, bool, integer or float, numpy too."""
    return finish_digests(start_digests(tree))


def start_digests(tree: Any) -> Started:
    """Dispatch the digests of all arrays without waiting; collective: every process calls it.

    The arrays may be donated to the next computation as soon as this returns.
    """
    leaves = named_leaves(tree)
    partial = tuple(_start(leaf) for leaf in leaves.values())
    if all(part.is_fully_addressable for part in partial):
        return Started(tuple(leaves), partial, None)
    mesh = next(part.sharding.mesh for part in partial if not part.is_fully_addressable)
    combined = _combiner(NamedSharding(mesh, PartitionSpec()))(partial)
    if mesh.devices.flat[0].platform == "cpu":
        # Emulated devices share few threads: two collective programs at once can wait on each other forever.
        combined.block_until_ready()
    return Started(tuple(leaves), (), combined)


def finish_digests(started: Started) -> dict[str, str]:
    """Fetch what `start_digests` began: path -> 16 hex digits. Not collective; fit for another thread."""
    if started.combined is None:
        sums = [part.sum(axis=0, dtype=np.uint32) for part in jax.device_get(started.partial)]
    else:
        sums = jax.device_get(started.combined)
    return {name: f"{int(s[0]):08x}{int(s[1]):08x}" for name, s in zip(started.names, sums, strict=True)}


def _start(leaf: Any) -> jax.Array:
    """Partial sums of one array, uint32 [parts, 2], computed without any communication."""
    if not isinstance(leaf, jax.Array):
        # The bits go over as words: an explicit transfer, legal under a transfer guard, that casts no number.
        return _whole(jax.device_put(_host_words(np.asarray(leaf))))
    if isinstance(leaf.sharding, NamedSharding):
        return _per_shard(leaf.sharding)(leaf)
    return _whole(leaf)


def _host_words(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    if array.dtype.itemsize not in (1, 2, 4, 8) or array.dtype.kind in "OSUmMc":
        raise TypeError(f"no digest for dtype {array.dtype}")
    if array.dtype.itemsize == 8:
        return np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint32)
    return np.ascontiguousarray(array).reshape(array.shape).view(_UNSIGNED[array.dtype.itemsize])


def _words(x: jax.Array) -> jax.Array:
    """Bits of each element as uint32; 64-bit elements give a last axis of two."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    if jnp.issubdtype(x.dtype, jnp.complexfloating) or x.dtype.itemsize not in (1, 2, 4, 8):
        raise TypeError(f"no digest for dtype {x.dtype}")
    if x.dtype.itemsize == 8:
        return jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)


def _mix(h: jax.Array) -> jax.Array:
    """A bijection of 32-bit numbers in which every input bit reaches every output bit."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    return h ^ (h >> 16)


def _lane_sums(x: jax.Array, offsets: tuple[jax.Array, ...], shape: tuple[int, ...]) -> jax.Array:
    """Sums [2] over a block whose first element stands at `offsets` of an array of this whole shape."""
    words = _words(x)
    whole = (*shape, *words.shape[len(shape) :])
    # Lane 0 counts elements in row order. That wraps at 2**32 elements; lane 1 mixes the index of each
    # dimension by itself and doesn't.
    flat = jnp.zeros(words.shape, jnp.uint32)
    hashed = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(whole):
        index = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        if axis < len(offsets):
            index = index + offsets[axis]
        flat = flat * jnp.uint32(size % 2**32) + index
        hashed = hashed + _mix(index * jnp.uint32(_GOLDEN) + jnp.uint32(axis + 1))
    lanes = (_mix(words + flat * jnp.uint32(_GOLDEN)), _mix(words ^ _mix(hashed + jnp.uint32(0x51ED270B))))
    return jnp.stack([jnp.sum(lane, dtype=jnp.uint32) for lane in lanes])


@jax.jit
def _whole(x: jax.Array) -> jax.Array:
    return _lane_sums(x, (), x.shape)[None]


@functools.cache
def _per_shard(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    """A jitted function from an array of this sharding to uint32 [devices, 2], a row made on each device."""
    mesh = sharding.mesh
    axes_of = [(part,) if isinstance(part, str) else tuple(part or ()) for part in sharding.spec]
    copies = [name for name in mesh.axis_names if not any(name in axes for axes in axes_of)]

    @jax.jit
    def digest(x: jax.Array) -> jax.Array:
        def one_device(block: jax.Array) -> jax.Array:
            offsets = [
                jax.lax.axis_index(axes).astype(jnp.uint32) * jnp.uint32(size) if axes else jnp.uint32(0)
                for axes, size in zip(axes_of, block.shape, strict=False)
            ]
            sums = _lane_sums(block, tuple(offsets), x.shape)
            if copies:  # of equal blocks on several devices one counts
                sums = jnp.where(jax.lax.axis_index(tuple(copies)) == 0, sums, jnp.zeros_like(sums))
            return sums[None]

        rows = PartitionSpec(mesh.axis_names)
        return jax.shard_map(one_device, mesh=mesh, in_specs=sharding.spec, out_specs=rows, check_vma=False)(
            x
        )

    return digest


@functools.cache
def _combiner(out: NamedSharding) -> Callable[[tuple[jax.Array, ...]], jax.Array]:
    def combine(partial: tuple[jax.Array, ...]) -> jax.Array:
        return jnp.stack([jnp.sum(part, axis=0, dtype=jnp.uint32) for part in partial])

    return jax.jit(combine, out_shardings=out)
