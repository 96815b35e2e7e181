"""Freezing, learning-rate multipliers and layer-wise decay: by path, by layer, in the step and in the log."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.test_step import assert_trees_close, assert_trees_equal
from tests.tiny_job import batches, run, tiny_job
from vit_jax import flops, loop
from vit_jax.errors import UsageError
from vit_jax.models import create_model
from vit_jax.models.stack import stack_layers, unstack_layers
from vit_jax.param_groups import groups_summary, make_groups, merge, paths_of, split

PROBE = "(?!head/).*"  # everything but the head
OFF = {"frozen": "", "lr_mults": (), "layer_decay": None}


def shapes(name="mu/4", **fields):
    model = create_model(name, num_classes=5, image_size=8, **fields)
    return jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"]


def groups(params, **options):
    return make_groups(params, **{**OFF, **options})


def start_of(job):
    """Starting parameters, on the host, with a head that isn't zero: else nothing below it has a gradient."""
    params = jax.device_get(job.create_state().params)
    head = np.random.default_rng(0).normal(0, 0.5, params["head"]["kernel"].shape).astype(np.float32)
    return {**params, "head": {**params["head"], "kernel": head}}


def step_once(job, params, batch):
    """State and metrics after one step from host parameters."""
    placed = jax.device_put(params, job.state_shardings.params)
    return job.lower_train_step().compile()(job.create_state().replace(params=placed), batch)


# ---- layer-wise decay


def test_layer_decay_by_hand():
    """Two blocks: 0.5**3 before them, 0.5**2 and 0.5 in them, 1 after them."""
    found = groups(shapes(depth=2, pool="map", rep_size=8), layer_decay=0.5).multipliers
    expected = {
        "patch_embed/kernel": 0.125,
        "posemb": 0.125,
        "encoder/block_0/attn/query/kernel": 0.25,
        "encoder/block_1/mlp/fc2/bias": 0.5,
    }
    assert {path: found[path] for path in expected} == expected
    after = [path for path in paths_of(shapes(depth=2, pool="map", rep_size=8)) if path not in found]
    assert {path.split("/")[0] for path in after} == {"encoder", "map_head", "pre_logits", "head"}
    assert {path for path in after if path.startswith("encoder/")} == {
        "encoder/norm/scale",
        "encoder/norm/bias",
    }
    assert groups(shapes(depth=2), layer_decay=0.5).multipliers["cls_token"] == 0.125


def test_layer_decay_of_names_that_other_models_have():
    leaf = jax.ShapeDtypeStruct((3,), jnp.float32)
    before = ("registers", "pre_norm/scale", "backbone/root/conv/kernel")
    params = {"block_0": {"token_mlp": {"bias": leaf}}, "norm": {"scale": leaf}, "pool_norm": {"scale": leaf}}
    for path in before:
        *parents, name = path.split("/")
        params = merge(params, functools.reduce(lambda tree, p: {p: tree}, reversed(parents), {name: leaf}))
    found = groups(params, layer_decay=0.5).multipliers
    assert found == dict.fromkeys(before, 0.25) | {"block_0/token_mlp/bias": 0.5}


def test_layer_decay_of_more_than_ten_blocks_counts_by_number():
    found = groups(shapes(depth=11), layer_decay=0.5).multipliers
    assert found["encoder/block_10/norm1/scale"] == 0.5 and found["encoder/block_2/norm1/scale"] == 0.5**9


def test_a_frozen_last_block_still_counts_as_a_layer():
    found = groups(shapes(depth=2), layer_decay=0.5, frozen="encoder/block_1/.*").multipliers
    assert found["encoder/block_0/norm1/scale"] == 0.25
    assert not any(path.startswith("encoder/block_1/") for path in found)


def test_scanned_layers_get_what_unrolled_ones_get():
    options = {"layer_decay": 0.75, "lr_mults": ((".*/bias", 2.0), (".*/mlp/.*", 3.0))}
    unrolled, scanned = (shapes(depth=3, scan=scan) for scan in (False, True))

    def as_arrays(params):
        found = groups(params, **options).multipliers
        leaves, tree = jax.tree.leaves_with_path(params), jax.tree.structure(params)
        return jax.tree.unflatten(
            tree,
            [
                np.asarray(found.get(jax.tree_util.keystr(p, simple=True, separator="/"), 1.0))
                for p, _ in leaves
            ],
        )

    stacked = stack_layers(as_arrays(unrolled))
    assert_trees_equal(stacked, as_arrays(scanned))
    assert stacked["encoder"]["blocks"]["mlp"]["fc1"]["bias"].tolist() == [2 * 0.75**3, 2 * 0.75**2, 2 * 0.75]


def test_an_update_with_layer_decay_is_the_same_scanned_and_unrolled():
    fields = dict(optim__layer_decay=0.5, optim__lr_mults=(("head/.*", 3.0),), warmup_steps=0)
    unrolled, scanned = tiny_job(**fields), tiny_job(**fields, model__scan=True)
    (batch,) = batches(unrolled, 1)
    start = start_of(unrolled)
    left, _ = step_once(unrolled, start, batch)
    right, _ = step_once(scanned, stack_layers(start), batch)
    assert_trees_close(unstack_layers(jax.device_get(right.params)), left.params, atol=2e-5, rtol=0)
    # Adam's first step is the learning rate, decay aside, which biases don't have.
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), start, jax.device_get(left.params))
    for got, multiplier in (
        (moved["encoder"]["block_0"]["mlp"]["fc1"]["bias"], 0.25),
        (moved["encoder"]["block_1"]["mlp"]["fc2"]["bias"], 0.5),
        (moved["patch_embed"]["bias"], 0.125),
        (moved["head"]["bias"], 3.0),
    ):
        np.testing.assert_allclose(got, 0.01 * multiplier, rtol=1e-3)


# ---- multipliers


def test_the_first_match_counts_and_layer_decay_comes_on_top():
    mults = (("head/kernel", 5.0), ("head/.*", 7.0), ("encoder/block_0/.*", 2.0), (".*", 1))
    found = groups(shapes(depth=2), lr_mults=mults, layer_decay=0.5).multipliers
    assert found["head/kernel"] == 5 and found["head/bias"] == 7
    assert found["encoder/block_0/norm1/scale"] == 0.5 and "encoder/norm/scale" not in found


# ---- freezing


def test_split_and_merge_are_inverse():
    params = {"a": {"x": 1, "y": {"z": 2}}, "b": 3}
    trained, frozen = split(params, {"a/y/z", "b"})
    assert (trained, frozen) == ({"a": {"x": 1}}, {"a": {"y": {"z": 2}}, "b": 3})
    assert merge(trained, frozen) == params
    assert split(params, ()) == (params, {})


@pytest.mark.parametrize("scan", [False, True])
def test_a_linear_probe_moves_the_head_alone(scan):
    job = tiny_job(optim__frozen=PROBE, model__scan=scan)
    before = jax.device_get(job.create_state().params)
    state, losses = run(job, 3)
    assert losses[-1] < losses[0]
    for path, value in paths_of(jax.device_get(state.params)).items():
        same = value.tobytes() == paths_of(before)[path].tobytes()
        assert same is not path.startswith("head/"), path
    slots = [path for path in paths_of(state.opt_state) if "/mu/" in path or "/nu/" in path]
    assert sorted(path.split("u/")[1] for path in slots) == ["head/bias"] * 2 + ["head/kernel"] * 2


def test_a_linear_probe_computes_no_backward_pass_of_what_is_frozen():
    full, probe = tiny_job(model__depth=4), tiny_job(model__depth=4, optim__frozen=PROBE)
    flops = [job.lower_train_step().compile().cost_analysis()["flops"] for job in (full, probe)]
    assert flops[1] < 0.4 * flops[0]  # a third: the forward pass


def test_the_norm_and_the_clip_leave_frozen_parameters_out():
    """What trains moves as if the rest had no gradient: by hand, from the gradient of everything."""
    fields = dict(optim__name="sgd", optim__momentum=0.0, optim__wd=0.0, warmup_steps=0, optim__clip_norm=0.1)
    job = tiny_job(**fields, optim__frozen="cls_token|encoder/.*")
    everything = tiny_job(**{**fields, "optim__clip_norm": None})
    (batch,) = batches(job, 1)
    start = start_of(job)
    moved, metrics = step_once(job, start, batch)
    unclipped, whole = step_once(everything, start, batch)
    gradient = jax.tree.map(lambda a, b: (a - np.asarray(b)) / 0.01, start, unclipped.params)
    encoder = {path for path in paths_of(gradient) if path.startswith("encoder/")}
    trained, _ = split(gradient, {"cls_token", *encoder})
    norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(trained)))
    assert float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-3)
    assert 0.2 < norm < 0.99 * float(whole["grad_norm"])
    expected = jax.tree.map(lambda g: -0.01 * 0.1 / norm * g, trained)
    got, _ = split(jax.tree.map(lambda a, b: np.asarray(b) - a, start, moved.params), job.groups.frozen)
    for path, value in paths_of(expected).items():
        np.testing.assert_allclose(paths_of(got)[path], value, atol=1e-6, err_msg=path)


def test_freezing_under_accumulation_on_a_mesh():
    sets = dict(optim__frozen="patch_embed/.*|encoder/block_0/.*", optim__layer_decay=0.5, fsdp_min_size=0)
    whole, losses = run(tiny_job(**sets), 3)
    on_mesh = tiny_job(8, **sets, mesh__replica=2, mesh__fsdp=2, mesh__tensor=2, accum_steps=2)
    other, other_losses = run(on_mesh, 3)
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5)
    assert_trees_close(other.params, whole.params, atol=2e-5, rtol=0)


def test_no_mfu_is_claimed_for_a_backward_pass_that_is_left_out(monkeypatch):
    monkeypatch.setattr(flops, "peak_flops", lambda kind: 1e12)
    assert loop.peak_flops(tiny_job()) == 8e12
    assert loop.peak_flops(tiny_job(optim__frozen=PROBE)) is None


# ---- refusals and the log


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optim__frozen": "encoder/blok_0/.*"}, r"optim.frozen .*matches no parameter .*'encoder/block_0/"),
        ({"optim__frozen": "head"}, r"'head' matches no parameter .*'head/"),
        ({"optim__frozen": "("}, "optim.frozen '\\(' is no regular expression"),
        ({"optim__frozen": ".*"}, "matches every parameter"),
        ({"optim__lr_mults": (("heads/.*", 2.0),)}, r"optim.lr_mults 'heads/\.\*' matches no .*'head/"),
        ({"optim__lr_mults": ("head/.*", 2.0)}, r"give pairs such as \(\('head/\.\*', 10\.0\),\)"),
        ({"optim__lr_mults": (("head/.*", "2"),)}, "give pairs"),
        ({"optim__lr_mults": (("head/.*", -1.0),)}, "at least 0"),
        ({"optim__lr_mults": (("head/.*", 0),)}, "freeze by optim.frozen"),
        ({"optim__lr_mults": (("head/.*", 2.0),), "optim__frozen": "head/.*"}, "no parameter that trains"),
        ({"optim__wd_mults": (("posembed", 0.5),)}, "optim.wd_mults 'posembed' matches no .*'posemb'"),
        ({"optim__frozen": ".*/kernel"}, "optim.wd_mask .* that trains .*set optim.wd=0"),
        ({"optim__layer_decay": 1.5}, "optim.layer_decay is 1.5"),
        ({"optim__layer_decay": 0.0}, "optim.layer_decay is 0.0"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0"),
    ],
)
def test_refusals_name_the_key_and_the_nearest_paths(options, says):
    with pytest.raises(UsageError, match=says):
        tiny_job(**options)


def test_layer_decay_needs_blocks():
    with pytest.raises(UsageError, match="without transformer blocks"):
        groups({"root": {"kernel": jax.ShapeDtypeStruct((3,), jnp.float32)}}, layer_decay=0.5)


def test_the_start_log_says_what_is_frozen_and_lists_the_multipliers():
    params = shapes(depth=2, width=8, mlp_dim=8, num_heads=2)
    assert groups_summary(params, groups(params)) == ""
    probe = groups_summary(params, groups(params, frozen=PROBE))
    count = sum(x.size for x in jax.tree.leaves(params))
    assert probe == (
        f"frozen: {count - 45:,} of {count:,} parameters in 38 arrays: cls_token, encoder/*, patch_embed/*, posemb"
    )
    some = groups(params, frozen="encoder/block_./norm./.*", lr_mults=(("head/.*", 10), ("encoder/.*", 0.5)))
    assert groups_summary(params, some).splitlines()[1:] == [
        "learning rate x 1: cls_token, patch_embed/*, posemb",
        "learning rate x 0.5: encoder/*",
        "learning rate x 10: head/*",
    ]
    assert "encoder/block_{0,1}/norm1/*" in groups_summary(params, some).splitlines()[0]
    scanned = shapes(depth=2, scan=True)
    assert "learning rate x 0.25 0.5 by layer: encoder/blocks/*" in groups_summary(
        scanned, groups(scanned, layer_decay=0.5)
    )
