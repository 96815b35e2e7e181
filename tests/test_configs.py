"""Every shipped config: documented, buildable at full size, and able to step on a shrunken model."""

import ast
import re

import jax
import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax.data import preprocess
from vit_jax.data.dataset import DataFacts
from vit_jax.data.sources import parse_spec
from vit_jax.errors import UsageError
from vit_jax.planning import topology

NAMES = config_lib.config_names()
EVALUATED = ("fewshot", "vtab")  # for vit_jax.evaluate and vit_jax.vtab
RUNNABLE = [name for name in NAMES if name not in ("base", *EVALUATED)]
NATURAL_SIZE = {"digits": 8, "idx": 28}  # of sources whose images need no resize


def _facts(config):
    """As the data would say, without having it; long enough for any warm-up."""
    train = preprocess.parse(config.data.preprocess_train)
    kind = parse_spec(config.data.train)[0]
    height, width = train.output_size or (NATURAL_SIZE[kind], NATURAL_SIZE[kind])
    mean, std = train.normalize
    shape = (height, width, train.channels)
    examples = 60_000 if config.data.train_examples is None else config.data.train_examples
    classes = 10 if config.num_classes is None else config.num_classes
    return DataFacts(examples, classes, shape, (), tuple(map(float, mean)), tuple(map(float, std)))


@pytest.mark.parametrize("name", NAMES)
def test_docstring_says_what_it_is_and_the_command(name):
    text = (config_lib.shipped_configs() / f"{name}.py").read_text()
    doc = ast.get_docstring(ast.parse(text))
    assert doc
    if name != "base":
        assert f"--config=configs/{name}.py" in doc
        assert ("--checkpoint=" if name in EVALUATED else "--workdir=") in doc
        assert re.search(r"paper row|Table \d", doc)


@pytest.mark.parametrize("name", RUNNABLE)
def test_steps_on_a_shrunken_model(name):
    config = config_lib.load(name)
    if not config.model.name:  # the weights of init tell it
        config.model.name = "B/16"
    config.mesh.fsdp = 1
    full = job_lib.build(config, _facts(config), jax.devices()[:1])
    assert full.total_steps > 0 and full.abstract_state.params

    config.model.width, config.model.depth, config.model.mlp_dim, config.model.num_heads = 16, 1, 16, 2
    config.global_batch, config.eval.global_batch = 4, 4
    job = job_lib.build(config, _facts(config), jax.devices()[:1])
    rng = np.random.default_rng(0)
    batch = jax.device_put(
        {
            "image": rng.integers(0, 256, (4, *job.facts.image_shape)).astype(np.uint8),
            "label": rng.integers(0, 10, 4).astype(np.int32),
            "mask": np.ones(4, np.float32),
        },
        job.batch_sharding,
    )
    step, state = job.lower_train_step().compile(), job.create_state()
    before = jax.device_get(state.params)
    rates = []
    for _ in range(2):
        state, metrics = step(state, batch)
        assert np.isfinite(metrics["loss"])
        rates.append(float(metrics["lr"]))
    np.testing.assert_allclose(rates, [job.schedule(0), job.schedule(1)], rtol=1e-6)
    moved = [
        np.any(a != b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(state.params), strict=True)
    ]
    assert any(moved)


ARGUMENTS = {
    "pretrain_i21k": {
        "B/16": 103.2, "B/32": 104.8, "L/16": 326.7, "L/32": 328.9, "H/14": 660.3, "g/14": None, "G/14": None,
        "L/16,epochs=30": 326.7,
    },
    "plain_s16": {"90": 22.2, "150": 22.2, "300": 22.2},
}  # fmt: skip


@pytest.mark.parametrize(("name", "arg"), [(name, arg) for name, args in ARGUMENTS.items() for arg in args])
def test_every_argument_builds_at_full_size(name, arg):
    """State, shardings, schedule and mesh on a slice of 16 chips, nothing allocated."""
    config = config_lib.load(f"{name}:{arg}")
    (place,) = topology.parse("v5e:4x4")
    job = job_lib.build(config, _facts(config), topology.devices(place))
    millions = sum(x.size for x in jax.tree.leaves(job.abstract_state.params)) / 1e6
    if ARGUMENTS[name][arg] is not None:
        assert millions == pytest.approx(ARGUMENTS[name][arg], abs=0.1)
    assert float(job.schedule(10_000)) == pytest.approx(config.optim.lr)
    epochs = job.total_steps * config.global_batch / job.facts.num_examples
    assert epochs == pytest.approx(config.total_epochs, abs=1e-3)


def test_the_pretraining_configs_by_argument():
    config = config_lib.load("pretrain_i21k:L/16,epochs=30,data=arrayrecord:gs://b/i21k,val=validation")
    assert (config.total_epochs, config.model.remat, config.mesh.fsdp) == (30, "full", 16)
    assert config.data.train == "arrayrecord:gs://b/i21k@train"
    assert config.data.val == "arrayrecord:gs://b/i21k@validation"
    assert config_lib.load("pretrain_i21k:G/14").model.pool == "map"
    for wrong in (
        "pretrain_i21k:S/16",
        "pretrain_i21k:L/16,epochs=x",
        "pretrain_i21k:L/16,wd=1",
        "plain_s16:100",
    ):
        with pytest.raises(UsageError):
            config_lib.load(wrong)


def test_the_few_shot_config_by_argument():
    config = config_lib.load("fewshot")
    assert config.features.data == (("own", "", "", ""),)
    assert set(config.features.methods) == {"fewshot", "linear", "knn"}
    assert (config.fewshot.l2, config.fewshot.shots, config.fewshot.seeds) == (1024, (1, 5, 10, 25), 3)
    config = config_lib.load(
        "fewshot:folder:a/pets+folder:b/cars,methods=knn,test=validation,imagenet=/x,sets=real+a"
    )
    assert config.features.data == (
        ("pets", "folder:a/pets", "", "validation"), ("cars", "folder:b/cars", "", "validation"),
    )  # fmt: skip
    assert config.imagenet.real == "folder:/x/validation@all" and config.imagenet.a == "folder:/x/a@all"
    assert config.imagenet.v2 == "" and config.imagenet.real_labels == "/x/real.json"
    assert config_lib.load("fewshot:methods=").features.data == ()
    for wrong in ("methods=svm", "data=digits,methods=", "imagenet=/x,sets=sketch", "folder=a"):
        with pytest.raises(UsageError):
            config_lib.load(f"fewshot:{wrong}")
