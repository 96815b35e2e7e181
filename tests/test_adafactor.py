"""Adafactor: its numbers against float64, what it factors, its place on a mesh and in the checkpoint.

Five steps of the reference's are in test_optim.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.test_sharding import abstract_params, specs
from tests.test_step import MESHES, assert_trees_close, assert_trees_equal
from tests.tiny_job import batches, run, tiny_job
from vit_jax import sharding
from vit_jax.adafactor import factored_axes, scale_by_adafactor
from vit_jax.checkpoint import Checkpoints
from vit_jax.models.stack import stack_layers, unstack_layers
from vit_jax.param_groups import paths_of

# Small enough that attention kernels of the tiny model are factored too, per head.
TINY = dict(optim__name="adafactor", optim__factor_min_dim=8, optim__momentum_dtype="bfloat16")


def by_hand(gradients, cap, factored):
    """Directions of a matrix or of anything unfactored after each gradient, in float64, from the two papers."""
    v = rows = columns = 0.0
    for t, gradient in enumerate(gradients, 1):
        g = np.asarray(gradient, np.float64)
        decay = min(cap, 1 - t**-0.8)
        squares = g**2 + 1e-30
        if factored:
            rows = decay * rows + (1 - decay) * squares.mean(1)
            columns = decay * columns + (1 - decay) * squares.mean(0)
            v = np.outer(rows, columns) / rows.mean()
        else:
            v = decay * v + (1 - decay) * squares
        yield g / np.sqrt(v)


def run_direction(params, gradients, **options):
    tx = scale_by_adafactor(
        **{"b1": 0.0, "b2_cap": 0.6, "factor_min_dim": 4, "momentum_dtype": jnp.float32} | options
    )
    state, directions = tx.init(params), []
    for grads in gradients:
        direction, state = tx.update(grads, state)
        directions.append(direction)
    return directions, state


def random(shape, steps=4):
    """Gradients whose rows and columns differ by orders of magnitude."""
    rng = np.random.default_rng(0)
    scale = np.exp(3 * rng.normal(size=shape[-1]))
    return [jnp.asarray(rng.normal(size=shape) * scale, jnp.float32) for _ in range(steps)]


@pytest.mark.parametrize(
    ("shape", "factored"), [((5, 7), True), ((7, 5), True), ((3, 7), False), ((9,), False)]
)
def test_the_direction_against_float64(shape, factored):
    gradients = random(shape)
    got, _ = run_direction({"w": gradients[0]}, [{"w": g} for g in gradients])
    for direction, wanted in zip(got, by_hand(gradients, 0.6, factored), strict=True):
        np.testing.assert_allclose(direction["w"], wanted, rtol=2e-5)


def test_a_kernel_of_heads_is_a_matrix_for_each_head_and_a_stack_one_for_each_layer():
    gradients = random((6, 3, 5))  # [D, H, hd]
    got, _ = run_direction({"w": gradients[0]}, [{"w": g} for g in gradients])
    for head in range(3):
        for direction, wanted in zip(got, by_hand([g[:, head] for g in gradients], 0.6, True), strict=True):
            np.testing.assert_allclose(direction["w"][:, head], wanted, rtol=2e-5)

    layers = random((9, 6, 5))  # [L, D, M]: the layer axis is the longest
    stacked = [{"encoder": {"blocks": {"w": g, "b": g[:, :, 0]}}} for g in layers]
    got, state = run_direction(stacked[0], stacked)
    assert {p: x.shape for p, x in paths_of((state.rows, state.columns, state.full)).items()} == {
        "0/encoder/blocks/w": (9, 1, 5), "1/encoder/blocks/w": (9, 6, 1), "2/encoder/blocks/b": (9, 6)
    }  # fmt: skip
    for layer in range(9):
        alone = by_hand([g[layer] for g in layers], 0.6, True)
        bias = by_hand([g[layer, :, 0] for g in layers], 0.6, False)
        for direction, wanted, wanted_bias in zip(got, alone, bias, strict=True):
            ours = direction["encoder"]["blocks"]
            np.testing.assert_allclose(ours["w"][layer], wanted, rtol=2e-5)
            np.testing.assert_allclose(ours["b"][layer], wanted_bias, rtol=2e-5)


def test_gradients_of_zero_and_of_any_size_stay_finite():
    for size in (0.0, 1e-12, 1e15):
        grads = {"w": jnp.full((8, 8), size), "b": jnp.full(8, size)}
        directions, _ = run_direction(grads, [grads] * 2)
        for leaf in jax.tree.leaves(directions):
            np.testing.assert_allclose(leaf, 0.0 if size == 0 else 1.0, rtol=1e-3)


def test_the_first_moment_starts_at_zero_uncorrected():
    grads = {"w": jnp.ones((8, 8))}
    directions, _ = run_direction(grads, [grads] * 3, b1=0.9)
    np.testing.assert_allclose([d["w"][0, 0] for d in directions], [0.1, 0.19, 0.271], rtol=1e-5)
    _, state = run_direction(grads, [grads], b1=0.9, momentum_dtype=jnp.bfloat16)
    assert {p: x.dtype.name for p, x in paths_of(state).items() if x.ndim} == {
        "0/rows/w": "float32", "0/columns/w": "float32", "1/ema/w": "bfloat16"
    }  # fmt: skip


def test_what_is_factored_at_full_size_and_what_it_saves():
    params = abstract_params("G/14", image_size=224, num_classes=29_593, pool="map", scan=True)
    axes = factored_axes(params, 32)
    whole = {path: x.shape for path, x in paths_of(params).items() if path not in axes and x.size > 1e5}
    assert whole == {  # biases and norms of 48 layers; patches of 14 are too short
        "patch_embed/kernel": (14, 14, 3, 1664),
        "encoder/blocks/mlp/fc1/bias": (48, 8192),
    }
    assert axes["encoder/blocks/attn/query/kernel"] == (1, 3)  # [48, 1664, 16, 104]
    assert axes["encoder/blocks/attn/out/kernel"] == (3, 2)  # [48, 16, 104, 1664]
    assert axes["encoder/blocks/mlp/fc1/kernel"] == (2, 1)
    assert axes["posemb"] == (2, 1)
    tx = scale_by_adafactor(b1=0.9, b2_cap=0.999, factor_min_dim=32, momentum_dtype=jnp.bfloat16)
    state = jax.eval_shape(tx.init, params)
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))  # noqa: E731
    assert 0.5 < size(state) / size(params) < 0.51  # the paper's 0.5; Adam: 2


def test_statistics_are_placed_like_the_parameters():
    params = abstract_params(width=64, num_heads=4, mlp_dim=256, depth=3, scan=True)
    tx = scale_by_adafactor(b1=0.9, b2_cap=0.999, factor_min_dim=16, momentum_dtype=jnp.float32)
    mesh = sharding.make_mesh(2, 2, 2)
    own, got = specs(params, mesh), specs(jax.eval_shape(tx.init, params), mesh)
    for path, spec in own.items():
        assert got[f"1/ema/{path}"] == spec
        assert got.get(f"0/full/{path}", spec) == spec
    fc1, query = "encoder/blocks/mlp/fc1/kernel", "encoder/blocks/attn/query/kernel"
    assert own[fc1] == jax.sharding.PartitionSpec(None, "fsdp", "tensor")  # [L, D, M]
    assert tuple(got[f"0/columns/{fc1}"]) == (None, None, "tensor")  # [L, 1, M]
    assert tuple(got[f"0/rows/{fc1}"]) == (None, "fsdp")  # [L, D, 1]
    assert tuple(own[query]) == (None, "fsdp", "tensor")  # [L, D, H, hd]
    assert tuple(got[f"0/columns/{query}"]) == (None, "fsdp", "tensor")  # [L, D, H, 1]
    assert not [path for path, spec in got.items() if "blocks" in path and spec and spec[0] is not None]


# ---- through the training step


@pytest.fixture(scope="module")
def one_device():
    return run(tiny_job(**TINY, fsdp_min_size=0), 8)


@pytest.mark.parametrize(
    "mesh", [pytest.param(m, marks=[] if m == (2, 2, 2) else pytest.mark.slow) for m in MESHES]
)
def test_steps_on_a_mesh_equal_one_device(one_device, mesh):
    sets = dict(mesh__replica=mesh[0], mesh__fsdp=mesh[1], mesh__tensor=mesh[2], fsdp_min_size=0)
    state, losses = run(tiny_job(8, **TINY, **sets), 8)
    np.testing.assert_allclose(losses, one_device[1], rtol=1e-5)
    assert_trees_close(state.params, one_device[0].params, atol=1e-4, rtol=0)  # bfloat16 moments
    if mesh[1] > 1:
        assert all(
            x.sharding.shard_shape(x.shape) != x.shape for x in jax.tree.leaves(state.opt_state) if x.size > 8
        )


def test_layers_in_a_scan_are_trained_as_in_a_loop():
    fields = dict(TINY, warmup_steps=0, optim__layer_decay=0.5, optim__frozen="posemb", ema_decay=0.5)
    fields |= dict(
        optim__lr_mults=((".*/mlp/.*", 3.0),), optim__factor_min_dim=2
    )  # as many as there are layers
    unrolled, scanned = tiny_job(**fields), tiny_job(**fields, model__scan=True)
    start = jax.device_get(unrolled.create_state().params)
    ends = []
    for job, host_params in ((unrolled, start), (scanned, stack_layers(start))):
        params = jax.device_put(host_params, job.state_shardings.params)
        state = job.create_state().replace(params=params, ema=jax.tree.map(jnp.array, params))
        step = job.lower_train_step().compile()
        for batch in batches(job, 2):
            state, _ = step(state, batch)
        ends.append(jax.device_get(state))
    left, right = ends
    assert_trees_close(unstack_layers(right.params), left.params, atol=1e-4, rtol=0)
    assert_trees_close(unstack_layers(right.ema), left.ema, atol=1e-4, rtol=0)
    assert_trees_equal(left.params["posemb"], start["posemb"])
    assert not [path for path in paths_of(left.opt_state) if "posemb" in path]


def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path):
    job = tiny_job(8, **TINY, mesh__replica=2, mesh__fsdp=2, mesh__tensor=2, fsdp_min_size=0)
    step, state = job.lower_train_step().compile(), job.create_state()
    first, second, third = batches(job, 3)
    state, _ = step(step(state, first)[0], second)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1, keep_every_steps=None)
    checkpoints.save(2, state)
    checkpoints.wait()
    kept = jax.device_get(state)
    unbroken, _ = step(state, third)
    restored = checkpoints.restore(2, job.abstract_state)
    checkpoints.close()
    assert_trees_equal(restored, kept)
    resumed, _ = step(restored, third)
    assert_trees_equal(resumed, unbroken)
