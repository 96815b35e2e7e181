import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.golden_layouts import from_reference, load_npz, model_of
from vit_jax import losses, step
from vit_jax.errors import UsageError
from vit_jax.mixup import Mix
from vit_jax.optim import decay_mask, decay_summary, make_optimizer
from vit_jax.param_groups import ParamGroups, make_groups, split
from vit_jax.schedules import make_schedule
from vit_jax.tasks.classify import Classify

BASE = {
    "name": "adam",
    "schedule": lambda step: jnp.float32(0.1),
    "lr": 0.1,
    "wd": 0.0,
    "wd_mode": "lr_scaled",
    "wd_mask": ".*/kernel$",
    "clip_norm": None,
    "b1": 0.9,
    "b2": 0.999,
    "eps": 1e-8,
    "momentum": 0.9,
    "momentum_dtype": "float32",
    "b2_cap": 0.999,
    "factor_min_dim": 32,
}
PARAMS = {
    "encoder": {"block_0": {"mlp": {"kernel": jnp.full((2, 2), 3.0), "bias": jnp.full(2, 5.0)}}},
    "cls_token": jnp.full((1, 1, 2), 7.0),
}


def updates_of(grads, params=PARAMS, steps=1, **options):
    """The last of `steps` updates with the same gradient."""
    tx = make_optimizer(**{**BASE, **options})
    state = tx.init(params)
    for _ in range(steps):
        updates, state = tx.update(grads, state, params)
    return updates


def zeros(params=PARAMS):
    return jax.tree.map(jnp.zeros_like, params)


# ---- five steps of both references, through the real training step

VT = ["vt_sgd_accum1_cosine", "vt_sgd_accum2_cosine", "vt_sgd_accum4_linear"]
FROZEN = "bv_adam_f32_frozen_mults"
ADAFACTOR = "bv_adafactor_rsqrt"
BV = [FROZEN, ADAFACTOR]
BV += ["bv_adam_bf16_sigmoid", "bv_adam_bf16_softmax", "bv_adam_f32_sigmoid", "bv_adam_f32_softmax"]


def reference_optimizer(config, params):
    """Schedule, optimizer, frozen paths and number of micro-batches of a reference's run from `params`."""
    if "base_lr" in config:
        schedule = make_schedule(
            config["decay_type"],
            peak=config["base_lr"],
            total_steps=config["total_steps"],
            warmup_steps=config["warmup_steps"],
            linear_end=1e-5 if config["decay_type"] == "linear" else 0.0,
        )
        options = {
            "name": "sgd",
            "lr": config["base_lr"],
            "clip_norm": config["grad_norm_clip"],
            "momentum": config["momentum"],
            "momentum_dtype": config["accumulator_dtype"],
        }
        optimizer = make_optimizer(**{**BASE, "schedule": schedule, **options})
        return schedule, optimizer, (), config["accum_steps"]
    run = config["config"]
    groups, decay = ParamGroups(), run["schedule"]
    if isinstance(decay, list):
        (frozen, nothing), (rest, decay) = decay
        assert (frozen, nothing, rest) == ("Transformer/encoderblock_0/.*", None, ".*")
        mults = tuple((our_regex(regex), number) for regex, number in run["lr_mults"])
        groups = make_groups(params, frozen=our_regex(frozen), lr_mults=mults, layer_decay=None)
    schedule = make_schedule(
        decay["decay_type"],
        peak=run["lr"],
        total_steps=run["total_steps"],
        warmup_steps=decay["warmup_steps"],
        cooldown_steps=decay.get("cooldown_steps", 0),
        timescale=decay.get("timescale"),
        linear_end=decay.get("linear_end", 0.0) * run["lr"],
    )
    by_name = run["optax"]
    if run["optax_name"] == "big_vision.scale_by_adafactor":
        direction = {"name": "adafactor", "b2_cap": by_name["beta2_cap"], "momentum_dtype": "bfloat16"}
    else:
        direction = {"momentum_dtype": by_name["mu_dtype"], "b2": by_name.get("b2", BASE["b2"])}
    options = {
        **direction,
        "lr": run["lr"],
        "wd": run["wd"],
        "wd_mode": "absolute",
        "clip_norm": run["grad_clip_norm"],
        "wd_mults": tuple((our_regex(regex), number) for regex, number in run.get("wd_mults", ())),
        "multipliers": groups.multipliers,
    }
    return schedule, make_optimizer(**{**BASE, "schedule": schedule, **options}), groups.frozen, 1


def our_regex(regex):
    """A regex on the reference's names, in ours."""
    return {
        "Transformer/encoderblock_0/.*": "encoder/block_0/.*",
        ".*/encoder_norm/.*": "encoder/norm/.*",
        "head/.*": "head/.*",
        ".*/kernel$": ".*/kernel$",
        "pos_embedding": "posemb",
    }[regex]


# The others take the same paths: slow, for the sake of compile time.
FAST = ("vt_sgd_accum2_cosine", "bv_adam_bf16_softmax", FROZEN, ADAFACTOR)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in VT + BV]
)
def test_five_steps_of_the_reference(golden, name):
    file = load_npz(golden / f"train/{name}.npz")
    config = json.loads(str(file["config"]))
    params = jax.tree.map(jnp.asarray, from_reference(file, "start/"))
    schedule, optimizer, frozen, accum_steps = reference_optimizer(config, params)
    loss = losses.make_loss(
        "sigmoid_xent" if config["loss"] == "sigmoid_xent" else "softmax_xent", label_smoothing=0.0
    )
    task = Classify(
        num_classes=config["num_classes"],
        train_loss=loss,
        eval_loss=loss,
        mix=Mix(),
        accum_steps=accum_steps,
        seed=0,
        mean=(127.5,) * 3,
        std=(127.5,) * 3,
    )
    zero = jnp.zeros((), jnp.int32)
    state = step.TrainState(zero, params, optimizer.init(split(params, frozen)[0]), zero, zero)
    train_step = jax.jit(
        functools.partial(
            step.train_step,
            model=model_of(config),
            optimizer=optimizer,
            schedule=schedule,
            task=task,
            frozen=frozen,
        )
    )
    seen = []
    for image, label in zip(file["image_uint8"], file["labels"], strict=True):
        batch = {"image": image, "label": label, "mask": np.ones(len(image), np.float32)}
        state, metrics = train_step(state, batch)
        seen.append(metrics)
    np.testing.assert_allclose([m["loss"] for m in seen], file["loss"], rtol=0, atol=5e-5)
    np.testing.assert_allclose([m["grad_norm"] for m in seen], file["grad_norm"], rtol=1e-4)
    expected_lr = file["lr"] if "lr" in file else file["schedule"][:, 0] * config["config"]["lr"]
    np.testing.assert_allclose([m["lr"] for m in seen], expected_lr, rtol=1e-5, atol=1e-8)

    low_precision = "f32" not in name
    got = dict(flat(state.params))
    expected = dict(flat(from_reference(file, "final/")))
    assert got.keys() == expected.keys()
    for path, value in expected.items():
        # The true gradient of key biases is zero: Adam and Adafactor make full-size steps of its rounding noise.
        if not ("ada" in name and path.endswith("key/bias")):
            atol = 2e-4 if low_precision else 2e-5
            np.testing.assert_allclose(got[path], value, rtol=0, atol=atol, err_msg=path)
        if path in frozen:
            np.testing.assert_array_equal(got[path], value)


def flat(tree):
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


# ---- weight decay


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_both_conventions_of_weight_decay(name):
    """Paper 0.1 at lr 1e-3 is absolute 1e-4, at the peak and in the same proportion below it."""
    for lr_now in (1e-3, 2e-4):
        schedule = lambda step, lr_now=lr_now: jnp.float32(lr_now)  # noqa: E731
        common = {"name": name, "schedule": schedule, "lr": 1e-3}
        scaled = updates_of(zeros(), wd=0.1, wd_mode="lr_scaled", **common)
        absolute = updates_of(zeros(), wd=1e-4, wd_mode="absolute", **common)
        for update in (scaled, absolute):
            mlp = update["encoder"]["block_0"]["mlp"]
            np.testing.assert_allclose(mlp["kernel"], -lr_now * 0.1 * 3.0, rtol=1e-5)
            np.testing.assert_array_equal(mlp["bias"], 0)
            np.testing.assert_array_equal(update["cls_token"], 0)


@pytest.mark.parametrize(("wd_mode", "share"), [("lr_scaled", 3.0), ("absolute", 1.0)])
def test_multipliers_act_on_the_decay_as_on_the_learning_rate_unless_it_is_absolute(wd_mode, share):
    path = "encoder/block_0/mlp/kernel"
    common = {"wd": 0.1, "wd_mode": wd_mode, "wd_mults": ((".*/mlp/bias", 0.5), (".*/bias", 9.0))}
    without = updates_of(zeros(), **common)["encoder"]["block_0"]["mlp"]
    scaled = updates_of(zeros(), multipliers={path: 3.0}, **common)["encoder"]["block_0"]["mlp"]
    unit = 0.1 * (0.1 if wd_mode == "lr_scaled" else 1)  # lr(t) wd, and lr(t) / peak wd
    np.testing.assert_allclose(without["kernel"], -unit * 3.0, rtol=1e-5)
    np.testing.assert_allclose(scaled["kernel"], -unit * 3.0 * share, rtol=1e-5)
    np.testing.assert_allclose(scaled["bias"], -unit * 0.5 * 5.0, rtol=1e-5)
    # The direction is scaled either way.
    grads = jax.tree.map(jnp.ones_like, PARAMS)
    moved = updates_of(grads, name="sgd", multipliers={path: 3.0}, wd_mode=wd_mode)
    np.testing.assert_allclose(moved["encoder"]["block_0"]["mlp"]["kernel"], -0.3, rtol=1e-5)
    np.testing.assert_allclose(moved["cls_token"], -0.1, rtol=1e-5)


def test_decay_is_decoupled_from_clip_and_direction():
    grads = jax.tree.map(lambda x: jnp.full_like(x, 100.0), PARAMS)
    with_decay = updates_of(grads, clip_norm=1.0, wd=0.5)
    without = updates_of(grads, clip_norm=1.0)
    difference = jax.tree.map(jnp.subtract, with_decay, without)["encoder"]["block_0"]["mlp"]
    np.testing.assert_allclose(difference["kernel"], -0.1 * 0.5 * 3.0, rtol=1e-5)
    np.testing.assert_array_equal(difference["bias"], 0)


def test_mask_matches_whole_paths():
    assert decay_mask(PARAMS, r"cls_token|.*/bias") == {
        "encoder": {"block_0": {"mlp": {"kernel": False, "bias": True}}},
        "cls_token": True,
    }
    with pytest.raises(UsageError, match=r"matches no parameter .*'cls_token'"):
        decay_mask(PARAMS, "kernel")
    with pytest.raises(UsageError, match="no regular expression"):
        decay_mask(PARAMS, "(")


def test_summary_counts_what_decays():
    block = PARAMS["encoder"]["block_0"]
    params = {**PARAMS, "encoder": {"block_0": block, "block_1": block}}
    assert decay_summary(params, ".*/kernel$").splitlines() == [
        "weight decay: 8 parameters in 2 arrays: encoder/block_*/mlp/kernel",
        "no weight decay: 6 parameters in 3 arrays: cls_token, encoder/block_*/mlp/bias",
    ]


# ---- direction, clip, learning rate


def test_adam_first_step_is_the_sign_times_lr():
    grads = jax.tree.map(lambda x: jnp.full_like(x, -1e-3), PARAMS)
    for leaf in jax.tree.leaves(updates_of(grads)):
        np.testing.assert_allclose(leaf, 0.1, rtol=1e-4)


def test_sgd_momentum_adds_up():
    grads = jax.tree.map(jnp.ones_like, PARAMS)
    for leaf in jax.tree.leaves(updates_of(grads, name="sgd", steps=3)):
        np.testing.assert_allclose(leaf, -0.1 * (1 + 0.9 + 0.81), rtol=1e-6)


def test_clip_is_by_global_norm():
    grads = jax.tree.map(jnp.ones_like, PARAMS)  # 8 elements: norm sqrt(8)
    clipped = updates_of(grads, name="sgd", clip_norm=1.0)
    np.testing.assert_allclose(optax.tree.norm(clipped), 0.1, rtol=1e-5)
    untouched = updates_of(grads, name="sgd", clip_norm=3.0)
    np.testing.assert_allclose(optax.tree.norm(untouched), 0.1 * 8**0.5, rtol=1e-5)


def test_schedule_is_read_at_steps_from_zero():
    grads = jax.tree.map(jnp.ones_like, PARAMS)
    schedule = make_schedule("constant", peak=1.0, total_steps=10, warmup_steps=2)
    for steps, lr in ((1, 0.0), (2, 0.5), (3, 1.0)):
        update = updates_of(grads, name="sgd", momentum=0.0, schedule=schedule, steps=steps)
        np.testing.assert_allclose(update["cls_token"], -lr)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_only_the_first_moment_changes_dtype(name, dtype):
    state = make_optimizer(**{**BASE, "name": name, "momentum_dtype": dtype}).init(PARAMS)
    arrays = {path: leaf.dtype for path, leaf in flat(state) if leaf.ndim}
    assert {d for path, d in arrays.items() if "/nu/" not in path} == {jnp.dtype(dtype)}
    assert all(d == jnp.float32 for path, d in arrays.items() if "/nu/" in path)


def test_accumulation_case_clips_once_on_the_mean_gradient(golden):
    """32 examples of a linear softmax model in 4 micro-batches: one update on the mean gradient."""
    case = load_npz(golden / "cases/accum.npz")
    x, y = jnp.asarray(case["x"]), losses.to_targets(jnp.asarray(case["y"]), 3)
    params = {"kernel": jnp.asarray(case["w0"])}

    def mean_loss(p, x, y):
        return losses.softmax_xent(x @ p["kernel"], y).mean()

    parts = [jax.value_and_grad(mean_loss)(params, x[i::4], y[i::4]) for i in range(4)]
    loss, grads = jax.tree.map(lambda *leaves: sum(leaves) / 4, *parts)
    assert float(loss) == pytest.approx(5.218389, abs=1e-5)
    assert float(optax.tree.norm(grads)) == pytest.approx(3.760343, abs=1e-5)
    updates = updates_of(grads, params, name="sgd", momentum=0.0, clip_norm=1.0)
    expected = [
        [0.516474, 0.295883, 0.264783],
        [0.44604, -0.501169, 0.460732],
        [-0.499268, 0.156897, -0.084931],
        [0.120734, 0.377658, -0.003116],
        [-0.433994, 0.460664, 0.566424],
        [0.309887, 0.506226, -0.836712],
    ]
    np.testing.assert_allclose(params["kernel"] + updates["kernel"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "admw"}, "optim.name 'admw' is unknown .*'adam'"),
        ({"name": "lamb9"}, "known: adafactor, adam, sgd"),
        ({"wd_mode": "relative"}, "optim.wd_mode"),
        ({"momentum_dtype": "float16"}, "optim.momentum_dtype"),
        ({"clip_norm": 0.0}, "optim.clip_norm"),
        ({"wd": -0.1}, "optim.wd is"),
        ({"b1": 1.0}, "optim.b1"),
        ({"b2": -0.1}, "optim.b2"),
        ({"b2_cap": 1.0}, "optim.b2_cap"),
        ({"factor_min_dim": 0}, "optim.factor_min_dim"),
        ({"eps": 0.0}, "optim.eps"),
        ({"momentum": 1.5}, "optim.momentum is"),
        ({"wd": 0.1, "wd_mode": "absolute", "lr": 0.0}, "optim.lr"),
    ],
)
def test_refusals_name_the_key(options, message):
    with pytest.raises(UsageError, match=message):
        make_optimizer(**{**BASE, **options})
