import json
import math

import numpy as np
import pytest

from vit_jax.errors import UsageError
from vit_jax.schedules import make_schedule

KEYS = ("steps", "epochs", "examples", "percent")


def duration(spec, name):
    """The reference's forms of a duration, in steps."""
    per_epoch = spec["data_size"] / spec["batch_size"]
    scale = {
        "steps": 1,
        "epochs": per_epoch,
        "examples": 1 / spec["batch_size"],
        "percent": spec["total_steps"],
    }
    return next((round(spec[f"{name}_{k}"] * scale[k]) for k in KEYS if f"{name}_{k}" in spec), 0)


def from_reference(spec):
    if spec["ref"] == "vision_transformer":
        shape = {"warmup_steps": spec["warmup_steps"], "linear_end": spec["linear_end"]}
        return make_schedule(spec["decay_type"], peak=spec["base"], total_steps=spec["total_steps"], **shape)
    scale = spec["batch_size"] / 256 if spec.get("scale_with_batchsize") else 1.0
    linear_end = spec.get("linear_end", spec.get("end", 0.0))
    return make_schedule(
        spec["decay_type"],
        peak=spec["base"] * scale,
        total_steps=spec["total_steps"],
        warmup_steps=duration(spec, "warmup"),
        cooldown_steps=duration(spec, "cooldown"),
        linear_end=linear_end,
        power=spec.get("power"),
        timescale=spec.get("timescale", 10_000),
        shift=spec.get("shift", 0),
        boundaries=spec.get("steps", ()),
        factors=spec.get("mults", ()),
    )


def test_every_schedule_of_the_references(golden):
    with np.load(golden / "schedules.npz", allow_pickle=False) as file:
        specs = json.loads(str(file["spec"]))
        assert len(specs) == 19
        for name, spec in specs.items():
            got = from_reference(spec)(file["steps"])
            np.testing.assert_allclose(got, file[name], rtol=1e-5, atol=1e-8, err_msg=name)
            assert got.dtype == np.float32


def test_counts_optimizer_steps(golden):
    case = json.loads((golden / "cases/schedule.json").read_text())
    schedule = make_schedule(
        case["kind"], peak=case["base_lr"], total_steps=case["total_steps"], warmup_steps=case["warmup_steps"]
    )
    for step, lr in case["expected"]:
        assert float(schedule(step)) == pytest.approx(lr, abs=1e-7), step


def test_another_total_is_another_function_of_the_step(golden):
    case = json.loads((golden / "cases/schedule_resume.json").read_text())
    saved = case["saved"]
    args = {"peak": saved["base_lr"], "warmup_steps": saved["warmup_steps"]}
    before = make_schedule("cosine", total_steps=saved["total_steps"], **args)
    after = make_schedule("cosine", total_steps=case["resumed_with"]["total_steps"], **args)
    assert float(before(saved["step"])) == pytest.approx(case["lr_before"], abs=1e-8)
    assert float(after(saved["step"])) == pytest.approx(case["lr_after_if_f_of_new_total"], abs=1e-8)


def test_constant_with_warmup_and_cooldown():
    schedule = make_schedule("constant", peak=2.0, total_steps=20, warmup_steps=4, cooldown_steps=10)
    steps = np.array([0, 1, 4, 9, 10, 15, 19, 20, 30])
    np.testing.assert_allclose(schedule(steps), [0, 0.5, 2, 2, 2, 1, 0.2, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("name", ["constant", "cosine", "linear"])
def test_finite_from_first_to_last_step_at_the_edges(name):
    for total, warmup in ((1, 0), (1, 1), (5, 5)):
        values = make_schedule(name, peak=1.0, total_steps=total, warmup_steps=warmup)(np.arange(total + 2))
        assert np.all(np.isfinite(values)) and np.all(np.asarray(values) >= 0)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": "cosin"}, "'cosine'"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"warmup_steps": 101}, "warmup_steps 101 exceeds total_steps 100"),
        ({"cooldown_steps": -1}, "cooldown_steps is -1"),
        ({"warmup_steps": 60, "cooldown_steps": 50}, "warmup_steps 60 [+] cooldown_steps 50"),
        ({"total_steps": 0}, "total_steps is 0"),
        ({"peak": -1.0}, "optim.lr"),
        ({"peak": math.nan}, "optim.lr"),
        ({"linear_end": -1e-5}, "schedule_end_lr"),
        ({"name": "rsqrt"}, "schedule_timescale_steps is None"),
        ({"name": "rsqrt", "timescale": 10, "shift": -1}, "shift"),
        ({"name": "polynomial", "power": 0.0}, "power"),
        ({"name": "stair", "boundaries": (5, 3), "factors": (0.1, 0.01)}, "boundaries"),
        ({"name": "stair", "boundaries": (5,), "factors": ()}, "factors"),
    ],
)
def test_refusals_name_the_key(change, key):
    args = {"name": "cosine", "peak": 1.0, "total_steps": 100, "warmup_steps": 0, **change}
    with pytest.raises(UsageError, match=key):
        make_schedule(args.pop("name"), **args)
