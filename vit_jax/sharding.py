"""Mesh ('replica', 'fsdp', 'tensor') and the rules that place every array on it.

A rule is a path regex and the mesh axis of each dimension. FSDP then takes the largest dimension left that it
divides, the first of equals.
The placement of a leaf depends on the end of its path and on its shape only, so the optimizer state and
an average of the weights, whose paths end in the parameter paths, are placed like the parameters.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from vit_jax.errors import UsageError

MESH_AXES = ("replica", "fsdp", "tensor")
BATCH_AXES = ("replica", "fsdp")

Rule = tuple[str, tuple[str | None, ...]]
# Heads and hidden units are independent of each other: split them and only `out` and `fc2` need a sum.
TENSOR_RULES: tuple[Rule, ...] = (
    (r"attn/(query|key|value)/kernel", (None, "tensor", None)),  # [D, H, hd]
    (r"attn/(query|key|value)/bias", ("tensor", None)),  # [H, hd]
    (r"attn/out/kernel", ("tensor", None, None)),  # [H, hd, D]
    (r"posemb_relative", (None, "tensor", None)),  # [2 N - 1, H, hd]
    # mlp of the ViT; token_mlp and channel_mlp of the Mixer. gate belongs to SwiGLU.
    (r"(token_|channel_)?mlp/(fc1|gate)/kernel", (None, "tensor")),  # [D, M]
    (r"(token_|channel_)?mlp/(fc1|gate)/bias", ("tensor",)),  # [M]
    (r"(token_|channel_)?mlp/fc2/kernel", ("tensor", None)),  # [M, D]
)
# Convolutions have no rule: each is followed or preceded by a GroupNorm, whose groups a split would cut.

# Leaves under this path carry a leading layer axis. Splitting it would gather whole layers at once.
STACKED = re.compile(r"(^|/)encoder/blocks/")

# A larger model with more than this share of replicated bytes isn't sharded, whatever the mesh says.
MAX_UNSHARDED = 0.01
LARGE_MODEL = 50_000_000


def make_mesh(replica: int, fsdp: int, tensor: int, devices: Sequence[Any] | None = None) -> Mesh:
    """Mesh of all `devices` (default: all of the job) with axes `MESH_AXES`; one size may be -1.

    On several TPU slices the replica axis spans the slices, so that only it uses the slow network.

    Raises:
      UsageError: the sizes don't multiply to the number of devices, or don't fit their wiring.
    """
    devices = list(jax.devices() if devices is None else devices)
    shape = _mesh_shape((replica, fsdp, tensor), len(devices))
    slices = len({getattr(d, "slice_index", 0) for d in devices})
    try:
        if slices == 1:
            grid = mesh_utils.create_device_mesh(
                shape, devices, allow_split_physical_axes=_may_split(devices)
            )
        elif shape[0] % slices == 0:
            grid = mesh_utils.create_hybrid_device_mesh(
                (shape[0] // slices, *shape[1:]),
                (slices, 1, 1),
                devices,
                allow_split_physical_axes=_may_split(devices),
            )
        elif devices[0].platform == "tpu":
            raise UsageError(
                f"mesh.replica={shape[0]} can't span {slices} slices", f"make it a multiple of {slices}"
            )
        else:  # GPU hosts are "slices" too, but their network is meant for FSDP
            ordered = sorted(devices, key=lambda d: (d.slice_index, d.id))
            grid = np.array(ordered, dtype=object).reshape(shape)
    except NotImplementedError as e:
        raise UsageError(
            f"mesh {_describe(shape)} doesn't fit the wiring of {len(devices)} {devices[0].device_kind}: {e}",
            "choose sizes that are products of the slice's physical axes",
        ) from e
    # The default, Explicit, makes a plain convolution fail.
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Sharding of host batches: the leading axis [B, ...] over `BATCH_AXES`, the same on all of `tensor`."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def data_shards(mesh: Mesh | AbstractMesh) -> int:
    """Number of parts that a batch is cut into."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def constrain_activations(mesh: Mesh | AbstractMesh) -> Callable[[jax.Array], jax.Array]:
    """A function for the model that keeps activations [B, ...] split over the batch and nothing else.

    Without it the compiler lets the shardings of FSDP parameters leak into the activations (6x the memory).
    A batch that the shards don't divide is left alone: the one-image dummy of `model.init`.
    """
    sharding, shards = batch_sharding(mesh), data_shards(mesh)

    def constrain(x: jax.Array) -> jax.Array:
        return x if x.shape[0] % shards else jax.lax.with_sharding_constraint(x, sharding)

    return constrain


def check_batch(global_batch: int, mesh: Mesh | AbstractMesh, accum_steps: int) -> int:
    """Examples per data shard and micro-batch.

    Raises:
      UsageError: a size isn't positive, or every micro-batch can't be spread evenly over the data shards.
    """
    for key, value in (("global_batch", global_batch), ("accum_steps", accum_steps)):
        if value < 1:
            raise UsageError(f"{key} is {value}", "give a whole number of at least 1")
    shards = data_shards(mesh)
    unit = shards * accum_steps
    if global_batch % unit:
        each = f"{global_batch / unit:.4g} per device" + (" and micro-batch" if accum_steps > 1 else "")
        by = f"{shards} data shards" + (f" x {accum_steps} accum_steps" if accum_steps > 1 else "")
        low = global_batch // unit * unit
        raise UsageError(
            f"global_batch {global_batch} not divisible by {by}: {each}",
            f"use {low} or {low + unit}" if low else f"use {unit} or a multiple",
        )
    return global_batch // unit


def tree_shardings(
    abstract_tree: Any, mesh: Mesh | AbstractMesh, *, rules: Sequence[Rule], fsdp_min_size: int
) -> Any:
    """Sharding of every leaf: same structure as `abstract_tree`, whose leaves have `.shape`.

    Args:
      abstract_tree: parameters, optimizer state or a whole train state (from `jax.eval_shape`, or real).
      mesh: axes `MESH_AXES`.
      rules: (path regex, mesh axis or None per dimension); the regex matches whole names at the path's end
        and the first match counts; dimensions are those without the layer axis. `TENSOR_RULES` suits all
        models here.
        A dimension that its mesh axis doesn't divide stays whole.
      fsdp_min_size: leaves with fewer elements (per layer) aren't split over `fsdp`.
    """
    paths, leaves, treedef = _flatten(abstract_tree)
    specs = _specs(paths, leaves, mesh.shape, rules, fsdp_min_size)
    return jax.tree.unflatten(treedef, [NamedSharding(mesh, spec) for spec in specs])


def unsharded_fraction(
    abstract_params: Any, mesh: Mesh | AbstractMesh, *, rules: Sequence[Rule], fsdp_min_size: int
) -> float:
    """Share of the bytes that every device of the `fsdp` axis holds in full; 0 if that axis has size 1."""
    paths, leaves, _ = _flatten(abstract_params)
    return _unsharded(paths, leaves, mesh.shape, rules, fsdp_min_size)[0]


def check_unsharded(
    abstract_params: Any, mesh: Mesh | AbstractMesh, *, rules: Sequence[Rule], fsdp_min_size: int
) -> None:
    """Refuses a mesh on which FSDP leaves much of a large model replicated.

    Widths such as 1408 = 128 x 11 (g) and 1664 = 128 x 13 (G) have no dimension for fsdp=256.

    Raises:
      UsageError: more than `MAX_UNSHARDED` of the bytes of more than `LARGE_MODEL` parameters.
    """
    paths, leaves, _ = _flatten(abstract_params)
    fraction, worst = _unsharded(paths, leaves, mesh.shape, rules, fsdp_min_size)
    if fraction <= MAX_UNSHARDED or sum(math.prod(x.shape) for x in leaves) <= LARGE_MODEL:
        return
    fsdp = mesh.shape["fsdp"]

    def fits(size: int) -> bool:
        sizes = {**mesh.shape, "fsdp": size}
        return _unsharded(paths, leaves, sizes, rules, fsdp_min_size)[0] <= MAX_UNSHARDED

    smaller = [n for n in range(fsdp // 2, 0, -1) if fsdp % n == 0 and fits(n)]  # 1 always fits
    raise UsageError(
        f"mesh.fsdp={fsdp} leaves {fraction:.1%} of the parameter bytes whole on every device, for example "
        f"{paths[worst]} {list(leaves[worst].shape)}; fsdp_min_size={fsdp_min_size}",
        f"use mesh.fsdp={smaller[0]} and the rest of the devices in mesh.replica, or lower fsdp_min_size",
    )


def sharding_table(abstract_tree: Any, shardings: Any) -> str:
    """Text for the start log: path, shape, spec and bytes per device. Blocks that agree share a line."""
    paths, leaves, _ = _flatten(abstract_tree)
    lines: dict[tuple[str, str, str], list[int]] = {}
    for path, leaf, sharding in zip(paths, leaves, jax.tree.leaves(shardings), strict=True):
        name = re.sub(r"block_\d+", "block_*", path)
        key = (name, str(list(leaf.shape)), str(sharding.spec))
        lines.setdefault(key, []).append(_local_bytes(leaf, sharding))
    rows = [("path", "shape", "spec", "bytes per device")]
    for (name, shape, spec), sizes in lines.items():
        times = f" ({len(sizes)} x {sizes[0]:,})" if len(sizes) > 1 else ""
        rows.append((name, shape, spec, f"{sum(sizes):,}{times}"))
    rows.append(("total", "", "", f"{sum(sum(sizes) for sizes in lines.values()):,}"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[3]]) for r in rows)


def bytes_per_device(abstract_tree: Any, shardings: Any) -> int:
    """Bytes of the tree that one device holds."""
    leaves = jax.tree.leaves(abstract_tree)
    return sum(_local_bytes(x, s) for x, s in zip(leaves, jax.tree.leaves(shardings), strict=True))


def _mesh_shape(sizes: tuple[int, int, int], count: int) -> tuple[int, ...]:
    """Sizes with the -1 replaced."""
    for axis, size in zip(MESH_AXES, sizes, strict=True):
        if size < 1 and size != -1:
            raise UsageError(f"mesh.{axis} is {size}", "give a size of at least 1, or -1 for the rest")
    if sizes.count(-1) > 1:
        raise UsageError(f"mesh {_describe(sizes)} leaves more than one size open", "only one may be -1")
    known = math.prod(size for size in sizes if size != -1)
    if count % known or (-1 not in sizes and known != count):
        raise UsageError(
            f"mesh {_describe(sizes)} needs {'a multiple of ' if -1 in sizes else ''}{known} devices, "
            f"but there are {count}",
            "the sizes must multiply to the number of devices; one may be -1 for the rest",
        )
    return tuple(count // known if size == -1 else size for size in sizes)


def _describe(sizes: Sequence[int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in zip(MESH_AXES, sizes, strict=True))


def _may_split(devices: Sequence[Any]) -> bool:
    """As `jax.make_mesh`: v5e's torus may be cut inside a physical axis without loss."""
    return devices[0].device_kind in ("TPU v5 lite", "TPU v5e")


def _flatten(tree: Any) -> tuple[list[str], list[Any], Any]:
    """Paths joined by '/', leaves, structure."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(tree)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flat]
    return paths, [leaf for _, leaf in flat], treedef


def _specs(
    paths: Sequence[str],
    leaves: Sequence[Any],
    sizes: Mapping[str, int],
    rules: Sequence[Rule],
    fsdp_min_size: int,
) -> Iterator[PartitionSpec]:
    compiled = [(re.compile(rf"(?:^|/)(?:{pattern})$"), axes) for pattern, axes in rules]
    for path, leaf in zip(paths, leaves, strict=True):
        layer_axis = int(STACKED.search(path) is not None and len(leaf.shape) > 0)
        dims = leaf.shape[layer_axis:]
        axes = next((axes for regex, axes in compiled if regex.search(path)), ())
        spec = _leaf_spec(dims, axes, sizes, fsdp_min_size)
        yield PartitionSpec(*([None] * layer_axis + spec if spec else []))


def _leaf_spec(
    dims: Sequence[int], axes: tuple[str | None, ...], sizes: Mapping[str, int], fsdp_min_size: int
) -> list[str | None]:
    """Mesh axis of each dimension, without trailing None."""
    spec: list[str | None] = [None] * len(dims)
    if len(axes) == len(dims):  # statistics of another rank than their parameter know no rule
        for i, axis in enumerate(axes):
            if axis is not None and sizes[axis] > 1 and dims[i] % sizes[axis] == 0:
                spec[i] = axis
    fsdp = sizes["fsdp"]
    if fsdp > 1 and math.prod(dims) >= fsdp_min_size:
        free = [i for i, n in enumerate(dims) if spec[i] is None and n and n % fsdp == 0]
        if free:
            spec[max(free, key=lambda i: dims[i])] = "fsdp"
    while spec and spec[-1] is None:
        spec.pop()
    return spec


def _unsharded(
    paths: Sequence[str],
    leaves: Sequence[Any],
    sizes: Mapping[str, int],
    rules: Sequence[Rule],
    fsdp_min_size: int,
) -> tuple[float, int]:
    """Share of bytes without `fsdp` in their spec, and the index of the largest such leaf."""
    if sizes["fsdp"] == 1:
        return 0.0, 0
    sizes_of = [math.prod(x.shape) * x.dtype.itemsize for x in leaves]
    specs = _specs(paths, leaves, sizes, rules, fsdp_min_size)
    whole = [0 if "fsdp" in spec else n for n, spec in zip(sizes_of, specs, strict=True)]
    return sum(whole) / max(sum(sizes_of), 1), int(np.argmax(whole))


def _local_bytes(leaf: Any, sharding: NamedSharding) -> int:
    return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
