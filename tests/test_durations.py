import json
import math

import numpy as np
import pytest

from vit_jax.durations import to_steps
from vit_jax.errors import UsageError


def steps(name="total", *, examples_per_epoch=51200, global_batch=512, **given):
    given = {"steps": None, "epochs": None, "examples": None, **given}
    return to_steps(name, examples_per_epoch=examples_per_epoch, global_batch=global_batch, **given)


def test_the_forms_of_the_reference_schedules(golden):
    with np.load(golden / "schedules.npz", allow_pickle=False) as file:
        specs = json.loads(str(file["spec"]))
    assert steps("warmup", epochs=specs["bv_cosine_warmup_epochs"]["warmup_epochs"]) == 150
    assert steps("warmup", examples=specs["bv_cosine_warmup_examples"]["warmup_examples"]) == 20
    for key, expected in (("warmup", 50), ("cooldown", 200)):
        percent = specs["bv_linear_cooldown_percent"][f"{key}_percent"]
        assert steps(key, percent=percent, total_steps=1000) == expected


def test_whole_batches_that_fit():
    assert steps(epochs=2, examples_per_epoch=10, global_batch=4) == 5  # across the epoch border
    assert steps(epochs=90, examples_per_epoch=1_281_167, global_batch=1024) == 112_602
    assert steps(examples=1535) == 2
    assert steps(examples=1) == 1  # never nothing
    assert steps(percent=0.29, total_steps=100) == 29  # 28.999999999999996 in floating point
    assert steps(steps=7) == 7


def test_zero_and_unset():
    assert steps("warmup", steps=0) == 0
    assert steps("warmup", epochs=0.0) == 0
    assert steps("cooldown", required=False) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 5, "epochs": 1.0}, "total_steps and total_epochs are all set"),
        ({}, "set total_steps, total_epochs or total_examples"),
        ({"steps": -1}, "total_steps is -1"),
        ({"steps": 1.5}, "total_steps is 1.5"),
        ({"epochs": math.inf}, "total_epochs is inf"),
        ({"epochs": math.nan}, "total_epochs is nan"),
        ({"epochs": 1.0, "examples_per_epoch": None}, "total_epochs needs the size"),
        ({"examples": 10, "global_batch": 0}, "global_batch is 0"),
        ({"percent": 1.5, "total_steps": 10}, "total_percent is 1.5"),
        ({"percent": 0.5}, "total_percent"),
    ],
)
def test_refusals_name_the_keys(given, message):
    with pytest.raises(UsageError, match=message):
        steps(**given)


def test_dotted_names():
    with pytest.raises(UsageError, match=r"checkpoint\.every_steps and checkpoint\.every_epochs"):
        steps("checkpoint.every", steps=1, epochs=1.0)
