"""The average of the parameters: its numbers, its buffers, its place on a mesh and in the checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.test_step import assert_trees_close, assert_trees_equal
from tests.tiny_job import batches, run, tiny_job
from vit_jax import step
from vit_jax.checkpoint import Checkpoints, StateMismatch
from vit_jax.param_groups import paths_of


def small_job(devices=1, **overrides):
    return tiny_job(devices, model__depth=1, **overrides)


def test_the_average_against_numpy():
    """d * ema + (1 - d) * params of every update, from the starting parameters on, in float64."""
    decay = 0.8
    job = small_job(ema_decay=decay)
    update, state = job.lower_train_step().compile(), job.create_state()
    expected = jax.tree.map(lambda x: np.asarray(x, np.float64), state.params)
    assert_trees_equal(state.ema, state.params)
    for batch in batches(job, 6):
        state, _ = update(state, batch)
        expected = jax.tree.map(
            lambda e, p: decay * e + (1 - decay) * np.asarray(p, np.float64), expected, state.params
        )
        assert_trees_close(state.ema, expected, rtol=0, atol=1e-6)
    moved = max(
        np.abs(np.asarray(p) - e).max()
        for p, e in zip(*map(jax.tree.leaves, (state.params, state.ema)), strict=True)
    )
    assert moved > 1e-3  # the average is something else than the parameters


def test_a_long_average_settles_on_the_parameters():
    """float32 factors d and 1 - d that don't add up to 1 would take it 0.02 % below."""
    job = small_job(ema_decay=0.9999, optim__lr=0.0, warmup_steps=0)
    state, _ = run(job, 3)
    assert_trees_equal(state.ema, state.params)


def test_the_average_changes_nothing_else():
    with_average, losses = run(small_job(ema_decay=0.9), 4)
    without, same = run(small_job(), 4)
    assert losses == same and without.ema == ()
    assert_trees_equal(with_average.params, without.params)
    assert_trees_equal(with_average.opt_state, without.opt_state)


def test_a_skipped_update_leaves_the_average_as_it_was():
    job = small_job(ema_decay=0.5)
    update = job.lower_train_step().compile()
    good, second = batches(job, 2)
    state, _ = update(job.create_state(), good)
    kept = jax.device_get(state.ema)
    bad = jax.tree.map(jnp.array, state.replace(params=jax.tree.map(lambda x: x * jnp.nan, state.params)))
    broken, _ = update(bad, second)
    assert int(broken.skipped) == 1
    assert_trees_equal(jax.device_get(broken.ema), kept)


def test_frozen_parameters_are_their_own_average():
    job = small_job(ema_decay=0.7, optim__frozen="(?!head/).*")
    start = jax.device_get(job.create_state().params)
    state, _ = run(job, 3)
    for path, value in paths_of(jax.device_get(state.ema)).items():
        assert (value.tobytes() == paths_of(start)[path].tobytes()) is not path.startswith("head/"), path


def buffers(tree):
    return {
        shard.data.unsafe_buffer_pointer()
        for leaf in jax.tree.leaves(tree)
        for shard in leaf.addressable_shards
    }


@pytest.mark.parametrize("devices", [1, 8])
def test_the_average_shares_no_buffer_with_the_parameters(devices):
    job = small_job(devices, ema_decay=0.9)
    state = job.create_state()
    assert not buffers(state.params) & buffers(state.ema)
    copied = jax.jit(step.start_average, out_shardings=job.state_shardings.ema)(state.params)
    assert not buffers(state.params) & buffers(copied)
    (batch,) = batches(job, 1)
    after, _ = job.lower_train_step().compile()(state.replace(ema=copied), batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.params, copied)))
    assert not buffers(after.params) & buffers(after.ema)
    memory = job.lower_train_step().compile().memory_analysis()
    size = sum(
        np.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(job.abstract_state)
    )
    assert memory.alias_size_in_bytes >= 0.95 * size


@pytest.mark.parametrize("mesh", [pytest.param((1, 8, 1), marks=pytest.mark.slow), (2, 2, 2)])
def test_the_average_is_sharded_like_the_parameters(mesh):
    sets = dict(ema_decay=0.9, fsdp_min_size=0)
    job = small_job(8, mesh__replica=mesh[0], mesh__fsdp=mesh[1], mesh__tensor=mesh[2], **sets)
    state, _ = run(job, 3)
    for tree in (job.create_state(), state):
        for average, parameter in zip(*map(jax.tree.leaves, (tree.ema, tree.params)), strict=True):
            assert average.sharding == parameter.sharding and average.dtype == jnp.float32
    assert any(x.sharding.shard_shape(x.shape) != x.shape for x in jax.tree.leaves(state.ema))
    one, _ = run(small_job(**sets), 3)
    assert_trees_close(state.ema, one.ema, atol=2e-5, rtol=0)


@pytest.mark.parametrize("saved_with", [0.9, None])
def test_a_checkpoint_holds_it_as_a_subtree_and_suits_no_other_run(tmp_path, saved_with):
    job = small_job(ema_decay=saved_with)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1, keep_every_steps=None)
    state = job.create_state()
    checkpoints.save(1, state)
    checkpoints.wait()
    if saved_with is not None:
        assert_trees_equal(checkpoints.restore_arrays(subtree="ema")[1], state.ema)
    assert_trees_equal(checkpoints.restore(1, job.abstract_state), state)
    other = small_job(ema_decay=None if saved_with else 0.9)
    with pytest.raises(StateMismatch, match="ema/"):
        checkpoints.restore(1, other.abstract_state)
    checkpoints.close()
