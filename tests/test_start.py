"""Starting from published weights: the logits of the first step, and the rule of the first updates."""

import dataclasses
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.golden_layouts import load_npz, model_input
from tests.tiny_job import tiny_config
from vit_jax import job as job_lib
from vit_jax import model_config, pretrained, start
from vit_jax.checkpoint import Checkpoints
from vit_jax.data.dataset import DataFacts
from vit_jax.errors import UsageError
from vit_jax.formats.adapt import adapt
from vit_jax.models.variants import model_family, name_of, variant_fields

FACTS = DataFacts(64, 5, (32, 32, 3), (), (127.5,) * 3, (127.5,) * 3)
LR = 0.05


def fine_tuning(golden, facts=FACTS, **overrides):
    """The job of a config that says no more of the model than its shape."""
    shape = {"width": 24, "depth": 2, "mlp_dim": 48, "num_heads": 3}
    options = {
        "init": str(golden / "vt/pretrained_21cls.npz"), "model__name": "mu/8", "model__rep_size": 0,
        **{f"model__{name}": value for name, value in shape.items()},
        "optim__name": "sgd", "optim__momentum_dtype": "bfloat16", "optim__lr": LR, "optim__wd": 0.0,
        "optim__clip_norm": 1.0, "schedule": "constant", "warmup_steps": 0, "global_batch": 4,
    }  # fmt: skip
    config = tiny_config(**(options | overrides))
    weights = start.read_init(config)
    model_config.resolve(config, facts, {**weights.fields, "name": name_of(weights.family, weights.fields)})
    return job_lib.build(config, facts, jax.devices()[:1]), weights


def begun(job, weights, tmp_path):
    return start.initial_state(job, Checkpoints(tmp_path / "c", keep=1, keep_every_steps=None), weights)[0]


def test_the_head_is_zero_and_the_rest_gives_the_reference_logits(golden, tmp_path):
    """vt/ft_drop_hidden: 21 classes and a hidden layer there, five classes and none here."""
    job, weights = fine_tuning(golden)
    params = jax.device_get(begun(job, weights, tmp_path).params)
    assert not params["head"]["kernel"].any() and "pre_logits" not in params
    io = load_npz(golden / "vt/ft_drop_hidden.io.npz")
    params["head"] = {"kernel": io["head_kernel"], "bias": io["head_bias"]}
    logits, _ = jax.jit(job.model.apply)({"params": params}, model_input(io["image_uint8"]))
    np.testing.assert_allclose(logits, io["logits"], atol=3e-5, rtol=1e-4)


def test_the_first_updates_follow_the_reference_rule(golden, tmp_path):
    """Clip at 1, then momentum kept in bfloat16 whose decay constant is rounded too, 0.8984375."""
    job, weights = fine_tuning(golden)
    state = begun(job, weights, tmp_path)
    params = jax.tree.map(jnp.asarray, jax.device_get(state.params))
    trace = jax.tree.map(jnp.zeros_like, params)
    step = job.lower_train_step().compile()
    rng = np.random.default_rng(0)

    def loss(params, images, labels):
        logits, _ = job.model.apply({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    for _ in range(3):
        images = rng.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
        labels = rng.integers(0, 5, 4).astype(np.int32)
        grads = jax.jit(jax.grad(loss))(params, model_input(images), labels)
        norm = optax.tree.norm(grads)
        grads = jax.tree.map(lambda g, n=norm: g / jnp.maximum(n, 1.0), grads)
        trace = jax.tree.map(lambda t, g: 0.8984375 * t + g, trace, grads)
        params = jax.tree.map(lambda p, t: p - LR * t, params, trace)
        trace = jax.tree.map(lambda t: t.astype(jnp.bfloat16).astype(jnp.float32), trace)
        batch = {"image": images, "label": labels, "mask": np.ones(4, np.float32)}
        state, metrics = step(state, jax.device_put(batch, job.batch_sharding))
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    for (path, ours), theirs in zip(
        jax.tree_util.tree_leaves_with_path(state.params), jax.tree.leaves(params), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=2e-5, err_msg=jax.tree_util.keystr(path))


def test_what_the_config_leaves_open_is_the_files(golden, tmp_path):
    """posemb_cls of the layout, and a scanned model from unrolled weights."""
    job, weights = fine_tuning(golden, model__scan=True, model__remat="full")
    assert job.config.model.posemb_cls is True and job.config.model.gelu == "tanh"
    assert job.config.model.image_size == (32, 32) and job.config.num_classes == 5
    state = begun(job, weights, tmp_path)
    assert state.params["encoder"]["blocks"]["norm1"]["scale"].shape == (2, 24)


def test_a_fixed_class_row_is_folded(golden, tmp_path):
    job, weights = fine_tuning(golden, model__posemb_cls=False)
    assert begun(job, weights, tmp_path).params["posemb"].shape == (1, 16, 24)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"model__name": "Ti/16", "model__width": None},
            r"patch_size is 16, but .*pretrained_21cls.npz has 8",
        ),
        ({"model__depth": 3}, r"depth is 3, but .* has 2"),
        ({"model__pool": "map"}, r"map_head"),
        ({"init_subtree": "ema"}, r"no subtree 'ema'"),
    ],
)
def test_other_models_than_the_files_are_refused(golden, overrides, message):
    with pytest.raises(UsageError, match=message):
        fine_tuning(golden, **overrides)


def test_another_normalisation_is_said(golden, tmp_path, caplog):
    facts = DataFacts(**{**FACTS.__dict__, "mean": (123.7, 116.3, 103.5), "std": (58.4, 57.1, 57.4)})
    job, weights = fine_tuning(golden, facts)
    with caplog.at_level(logging.WARNING, "vit_jax"):
        begun(job, weights, tmp_path)
    assert "wants images normalised by mean (127.5, 127.5, 127.5)" in caplog.text and "123.7" in caplog.text


def test_the_reference_config_of_the_case(golden):
    """What this file relies on: the source has a hidden layer, the fine-tuned model none."""
    config = json.loads(str(load_npz(golden / "vt/ft_drop_hidden.io.npz")["config"]))
    assert config["source"] == "pretrained_21cls.npz" and config["representation_size"] is None


@pytest.mark.parametrize(
    ("theirs", "ours", "kept"),
    [
        (None, "abcdefg", False),
        ("abcdefg", "abcdefg", True),
        ("abcdefg", "abcdefx", False),
        ("abcdefg", None, True),
    ],
)
def test_a_head_for_other_classes_is_replaced_though_they_are_as_many(golden, caplog, theirs, ours, kept):
    weights = pretrained.read(golden / "vt/token.npz")
    weights = dataclasses.replace(weights, classes=theirs and tuple(theirs))
    with caplog.at_level(logging.INFO, "vit_jax"):
        params = adapt(weights, weights.model(), classes=ours and tuple(ours))
    assert np.any(params["head"]["kernel"]) == kept
    why = "not known to be the same" if theirs is None else "'g' there and 'x' here"
    if ours is None:  # nothing is known of the classes here, and nothing said of them
        assert "head" not in caplog.text
    else:
        assert ("kept" if kept else why) in caplog.text


def test_a_model_without_a_name_is_what_its_weights_are(golden):
    shape = dict.fromkeys(("width", "depth", "mlp_dim", "num_heads"))
    overrides = {f"model__{name}": None for name in shape}
    job, _ = fine_tuning(golden, model__name="", **overrides)
    assert (job.model.width, job.model.depth, job.model.num_heads, job.model.patch_size) == (24, 2, 3, 8)
    config = tiny_config(model__name="")
    with pytest.raises(UsageError, match=r"model.name is empty .*init"):
        model_config.resolve(config, FACTS, {})


@pytest.mark.parametrize("name", ["Ti/16", "S/14", "B/7", "R50+B/16", "R+Ti/16", "R152x2", "Mixer-L/16"])
def test_names_from_shapes(name):
    assert name_of(model_family(name), variant_fields(name)) == name
    assert name_of("vit", {"patch_size": 8, "depth": 2, "width": 24, "mlp_dim": 48, "num_heads": 3}) == "B/16"
