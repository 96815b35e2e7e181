"""Protocols by name, the grid that each makes, and the config of every run."""

import jax
import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax.data.source_vtab import Splits
from vit_jax.data.vtab_tasks import TASKS
from vit_jax.errors import UsageError
from vit_jax.vtab1k import trials
from vit_jax.vtab1k.plan import facts_of
from vit_jax.vtab1k.trials import Trial

SPLITS = Splits("train[:800]", "validation[:200]", "test", {})


def test_the_protocols_are_those_of_the_papers():
    vit = config_lib.load("vtab")
    assert (vit.total_steps, vit.global_batch, vit.schedule) == (2500, 512, "cosine")
    assert (vit.optim.name, vit.optim.lr, vit.optim.momentum, vit.optim.wd) == ("sgd", 0.01, 0.9, 0.0)
    assert (vit.optim.clip_norm, vit.data.preprocess_train) == (1.0, "decode|resize(384)")
    assert trials.grid(vit) == [] and len(trials.finals(vit, None)) == 3
    light = config_lib.load("vtab:lightweight")
    assert light.optim.clip_norm is None and light.data.preprocess_eval == "decode|resize(224)"
    assert {(t.lr, t.steps) for t in trials.grid(light)} == {
        (0.1, 2500), (0.01, 2500), (0.1, 10_000), (0.01, 10_000),
    }  # fmt: skip
    augreg = config_lib.load("vtab:augreg,size=384,norm=unit")
    assert augreg.data.preprocess_eval == "decode|resize(384)|value_range(0, 1)"
    assert len(trials.grid(augreg)) == 8 and augreg.schedule == "cosine"
    linear = config_lib.load("vtab:linear")
    assert linear.vtab.method == "linear" and len(trials.finals(linear, None)) == 1
    for config in (vit, light, augreg, linear):
        trials.check(config)
    for wrong in ("vtab:bit", "vtab:size=big", "vtab:size=0", "vtab:norm=vgg"):
        with pytest.raises(UsageError):
            config_lib.load(wrong)


@pytest.mark.parametrize("protocol", ["vit", "lightweight", "augreg"])
def test_every_protocol_makes_a_job(protocol):
    config = config_lib.load(f"vtab:{protocol},norm=half,size=32")
    config.model.name = "mu/16"
    config.global_batch = 16
    run = trials.trial_config(config, TASKS["dtd"], SPLITS, "", (trials.grid(config) or
                              trials.finals(config, None))[0])  # fmt: skip
    job = job_lib.build(run, facts_of(run, 47), jax.devices()[:1])
    assert job.total_steps == run.total_steps and job.abstract_state.params["head"]["kernel"].shape[-1] == 47


def test_the_stairs_of_the_lightweight_protocol():
    config = config_lib.load("vtab:lightweight,norm=half,size=32")
    for lr, steps, falls in ((0.1, 2500, (750, 1500, 2250)), (0.01, 10_000, (3000, 6000, 9000))):
        run = trials.trial_config(config, TASKS["dtd"], SPLITS, "", Trial("select", lr, steps, 0))
        schedule, total = job_lib.schedule_of(run, facts_of(run, 47))
        assert total == steps
        for i, step in enumerate(falls):
            np.testing.assert_allclose(
                [schedule(step - 1), schedule(step)], [lr * 0.1**i, lr * 0.1 ** (i + 1)], rtol=1e-6
            )
    config.schedule_stairs = (0.3, 1.5)
    with pytest.raises(UsageError, match="schedule_stairs"):
        job_lib.schedule_of(config, facts_of(config, 47))


def test_selection_sees_t_and_v_and_the_final_runs_see_both_and_e():
    config = config_lib.load("vtab:augreg,norm=half")
    select, final = Trial("select", 0.03, 500, 0), Trial("final", 0.03, 500, 2)
    run = trials.trial_config(config, TASKS["kitti"], SPLITS, "", select)
    assert (run.data.train, run.data.val, run.data.test) == (
        "vtab:kitti@train[:800]", "vtab:kitti@validation[:200]", "",
    )  # fmt: skip
    assert (run.optim.lr, run.total_steps, run.seed, run.num_classes) == (0.03, 500, 0, 4)
    run = trials.trial_config(config, TASKS["kitti"], SPLITS, "/data", final)
    assert (run.data.train, run.data.val, run.data.test) == (
        "vtab:kitti:/data@train[:800]+validation[:200]", "", "vtab:kitti:/data@test",
    )  # fmt: skip
    assert run.seed == 2 and run.sweep.lr == () and run.vtab.seeds == 3
    assert config.total_steps == 2500 and config.sweep.steps == (500, 2500)
    assert (select.name, final.name) == ("select-lr=0.03,steps=500", "final-seed=2")


def test_the_best_is_chosen_and_of_equals_the_smaller():
    grid = [Trial("select", lr, steps, 0) for steps in (500, 2500) for lr in (0.1, 0.01)]
    names = [trial.name for trial in grid]
    assert trials.best(grid, dict(zip(names, (0.2, 0.3, 0.5, 0.4), strict=True))) == grid[2]
    assert trials.best(grid, dict(zip(names, (0.5, 0.5, 0.5, 0.5), strict=True))) == grid[1]
    assert trials.best(grid, dict(zip(names, (None, None, 0.0, None), strict=True))) == grid[2]
    assert trials.best(grid, dict.fromkeys(names)) is None
    config = config_lib.load("vtab")
    config.vtab.seeds, config.seed = 2, 5
    assert trials.finals(config, grid[0]) == [Trial("final", 0.1, 500, 5), Trial("final", 0.1, 500, 6)]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"vtab.method": "knn"}, "vtab.method is 'knn'"),
        ({"vtab.method": "linear"}, "vtab.seeds is 3 for a linear probe"),
        ({"data.train": "digits"}, "data.train is 'digits'"),
        ({"resume": "runs/x"}, "vtab with resume"),
        ({"sweep.lr": (0.1, -1)}, "sweep.lr holds -1"),
    ],
)
def test_configs_that_make_no_table(keys, words):
    config = config_lib.load("vtab")
    config.update_from_flattened_dict(keys)
    with pytest.raises(UsageError, match=words):
        trials.check(config)
