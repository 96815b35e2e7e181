"""The training step: accumulation, meshes, masks, non-finite updates, donation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny_job import FACTS, batches, run, tiny_config, tiny_job
from vit_jax import job as job_lib
from vit_jax.data.dataset import DataFacts
from vit_jax.errors import UsageError

MESHES = [(8, 1, 1), (1, 8, 1), (2, 4, 1), (2, 2, 2)]


def assert_trees_close(a, b, **tolerance):
    """All but key biases: a constant added to every key doesn't change attention, so their true gradient is zero
    and Adam makes full-size steps of rounding noise."""
    for (path, x), (_, y) in zip(
        jax.tree_util.tree_leaves_with_path(a), jax.tree_util.tree_leaves_with_path(b), strict=True
    ):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not name.endswith("key/bias"):
            np.testing.assert_allclose(x, y, err_msg=name, **tolerance)


def assert_trees_equal(a, b):
    for (path, x), (_, y) in zip(
        jax.tree_util.tree_leaves_with_path(a), jax.tree_util.tree_leaves_with_path(b), strict=True
    ):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


@pytest.fixture(scope="module")
def one_device():
    return run(tiny_job(fsdp_min_size=0), 20)


@pytest.mark.parametrize("mesh", MESHES)
def test_twenty_steps_equal_one_device(one_device, mesh):
    job = tiny_job(8, mesh__replica=mesh[0], mesh__fsdp=mesh[1], mesh__tensor=mesh[2], fsdp_min_size=0)
    before = job.create_state()
    state, losses = run(job, 20)
    np.testing.assert_allclose(losses, one_device[1], rtol=1e-5)
    # Init is bit-equal whatever the mesh; the update differs by the order of sums only.
    assert_trees_equal(before.params, tiny_job(fsdp_min_size=0).create_state().params)
    assert_trees_close(state.params, one_device[0].params, atol=2e-5, rtol=0)
    # Shardings are those of the rules before and after.
    for tree in (before, state):
        total = split = 0
        for leaf, wanted in zip(jax.tree.leaves(tree), jax.tree.leaves(job.state_shardings), strict=True):
            assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim)
            total += leaf.nbytes
            split += leaf.nbytes * (leaf.sharding.shard_shape(leaf.shape) != leaf.shape)
        assert mesh[1] == 1 or split >= 0.9 * total


@pytest.mark.parametrize(
    ("loss", "mix"), [("softmax_xent", dict(mixup_alpha=0.4, cutmix_alpha=1.0)), ("sigmoid_xent", {})]
)
def test_accumulation_equals_the_full_batch(loss, mix):
    # One masked row: micro-batches hold 8 and 7 real examples and must weigh accordingly.
    # Examples are mixed before they are dealt out.
    mask = [1.0] * 15 + [0.0]
    fields = dict(loss=loss, model__depth=1, **mix)
    whole, losses = run(tiny_job(**fields), 3, mask=mask)
    for devices, accum in ((1, 2), (2, 4)):
        parts, accum_losses = run(tiny_job(devices, accum_steps=accum, **fields), 3, mask=mask)
        np.testing.assert_allclose(accum_losses, losses, rtol=1e-5)
        assert_trees_close(parts.params, whole.params, atol=2e-5, rtol=0)


def test_masked_rows_do_not_count():
    job = tiny_job()
    step = job.lower_train_step().compile()
    (batch,) = batches(job, 1, mask=[1.0] * 8 + [0.0] * 8)
    other = dict(batch, image=batch["image"].at[8:].set(255), label=batch["label"].at[8:].set(0))
    (a, metrics), (b, _) = step(job.create_state(), batch), step(job.create_state(), other)
    assert_trees_equal(a.params, b.params)
    assert float(metrics["examples"]) == 8


def test_regularisers_are_a_function_of_seed_and_step():
    fields = dict(
        model__depth=1, model__dropout=0.1, model__stoch_depth=0.2, mixup_alpha=0.5, label_smoothing=0.1
    )
    (a, losses), (b, again) = run(tiny_job(**fields), 3), run(tiny_job(**fields), 3)
    assert losses == again
    assert_trees_equal(a, b)
    _, other_losses = run(tiny_job(**fields, seed=1), 3)
    assert losses[2] != other_losses[2]
    # Dropout and mixup draw the same numbers on any mesh.
    _, on_mesh = run(tiny_job(8, **fields, mesh__fsdp=4), 3)
    np.testing.assert_allclose(on_mesh, losses, rtol=1e-5)


def test_a_non_finite_update_is_skipped_and_counted():
    job = tiny_job()
    step = job.lower_train_step().compile()
    good, second = batches(job, 2)
    state, _ = step(job.create_state(), good)
    kept = jax.device_get((state.params, state.opt_state))
    bad = jax.tree.map(jnp.array, state.replace(params=jax.tree.map(lambda x: x * jnp.nan, state.params)))
    broken, metrics = step(bad, second)
    assert int(broken.skipped) == int(broken.skipped_in_a_row) == 1 and int(broken.step) == 2
    assert not np.isfinite(metrics["loss"])
    assert_trees_equal(jax.device_get(broken.opt_state), kept[1])  # moments and counters as they were
    mended, metrics = step(jax.device_put(broken.replace(params=kept[0]), job.state_shardings), second)
    assert int(mended.skipped) == 1 and int(mended.skipped_in_a_row) == 0
    # The update after a skipped one uses the learning rate that comes next, not the one after it.
    np.testing.assert_allclose(metrics["lr"], job.schedule(1), rtol=1e-6)


def test_the_state_is_donated():
    compiled = tiny_job().lower_train_step().compile()
    memory = compiled.memory_analysis()
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tiny_job().abstract_state))
    assert memory.alias_size_in_bytes >= 0.95 * size


def test_parameters_stay_float32_under_bfloat16_compute():
    state, losses = run(tiny_job(model__dtype="bfloat16", optim__momentum_dtype="bfloat16"), 2)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    assert np.isfinite(losses).all()


def test_multi_hot_labels_train():
    facts = DataFacts(64, 5, (8, 8, 3), (5,), (127.5,) * 3, (127.5,) * 3)
    job = tiny_job(facts=facts, loss="sigmoid_xent")
    step, state = job.lower_train_step().compile(), job.create_state()
    (batch,) = batches(tiny_job(), 1)
    batch = dict(batch, label=jax.nn.one_hot(batch["label"], 5))
    _, metrics = step(state, batch)
    np.testing.assert_allclose(metrics["loss"], 5 * np.log(2), rtol=1e-5)  # zero head: a coin per class


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (dict(global_batch=10), "global_batch 10 not divisible by 8 data shards"),
        (dict(mixup_partner="per_shard"), "mixup_partner is per_shard and mixup_shard_examples None"),
        (
            dict(mixup_partner="per_shard", mixup_shard_examples=6),
            "global_batch 16 not divisible by mixup_shard_examples 6",
        ),
        (dict(model__image_size=16), "model.image_size is 16x16 but the preprocessing gives 8x8"),
        (dict(model__name="mu/3"), "8"),
        (dict(model__num_heads=5), "5"),
        (dict(model__name="ViT-Q/16"), "ViT-Q/16"),
        (dict(optim__name="admw"), "adam"),
        (dict(loss="softmx"), "softmax_xent"),
        (dict(schedule="cosin"), "cosine"),
        (dict(total_steps=0), "total_steps is 0"),
        (dict(total_steps=None), "total_steps"),
        (dict(warmup_steps=-1), "warmup_steps"),
        (dict(total_epochs=1.0), "total_steps and total_epochs"),
        (dict(mesh__fsdp=3), "mesh"),
        (dict(model__pool="none"), "pool"),
        (dict(eval__global_batch=0), "eval.global_batch is 0"),
    ],
)
def test_what_can_be_refused_is_refused_before_any_compile(overrides, says):
    with pytest.raises(UsageError, match=says):
        job_lib.build(tiny_config(**overrides), FACTS, jax.devices())


def test_a_large_scan_without_remat_needs_a_word():
    config = tiny_config(model__name="B/16", model__scan=True, model__width=None, model__depth=None,
                         model__mlp_dim=None, model__num_heads=None)  # fmt: skip
    facts = DataFacts(64, 21843, (224, 224, 3), (), (127.5,) * 3, (127.5,) * 3)
    with pytest.raises(UsageError, match=r"model\.scan without model\.remat"):
        job_lib.build(config, facts, jax.devices()[:1])
    config.allow_scan_without_remat = True
    assert job_lib.build(config, facts, jax.devices()[:1]).model.scan
