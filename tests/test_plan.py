"""The plan command: what it refuses, what it prints, and what the TPU compiler says of the shipped configs."""

import json
import re

import jax
import pytest

from tests.tiny_job import FACTS, tiny_config
from vit_jax import job as job_lib
from vit_jax import plan, train
from vit_jax.errors import RunFailed, UsageError
from vit_jax.planning import compiling, report, search, topology

KEYS = {
    "topology", "chips", "fits", "hbm_limit_bytes", "argument_bytes", "temp_bytes", "peak_bytes", "params",
    "param_bytes_per_chip", "opt_bytes_per_chip", "unsharded_fraction", "model_flops_per_step", "est_step_seconds",
    "est_mfu", "roof_mfu", "collectives", "images_per_second", "hours", "chip_hours", "cost", "mesh", "remat",
    "attention", "softmax_dtype", "reason",
}  # fmt: skip
L16 = "--config=pretrain_i21k:L/16"


@pytest.fixture(autouse=True)
def _as_users_compile():
    """The tests' precision, six passes for a float32 product, is not what a run has."""
    before = jax.config.jax_default_matmul_precision
    jax.config.update("jax_default_matmul_precision", None)
    yield
    jax.config.update("jax_default_matmul_precision", before)


def run(capsys, *words):
    """Exit code, or the error, and the printed plans."""
    try:
        code = plan.main([*words, "--json"])
    except RunFailed as error:
        code = error
    return code, json.loads(capsys.readouterr().out)


# ---- no compile, or one of a small program


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((L16, "--topology=v5e"), "write v5e:16x16"),
        ((L16, "--topology=v5e:2x2"), "mesh replica -1 x fsdp 16"),
        ((L16, "--topology=v5e:4x4,v5e:4x8", "--search"), "one at a time"),
        ((L16, "--topology=v5e:4x4", "--price-per-chip-hour=-1"), "give a price"),
        ((L16, "--topology=v5e:4x4", "--price-per-chip-hour=nan"), "give a price"),
        ((L16, "--topology=v5e:4x4", "--config.num_classes=None"), "--config.num_classes"),
        (("--config=tiny_imagenet:nowhere", "--topology=cpu:8"), "nowhere.*--config.data.train_examples"),
        ((L16, "--topology=v5e:4x4", "--config.model.name=L/17"), "not a multiple of the patch size 17"),
        ((L16, "--topology=v5e:4x4", "--config.global_batch=1000"), "global_batch 1000 not divisible by 16"),
    ],
)
def test_refusals(words, says):
    with pytest.raises(UsageError, match=says):
        plan.main(list(words))


def test_the_data_tells_what_the_config_leaves_open(capsys):
    code, (found,) = run(capsys, "--config=quickstart", "--topology=cpu:8")
    assert code == 0 and found["fits"] and found["reason"] is None
    assert set(found) >= KEYS
    assert found["chips"] == 8 and found["mesh"] == {"replica": 8, "fsdp": 1, "tensor": 1}
    assert found["peak_bytes"] >= found["argument_bytes"] > 0
    assert found["hbm_limit_bytes"] is found["est_mfu"] is found["hours"] is None  # of a CPU nothing is known


def tiny_plan(place, price=None, facts=FACTS, **overrides):
    config = tiny_config(**overrides)
    config.num_classes = facts.num_classes
    return plan.make_plan(config, facts, *topology.parse(place), price)


def test_a_tiny_step_on_a_slice():
    found = tiny_plan(
        "v5e:2x4", price=2.0, mesh__fsdp=4, fsdp_min_size=0, model__scan=True, model__remat="full"
    )
    assert found["fits"] and found["peak_bytes"] < 2**28
    assert found["mesh"] == {"replica": 2, "fsdp": 4, "tensor": 1}
    assert found["roof_step_seconds"] <= found["est_step_seconds"]
    assert 0 < found["est_mfu"] <= found["roof_mfu"] < 1
    assert found["chip_hours"] == pytest.approx(8 * found["hours"])
    assert found["cost"] == pytest.approx(2 * found["chip_hours"])
    kinds = {part["kind"] for part in found["collectives"]}
    assert "all-gather" in kinds and kinds & {"all-reduce", "reduce-scatter"}
    assert found["windowed_matmuls"] == 0
    text = report.table([found])
    assert "v5e:2x4" in text and "replica 2 x fsdp 4" in text and "| cost" in text


def test_two_slices():
    found = tiny_plan("2*v5e:2x2", mesh__fsdp=4, fsdp_min_size=0)
    assert found["chips"] == 8 and found["mesh"] == {"replica": 2, "fsdp": 4, "tensor": 1}
    assert any(part["between_slices"] for part in found["collectives"])


def test_one_of_two_topologies_is_too_small(capsys):
    words = [
        "--config=quickstart",
        "--topology=cpu:2,cpu:8",
        "--config.mesh.fsdp=4",
        "--config.mesh.replica=2",
    ]
    code, (small, large) = run(capsys, *words)
    assert isinstance(code, RunFailed) and "cpu:2: mesh replica 2 x fsdp 4" in str(code)
    assert not small["fits"] and "needs 8 devices" in small["reason"] and large["fits"]


def test_search_ranks_what_fits(capsys):
    words = ["--config=quickstart", "--topology=v5e:2x2", "--search", "--config.model.depth=2"]
    code, plans = run(capsys, *words)
    assert code == 0 and len(plans) > 5
    speeds = [found["images_per_second"] for found in plans if found["fits"]]
    assert speeds == sorted(speeds, reverse=True) and speeds[0] > 0
    assert plan.main([*words]) == 0
    first = capsys.readouterr().out.splitlines()[2]
    assert search.flags(plans[0]["settings"]) in first


def test_candidates():
    config = tiny_config(model__scan=True, model__remat="full", mesh__fsdp=4)
    found = list(search.layouts(config, 16))
    assert found[0] == {"model.scan": True, "model.remat": "full", "mesh.fsdp": 4}
    assert len({str(c) for c in found}) == len(found)
    assert not any(c["model.scan"] and c["model.remat"] == "none" for c in found)
    assert {c["mesh.fsdp"] for c in found} == {1, 4, 16}
    assert any(not c["model.scan"] for c in found)
    config.model.depth = 24
    assert all(c["model.scan"] for c in search.layouts(config, 16))
    config.global_batch = 64
    cut = list(search.batches(config, found[0], 16))
    assert [c.get("accum_steps") or c["global_batch"] for c in cut] == [2, 4, 128, 32]
    applied = search.applied(config, cut[0])
    assert applied.accum_steps == 2 and applied.mesh.replica == -1 and config.accum_steps == 1


def test_train_warns_of_data_of_another_size(caplog):
    config = tiny_config()
    train._warn_of_another_size(config, 5)
    config.data.train_examples = 5
    train._warn_of_another_size(config, 5)
    assert not caplog.records
    train._warn_of_another_size(config, 6)
    assert "has 6 images, data.train_examples says 5" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "short"), [("float32", "f32"), ("bfloat16", "bf16")])
def test_gradients_are_summed_over_chips_in_the_type_of_the_computation(dtype, short):
    """As configs/base.py says at model.dtype. Of the TPU's program: a CPU's sums are float32 whatever they were."""
    config = tiny_config(model__dtype=dtype, mesh__replica=2, mesh__fsdp=2, fsdp_min_size=0)
    job = job_lib.build(config, FACTS, topology.devices(topology.parse("v5e:2x2")[0]))
    text = compiling.compile_step(job, {}, None).text
    sums = [
        re.search(r"= (.*) (?:all-reduce|reduce-scatter)(?:-start)?\(", line) for line in text.splitlines()
    ]
    shapes = " ".join(match[1] for match in sums if match)
    assert set(re.findall(r"(\w+)\[32,64\]", shapes)) == {short}  # mlp/fc1/kernel
    assert set(re.findall(r"(\w+)\[32,5\]", shapes)) == {"f32"}  # head/kernel


# ---- the shipped configs, compiled for real slices


def test_too_much_memory_is_told_with_the_figure(capsys):
    """L/16 scanned without remat: the compiler's own refusal, in seconds."""
    words = [L16, "--topology=v5e:4x4", "--config.global_batch=1024", "--config.model.remat=none"]
    code, (found,) = run(capsys, *words)
    assert isinstance(code, RunFailed) and "v5e:4x4: out of memory" in str(code)
    assert not found["fits"] and found["peak_bytes"] > 2 * found["hbm_limit_bytes"]
    assert "of 15.75 GiB" in found["reason"] and "too much" in found["reason"]
    with pytest.raises(RunFailed):
        plan.main(words)
    assert "NO: out of memory" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("softmax", "least"), [("float32", 0.33), ("bfloat16", 0.37)])
def test_large_on_sixteen_chips(capsys, softmax, least):
    """A ceiling of memory, no leaked shardings, and what the estimate reached when shipped."""
    words = [
        L16,
        "--topology=v5e:4x4",
        "--config.global_batch=1024",
        f"--config.model.softmax_dtype={softmax}",
    ]
    code, (found,) = run(capsys, *words)
    assert code == 0
    assert found["temp_bytes"] <= 2 * 2**30
    assert found["windowed_matmuls"] == 0 and found["unsharded_fraction"] < 0.01
    assert least <= found["est_mfu"] <= found["roof_mfu"]


@pytest.mark.slow
def test_the_published_hours_of_plain_s16(capsys):
    """6 to 7 hours for 90 epochs on a v3-8, by its authors."""
    code, (found,) = run(capsys, "--config=plain_s16:90", "--topology=v3:2x2")
    assert code == 0 and found["fits"] and found["chips"] == 4
    assert 6 <= found["hours"] <= 7


@pytest.mark.slow
@pytest.mark.parametrize("name", ["B/16", "L/16", "H/14", "g/14", "G/14"])
@pytest.mark.parametrize("place", ["v5e:16x16", "v5p:4x4x4"])
def test_shipped_settings_fit(capsys, name, place):
    code, (found,) = run(capsys, f"--config=pretrain_i21k:{name}", f"--topology={place}")
    assert code == 0 and found["fits"]
    assert found["windowed_matmuls"] == 0 and found["unsharded_fraction"] < 0.01
