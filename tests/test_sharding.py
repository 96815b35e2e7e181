import json
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import sharding
from vit_jax.errors import UsageError
from vit_jax.models import create_model
from vit_jax.sharding import TENSOR_RULES, make_mesh

D, H, M, K, L = 64, 4, 256, 10, 3
ATTN = "encoder/block_0/attn"


def abstract_params(name="mu/16", *, image_size=64, num_classes=K, **fields):
    model = create_model(name, num_classes=num_classes, image_size=image_size, **fields)
    size = image_size if isinstance(image_size, int) else image_size[0]
    images = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), images)["params"]


def small(**fields):
    return abstract_params(width=D, num_heads=H, mlp_dim=M, depth=L, **fields)


def abstract_mesh(replica, fsdp, tensor):
    return AbstractMesh((replica, fsdp, tensor), sharding.MESH_AXES, axis_types=(AxisType.Auto,) * 3)


def specs(tree, mesh, fsdp_min_size=1, rules=TENSOR_RULES):
    """{path: spec}."""
    shardings = sharding.tree_shardings(tree, mesh, rules=rules, fsdp_min_size=fsdp_min_size)
    flat = jax.tree_util.tree_leaves_with_path(shardings)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): s.spec for path, s in flat}


# ---- mesh


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((-1, 1, 1), (8, 1, 1)), ((1, -1, 2), (1, 4, 2)), ((2, 2, -1), (2, 2, 2)), ((8, 1, 1), (8, 1, 1))],
)
def test_mesh_fills_in_the_open_size(sizes, shape):
    mesh = make_mesh(*sizes)
    assert dict(mesh.shape) == dict(zip(("replica", "fsdp", "tensor"), shape, strict=True))
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert len({d.id for d in mesh.devices.flat}) == 8


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((-1, -1, 1), "more than one size open"),
        ((0, 1, 1), "mesh.replica is 0"),
        ((1, -2, 1), "mesh.fsdp is -2"),
        ((-1, 3, 1), "replica -1 x fsdp 3 x tensor 1 needs a multiple of 3 devices, but there are 8"),
        ((2, 2, 1), "replica 2 x fsdp 2 x tensor 1 needs 4 devices, but there are 8"),
        ((4, 4, 1), "needs 16 devices, but there are 8"),
    ],
)
def test_mesh_refusals(sizes, message):
    with pytest.raises(UsageError, match=message):
        make_mesh(*sizes)


@dataclass(frozen=True)
class FakeDevice:
    """What mesh building reads of a device; slices are 2 x 2 chips."""

    id: int
    platform: str
    core_on_chip: int = 0

    @property
    def slice_index(self):
        return self.id // 4

    process_index = slice_index

    @property
    def coords(self):
        return self.id // 2 % 2, self.id % 2, 0

    @property
    def device_kind(self):
        return {"tpu": "TPU v4", "gpu": "NVIDIA H100 80GB HBM3"}[self.platform]


def test_only_replica_spans_slices():
    tpus, gpus = ([FakeDevice(i, platform) for i in range(8)] for platform in ("tpu", "gpu"))
    grid = make_mesh(4, 2, 1, devices=tpus).devices
    assert grid.shape == (4, 2, 1)
    for row in grid.reshape(4, 2):
        assert len({d.slice_index for d in row}) == 1
    with pytest.raises(UsageError, match=r"mesh.replica=1 can't span 2 slices"):
        make_mesh(1, 8, 1, devices=tpus)
    assert make_mesh(1, 8, 1, devices=gpus).shape["fsdp"] == 8


# ---- batch


def test_batch_cases(golden):
    case = json.loads((golden / "cases/config_batch.json").read_text())
    each = []
    for valid in case["valid"]:
        mesh = abstract_mesh(valid["devices"], 1, 1)
        each.append(sharding.check_batch(valid["global_batch"], mesh, valid.get("accum_steps", 1)))
    assert each == [4, 1, 2]
    for invalid in case["invalid"]:
        with pytest.raises(UsageError):
            sharding.check_batch(
                invalid["global_batch"],
                abstract_mesh(invalid["devices"], 1, 1),
                invalid.get("accum_steps", 1),
            )


@pytest.mark.parametrize(
    ("batch", "accum", "message"),
    [
        (10, 1, r"global_batch 10 not divisible by 8 data shards: 1.25 per device \(use 8 or 16\)"),
        (4, 1, r"global_batch 4 not divisible by 8 data shards: 0.5 per device \(use 8 or a multiple\)"),
        (24, 2, r"24 not divisible by 8 data shards x 2 accum_steps: 1.5 per device and micro-batch"),
        (0, 1, "global_batch is 0"),
        (32, 0, "accum_steps is 0"),
    ],
)
def test_batch_messages(batch, accum, message):
    with pytest.raises(UsageError, match=message):
        sharding.check_batch(batch, abstract_mesh(2, 4, 3), accum)  # the tensor axis shares a batch


def test_batch_is_split_over_replica_and_fsdp_only():
    mesh = make_mesh(2, 2, 2)
    placed = jax.device_put(np.arange(16.0).reshape(8, 2), sharding.batch_sharding(mesh))
    assert {s.data.shape for s in placed.addressable_shards} == {(2, 2)}
    assert sharding.data_shards(mesh) == 4


def test_activations_are_constrained_to_the_batch_axes():
    mesh = make_mesh(2, 2, 2)
    constrain = sharding.constrain_activations(mesh)
    w = jax.device_put(jnp.ones((16, 16)), NamedSharding(mesh, P(None, ("fsdp", "tensor"))))
    x = jax.device_put(jnp.ones((8, 3, 16)), sharding.batch_sharding(mesh))
    out = jax.jit(lambda x, w: constrain(x @ w))(x, w)
    assert out.sharding.shard_shape(out.shape) == (2, 3, 16)
    assert jax.jit(constrain)(jnp.ones((1, 3, 16))).shape == (1, 3, 16)  # as in model.init


# ---- rules


def test_pure_data_parallel_replicates_everything():
    assert set(specs(small(), make_mesh(8, 1, 1), 0).values()) == {P()}


def test_fsdp_takes_the_largest_divisible_dimension():
    got = specs(small(), make_mesh(1, 8, 1))
    assert got[f"{ATTN}/query/kernel"] == P("fsdp")  # [64, 4, 16]
    assert got[f"{ATTN}/out/kernel"] == P(None, None, "fsdp")  # [4, 16, 64]
    assert got["encoder/block_2/mlp/fc1/kernel"] == P(None, "fsdp")  # [64, 256]
    assert got["encoder/block_2/mlp/fc2/kernel"] == P("fsdp")
    assert got["patch_embed/kernel"] == P(None, None, None, "fsdp")  # [16, 16, 3, 64]
    assert got["head/kernel"] == P("fsdp")  # [64, 10]
    assert got["head/bias"] == P()  # 10 isn't divisible
    assert specs({"kernel": jax.ShapeDtypeStruct((90, 64), jnp.float32)}, make_mesh(1, 8, 1)) == {
        "kernel": P(None, "fsdp")  # the largest that divides
    }


def test_tensor_parallel_splits_heads_and_hidden_units():
    got = specs(small(pool="map"), make_mesh(2, 2, 2), 10**9)
    for attn in (ATTN, "map_head/attn"):
        for name in ("query", "key", "value"):
            assert got[f"{attn}/{name}/kernel"] == P(None, "tensor")
            assert got[f"{attn}/{name}/bias"] == P("tensor")
        assert got[f"{attn}/out/kernel"] == P("tensor")
        assert got[f"{attn}/out/bias"] == P()
    for mlp in ("encoder/block_1/mlp", "map_head/mlp"):
        assert got[f"{mlp}/fc1/kernel"] == P(None, "tensor")
        assert got[f"{mlp}/fc1/bias"] == P("tensor")
        assert got[f"{mlp}/fc2/kernel"] == P("tensor")
        assert got[f"{mlp}/fc2/bias"] == P()
    for path in ("head/kernel", "patch_embed/kernel", "posemb", "encoder/norm/scale", "map_head/probe"):
        assert got[path] == P(), path


def test_tensor_parallel_splits_gates_and_mixers():
    mesh = make_mesh(2, 2, 2)
    got = specs(small(swiglu=True, qk_norm=True, layer_scale=0.1, num_registers=2), mesh, 10**9)
    assert got["encoder/block_1/mlp/gate/kernel"] == P(None, "tensor")
    assert got["encoder/block_1/mlp/gate/bias"] == P("tensor")
    for path in (f"{ATTN}/q_norm/scale", "encoder/block_0/layer_scale1", "registers"):
        assert got[path] == P(), path
    mixer = abstract_params("Mixer-B/16", width=D, depth=1, tokens_mlp_dim=8, channels_mlp_dim=M)
    got = specs(mixer, mesh, 10**9)
    for mlp in ("block_0/token_mlp", "block_0/channel_mlp"):
        assert got[f"{mlp}/fc1/kernel"] == P(None, "tensor")
        assert got[f"{mlp}/fc1/bias"] == P("tensor")
        assert got[f"{mlp}/fc2/kernel"] == P("tensor")
        assert got[f"{mlp}/fc2/bias"] == P()


@pytest.mark.parametrize("name", ["R50x1", "R50+B/32"])
def test_convolutions_are_split_by_fsdp_alone(name):
    params = abstract_params(name, **({"width": D, "num_heads": H, "depth": 1} if "+" in name else {}))
    mesh = make_mesh(2, 2, 2)
    prefix = "backbone/" if "+" in name else ""
    whole, split = specs(params, mesh, 10**9), specs(params, mesh, 0)
    convolutions = {p for p in whole if p.startswith((f"{prefix}root/conv", f"{prefix}stage_"))}
    assert len(convolutions) > 100 and {whole[p] for p in convolutions} == {P()}
    assert split[f"{prefix}stage_1/unit_1/conv3/kernel"] == P(None, None, None, "fsdp")  # [1, 1, 64, 256]
    assert split[f"{prefix}stage_1/unit_1/conv2/kernel"] == P(None, None, "fsdp")  # [3, 3, 64, 64]


def test_fsdp_takes_a_dimension_that_tensor_left():
    got = specs(small(), make_mesh(2, 2, 2))
    assert got[f"{ATTN}/query/kernel"] == P("fsdp", "tensor")
    assert got[f"{ATTN}/out/kernel"] == P("tensor", None, "fsdp")
    assert got["encoder/block_0/mlp/fc1/kernel"] == P("fsdp", "tensor")
    assert got["encoder/block_0/mlp/fc2/kernel"] == P("tensor", "fsdp")


def test_indivisible_heads_stay_whole():
    got = specs(abstract_params(width=48, num_heads=3, mlp_dim=96, depth=1), make_mesh(4, 1, 2))
    assert got[f"{ATTN}/query/kernel"] == P()
    assert got["encoder/block_0/mlp/fc1/kernel"] == P(None, "tensor")


@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 4, 1), (2, 2, 2)])
def test_stacked_layers_are_placed_like_single_ones(shape):
    loop, scan = (specs(small(scan=scan), make_mesh(*shape), D * M) for scan in (False, True))
    stacked = {path: spec for path, spec in scan.items() if "blocks" in path}
    assert len(stacked) == 16
    for path, spec in stacked.items():
        alone = loop[path.replace("blocks", "block_0")]
        # The size limit counts one layer, and the layer axis (first) is never split.
        assert spec == (P(None, *alone) if alone != P() else P()), path


def test_a_layer_axis_that_divides_is_not_split():
    tree = {
        "encoder": {"blocks": {"mlp": {"fc1": {"kernel": jax.ShapeDtypeStruct((64, 8, 8), jnp.float32)}}}}
    }
    assert list(specs(tree, make_mesh(1, 8, 1)).values()) == [P(None, "fsdp")]


def test_small_leaves_stay_whole():
    got = specs(small(), make_mesh(1, 8, 1), D * M)
    assert got["encoder/block_0/mlp/fc1/kernel"] == P(None, "fsdp")
    assert got[f"{ATTN}/query/kernel"] == P()


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 4, 1), (2, 2, 2)])
def test_optimizer_state_follows_the_parameters(shape):
    params, mesh = small(scan=True), make_mesh(*shape)
    state = {"params": params, "opt_state": jax.eval_shape(optax.adamw(1e-3).init, params), "ema": params}
    got = specs(state, mesh)
    counts = {path: spec for path, spec in got.items() if path.endswith("count")}
    assert counts and set(counts.values()) == {P()}
    for path, spec in specs(params, mesh).items():
        same = [s for p, s in got.items() if p.endswith(f"/{path}")]
        assert same == [spec] * 4, path  # params, mu, nu, ema


def test_placed_bytes_agree_with_the_table():
    params, mesh = small(), make_mesh(2, 2, 2)
    shardings = sharding.tree_shardings(params, mesh, rules=TENSOR_RULES, fsdp_min_size=0)
    placed = jax.tree.map(lambda x, s: jax.device_put(np.zeros(x.shape, x.dtype), s), params, shardings)
    on_first = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(placed))
    assert sharding.bytes_per_device(params, shardings) == on_first
    table = sharding.sharding_table(params, shardings)
    assert table.splitlines()[-1].split() == ["total", f"{on_first:,}"]
    line = next(line for line in table.splitlines() if line.startswith("encoder/block_*/mlp/fc1/kernel"))
    assert "[64, 256]" in line and "P('fsdp', 'tensor')" in line and "(3 x 16,384)" in line


@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 4, 1), (2, 2, 2)])
def test_without_a_size_limit_nearly_all_is_sharded(shape):
    mesh = make_mesh(*shape)
    assert sharding.unsharded_fraction(small(), mesh, rules=TENSOR_RULES, fsdp_min_size=0) < 0.1
    assert sharding.unsharded_fraction(small(), mesh, rules=TENSOR_RULES, fsdp_min_size=10**9) == 1.0


def test_unsharded_fraction_without_fsdp_is_zero():
    assert (
        sharding.unsharded_fraction(small(), make_mesh(8, 1, 1), rules=TENSOR_RULES, fsdp_min_size=0) == 0.0
    )


# ---- the check of large models: no compile, no devices


@pytest.fixture(scope="module")
def large():
    """Abstract parameters of the large models, stacked."""
    return {
        name: abstract_params(name, image_size=224, num_classes=1000, scan=True, pool="map")
        for name in ("B/16", "L/16", "H/14", "g/14", "G/14")
    }


def check(params, *shape, fsdp_min_size=2**14):
    sharding.check_unsharded(params, abstract_mesh(*shape), rules=TENSOR_RULES, fsdp_min_size=fsdp_min_size)


@pytest.mark.parametrize(("name", "whole"), [("g/14", "31"), ("G/14", "29")])  # 4 D^2 L of all parameters
def test_g_and_big_g_do_not_fit_fsdp_256(large, name, whole):
    with pytest.raises(
        UsageError, match=rf"fsdp=256 leaves {whole}.\d% .*encoder/blocks/attn.*use mesh.fsdp=128 "
    ):
        check(large[name], 1, 256, 1)
    check(large[name], 2, 128, 1)
    check(large[name], 256, 1, 1)  # replicated by choice


@pytest.mark.parametrize("name", ["B/16", "L/16", "H/14"])
def test_the_other_large_models_fit_fsdp_256(large, name):
    check(large[name], 1, 256, 1)


@pytest.mark.parametrize(
    ("name", "fields"),
    [("R50+L/32", {"scan": True}), ("R152x4", {}), ("R101x3", {}), ("Mixer-L/16", {})],
)
def test_large_models_of_other_families_fit_fsdp_64(name, fields):
    check(abstract_params(name, image_size=224, num_classes=1000, **fields), 1, 64, 1)


def test_the_size_limit_is_part_of_the_check(large):
    with pytest.raises(UsageError, match="or lower fsdp_min_size"):
        check(large["B/16"], 1, 8, 1, fsdp_min_size=10**9)


def test_small_models_may_stay_whole():
    check(abstract_params("Ti/16", image_size=224, num_classes=1000), 1, 256, 1)


def test_fast_on_many_unrolled_layers(large):
    params = large["G/14"]["encoder"]["blocks"]
    layer = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), params)
    tree = {"encoder": {f"block_{i}": layer for i in range(48)}}
    state = {"params": tree, "mu": tree, "nu": tree}
    start = time.process_time()
    specs(state, abstract_mesh(2, 128, 1))
    assert time.process_time() - start < 2.0
