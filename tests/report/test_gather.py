"""What is gathered where a model has no inside to show, or an evaluation has nothing to confuse."""

import dataclasses

import numpy as np
import pytest

from tests.tiny_job import tiny_config
from vit_jax import job as job_lib
from vit_jax.data.dataset import open_eval_data
from vit_jax.data.sources import open_source
from vit_jax.report.content import Inside, Missing, Mistakes
from vit_jax.report.evaluated import Evaluated
from vit_jax.report.gather import gather
from vit_jax.step import init_params

DIGITS = tuple("0123456789")
NO_VIT = {f"model__{name}": None for name in ("width", "depth", "mlp_dim", "num_heads")}


@pytest.fixture(scope="module")
def evaluated():
    """A tiny ViT that was evaluated on forty digits, and confused a three with a five."""
    return made()


def made(**overrides):
    config = tiny_config(
        data__preprocess_eval="decode|value_range(-1, 1)", data__test="digits@test[:40]", **overrides
    )
    data = open_eval_data(config.data, classes=DIGITS, num_classes=10)
    job = job_lib.build_eval(config, data.facts())
    confusion = np.diag([4] * 10)
    confusion[3, 5] = 1
    details = {
        "test/confusion": confusion,
        "test/class_count": np.full(10, 4),
        "test/calibration": np.ones((3, 15)),
    }
    return Evaluated(
        "weights.npz", None, job, init_params(job.model, job.facts.image_shape, 0), data, {}, config, True,
        {"eval/test/accuracy": 0.9, "eval/test/ece": 0.1}, details, (), ("--checkpoint=weights.npz",),
    )  # fmt: skip


def test_of_bare_weights(evaluated):
    found = gather(evaluated)
    assert isinstance(found.history, Missing) and found.anchors == []
    assert found.data == {"test": "digits@test[:40], 40 examples"}
    assert isinstance(found.mistakes, Mistakes) and isinstance(found.inside, Inside)
    (pair,) = found.mistakes.pairs
    assert (pair.label, pair.prediction, pair.count, pair.of) == ("3", "5", 1, 5)
    assert found.mistakes.classes == (("3", 0.8, 5),)
    assert len(found.inside.rollouts) == 4 and found.inside.distance.shape == (2, 4)
    assert found.config["model.width"] == 32 and found.defaults["model.width"] is None
    assert found.commands == {"This page": "python -m vit_jax.evaluate --checkpoint=weights.npz"}


def without(evaluated, *names, **changes):
    details = {name: array for name, array in evaluated.details.items() if name not in names}
    return gather(dataclasses.replace(evaluated, details=details, **changes))


def test_why_there_are_no_confusions(evaluated):
    assert "several labels" in without(evaluated, "test/class_count", "test/calibration").mistakes.why
    assert "one label per example" in without(evaluated, "test/calibration").calibration.why
    assert "10 classes" in without(evaluated, "test/confusion").mistakes.why
    diverged = without(evaluated, results={"eval/test/ece": float("nan")})
    assert "aren't finite" in diverged.calibration.why


def test_where_nothing_was_classified_another_split_is_looked_into(evaluated):
    data = dataclasses.replace(evaluated.data, evals={})
    nothing = without(evaluated, data=data)
    assert "Nothing was classified" in nothing.mistakes.why
    assert nothing.inside.distance is None and nothing.inside.rollouts == ()
    other = without(
        evaluated, data=data, others={"own": open_source("digits@test[:2]", default_split="test")}
    )
    assert other.data == {"own": "digits@test[:2], 2 examples"}
    assert [picture.caption for picture in other.inside.rollouts] == ["digits/test/0", "digits/test/1"]


def test_a_resnet_has_no_inside():
    found = gather(made(model__name="R50x1", model__depths=(1,), model__width_factor=0.5, **NO_VIT))
    assert found.inside.why.startswith("A ResNet has no attention and no position embeddings")
