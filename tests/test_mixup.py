"""Mixup and CutMix: any batch, masked examples, meshes, and what they draw."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax import losses
from vit_jax.errors import UsageError
from vit_jax.mixup import Mix, blend, check_batch, cutmix_box, group_size, mix, where_paired
from vit_jax.sharding import batch_sharding, make_mesh

KEY = jax.random.key(3)
MIXUP, CUTMIX, BOTH = Mix(mixup_alpha=0.4), Mix(cutmix_alpha=1.0), Mix(0.4, 1.0)


def batch(size, masked=(), shape=(6, 10)):
    rng = np.random.default_rng(size)
    mask = np.ones(size, np.float32)
    mask[list(masked)] = 0
    images = rng.normal(size=(size, *shape, 3)).astype(np.float32)
    return images, np.eye(4, dtype=np.float32)[rng.integers(4, size=size)], mask


def test_odd_batch_case(golden):
    case = json.loads((golden / "cases/mixup_odd.json").read_text())
    weight = where_paired(jnp.float32(case["lambda"]), jnp.ones(case["batch"], bool))
    np.testing.assert_allclose(blend(jnp.asarray(case["x"]), weight), case["expected"], rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_mixup_of_any_batch_size(size):
    images, targets, mask = batch(size)
    mixed, mixed_targets, counted = mix(KEY, images, targets, mask, MIXUP)
    a = float(jax.random.beta(KEY, 0.4, 0.4, dtype=jnp.float32))
    weight = 1.0 if size == 1 else max(a, 1 - a)
    assert weight > 0.5
    np.testing.assert_allclose(
        mixed, weight * images + (1 - weight) * np.roll(images, 1, 0), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        mixed_targets, weight * targets + (1 - weight) * np.roll(targets, 1, 0), rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(np.sum(mixed_targets, -1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(counted, mask)
    if size == 1:
        np.testing.assert_array_equal(mixed, images)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_cutmix_of_any_batch_size(size):
    images, targets, mask = batch(size)
    run = jax.jit(mix, static_argnums=4)
    clipped = 0
    for seed in range(12):
        mixed, mixed_targets, counted = run(jax.random.key(seed), images, targets, mask, CUTMIX)
        np.testing.assert_array_equal(counted, mask)
        if size == 1:
            np.testing.assert_array_equal(mixed, images)
            continue
        theirs = (np.asarray(mixed) != images).any(-1)  # random floats: no two are alike
        assert (theirs == theirs[:1]).all()  # one box for all examples
        ys, xs = np.flatnonzero(theirs[0].any(1)), np.flatnonzero(theirs[0].any(0))
        assert theirs[0].sum() == len(ys) * len(xs)
        np.testing.assert_array_equal(mixed, np.where(theirs[..., None], np.roll(images, 1, 0), images))
        # The label goes by the area that is really covered.
        own = 1 - theirs[0].mean()
        np.testing.assert_allclose(
            mixed_targets, own * targets + (1 - own) * np.roll(targets, 1, 0), rtol=1e-6, atol=1e-7
        )
        clipped += abs(own - float(jax.random.beta(jax.random.key(seed), 1.0, 1.0))) > 0.2
    assert size == 1 or clipped  # else the case of a box that is cut off wasn't seen


def test_the_box_is_where_and_as_large_as_published():
    size, n = (40, 60), 4000
    a = jax.random.uniform(jax.random.key(1), (n,))
    draw = jax.jit(jax.vmap(functools.partial(cutmix_box, size=size)))
    boxes = np.asarray(draw(jax.random.split(KEY, n), a))
    some = boxes.any((1, 2))  # not so small that they vanish
    assert some.mean() > 0.95
    boxes, a = boxes[some], np.asarray(a)[some]
    rows, columns = boxes.any(2), boxes.any(1)
    for inside, length in ((rows, 40), (columns, 60)):
        whole = 2 * (np.floor(length * np.sqrt(1 - a)).astype(int) // 2)
        first, last = inside.argmax(1), length - 1 - inside[:, ::-1].argmax(1)
        extent = inside.sum(1)
        assert ((extent == whole) | (first == 0) | (last == length - 1)).all()
        assert (extent <= whole).all() and (extent >= whole // 2).all()
        # Centres are uniform over all pixels: where the box isn't cut off, each place is as likely.
        small = (whole <= 8) & (extent == whole)
        centres = (first + whole // 2)[small]
        assert abs(centres.mean() - length / 2) < 4 * 0.29 * length / np.sqrt(small.sum())


def test_both_are_chosen_by_step():
    images, targets, mask = batch(2)
    run = jax.jit(jax.vmap(mix, in_axes=(0, None, None, None, None)), static_argnums=4)
    keys = jax.random.split(KEY, 2000)
    for prob in (0.0, 0.25, 1.0):
        mixed, mixed_targets, _ = run(keys, images, targets, mask, Mix(0.4, 1.0, prob))
        # Only Mixup gives pixels that are neither's.
        neither = (np.asarray(mixed) != images) & (np.asarray(mixed) != np.roll(images, 1, 0))
        share = 1 - neither.any((1, 2, 3, 4)).mean()
        # Plus the few whose weight is 1 to the last bit.
        assert abs(share - prob) <= 4 * np.sqrt(prob * (1 - prob) / 2000) + 0.002
        np.testing.assert_allclose(np.sum(mixed_targets, -1), 1.0, rtol=1e-6)
    # One method alone draws what it draws beside the other.
    np.testing.assert_array_equal(mixed, run(keys, images, targets, mask, CUTMIX)[0])


@pytest.mark.parametrize("how", [MIXUP, CUTMIX, BOTH, Mix(0.4, 1.0, group=3)])
def test_a_masked_example_does_not_leak(how):
    images, targets, mask = batch(6, masked=[2])
    images[2], targets[2] = 1e9, 0.0
    run, moved = jax.jit(mix, static_argnums=4), 0
    for seed in range(6):
        mixed, mixed_targets, counted = run(jax.random.key(seed), images, targets, mask, how)
        follower = 0 if how.group else 3
        for kept in (follower, 2):
            np.testing.assert_array_equal(mixed[kept], images[kept])
            np.testing.assert_array_equal(mixed_targets[kept], targets[kept])
        assert np.max(np.delete(mixed, 2, 0)) < 1e3
        moved += not np.allclose(mixed[1], images[1])  # the others are mixed
        np.testing.assert_array_equal(counted, mask)
    assert moved >= 4


def test_partners_of_a_group():
    images, targets, mask = batch(8)
    mixed, mixed_targets, _ = mix(KEY, images, targets, mask, Mix(mixup_alpha=0.4, group=4))
    # A group is mixed as if it were the whole batch.
    for rows in (slice(0, 4), slice(4, 8)):
        alone = mix(KEY, images[rows], targets[rows], mask[rows], MIXUP)
        np.testing.assert_array_equal(mixed[rows], alone[0])
        np.testing.assert_array_equal(mixed_targets[rows], alone[1])


@pytest.mark.parametrize("group", [None, 2, 4])
def test_same_result_on_a_mesh(group):
    how = Mix(0.4, 1.0, group=group)
    args = batch(16, masked=[5])
    alone = jax.jit(mix, static_argnums=4)
    mesh = make_mesh(4, 2, 1)
    placed = jax.device_put(args, batch_sharding(mesh))
    sharded = jax.jit(mix, static_argnums=4, out_shardings=batch_sharding(mesh))
    for seed in range(4):  # of both methods
        key = jax.random.key(seed)
        out = sharded(jax.device_put(key, NamedSharding(mesh, PartitionSpec())), *placed, how)
        for got, expected in zip(out, alone(key, *args, how), strict=True):
            np.testing.assert_array_equal(got, expected)
    # Partners on the same device: nothing of a batch moves between devices.
    text = sharded.lower(jax.device_put(key, NamedSharding(mesh, PartitionSpec())), *placed, how).compile()
    moved = re.findall(r"= f32\[[\d,]+\]\S* (all-gather|all-to-all|collective-permute)", text.as_text())
    assert bool(moved) == (group != 2)


@pytest.mark.parametrize("name", ["softmax_xent", "sigmoid_xent"])
def test_smoothing_after_mixing_is_smoothing_before(name):
    images, targets, mask = batch(5)
    logits = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    mixed = mix(KEY, images, targets, mask, CUTMIX)[1]
    after = losses.make_loss(name, label_smoothing=0.1)(logits, mixed)
    smooth = 0.9 * targets + 0.1 / (4 if name == "softmax_xent" else 2)
    before = losses.make_loss(name, label_smoothing=0.0)(
        logits, mix(KEY, images, jnp.asarray(smooth), mask, CUTMIX)[1]
    )
    np.testing.assert_allclose(after, before, rtol=1e-5)
    # And the mixed loss is the mixture of both examples' losses.
    loss = losses.make_loss(name, label_smoothing=0.1)
    own = float(mixed[0, targets[0].argmax()]) if targets[0].argmax() != targets[4].argmax() else None
    assert own is not None
    expected = own * loss(logits[:1], targets[:1])[0] + (1 - own) * loss(logits[:1], targets[4:])[0]
    np.testing.assert_allclose(after[0], expected, rtol=1e-5)


def test_off_and_refused():
    images, targets, mask = batch(4)
    assert mix(KEY, images, targets, mask, Mix())[0] is images
    with pytest.raises(UsageError, match=r"mixup_alpha is -0\.1"):
        Mix(mixup_alpha=-0.1)
    with pytest.raises(UsageError, match="cutmix_alpha is nan"):
        Mix(cutmix_alpha=float("nan"))
    with pytest.raises(UsageError, match=r"cutmix_prob is 1\.5"):
        Mix(cutmix_prob=1.5)
    with pytest.raises(UsageError, match="mixup_partner 'shard' is unknown"):
        group_size("shard", None)
    for partner, size in (("per_shard", None), ("global", 4)):
        with pytest.raises(UsageError, match=f"mixup_partner is {partner} and mixup_shard_examples {size}"):
            group_size(partner, size)
    with pytest.raises(UsageError, match="global_batch 10 not divisible by mixup_shard_examples 4"):
        check_batch(4, 10)
