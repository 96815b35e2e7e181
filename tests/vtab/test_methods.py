"""Both methods for real, on the small copies of all 19 data sets and a tiny model."""

import json

import jax
import numpy as np
import pytest
from etils import epath
from sklearn.linear_model import LogisticRegression

import vit_jax
from tests import saved_run
from vit_jax import config as config_lib
from vit_jax import loop, train
from vit_jax.data.preprocess import parse
from vit_jax.data.sources import open_source
from vit_jax.data.vtab_tasks import TASKS
from vit_jax.errors import UsageError
from vit_jax.vtab1k import linear, plan, runner
from vit_jax.vtab1k.check import check
from vit_jax.vtab1k.results import Store, summarize


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A run with random parameters: 8 x 8 images, ten classes."""
    path = tmp_path_factory.mktemp("runs") / "digits"
    saved_run.save(path)
    return str(path)


@pytest.fixture
def command(small_tasks, weights, tmp_path):
    """A function (protocol, tasks, config keys) -> (the workdir's results, what failed)."""

    def run(protocol, names, **keys):
        config = config_lib.load(f"vtab:{protocol},size=8")
        config.update_from_flattened_dict({"global_batch": 8, "mesh.replica": 1, "mesh.fsdp": 8} | keys)
        read = plan.settle(config, weights, None)
        checks = [check(small_tasks[name], "") for name in names]
        resolved = plan.preflight(config, read, checks[0].task)
        made = plan.Plan(
            config, epath.Path(tmp_path / "vtab"), "", read, lambda *a: train.train(*a, ["test"])
        )
        prober = linear.Prober(made, resolved) if protocol == "linear" else None
        run_task = prober.run_task if prober else runner.finetuner(made)
        failed = {}
        runner.run(made, checks, run_task, failed=failed, on_progress=lambda: None)
        return Store(made.workdir), failed

    run.workdir = tmp_path / "vtab"
    return run


def test_a_linear_probe_of_all_nineteen(command, small_tasks, weights):
    store, failed = command("linear", TASKS, **{"linear.l2": (1e-2, 1e-1)})
    assert not failed
    results = {name: store.read(name, "final-seed=0") for name in TASKS}
    for name, task in small_tasks.items():
        result = results[name]
        assert (
            result["count"] == task.test_count and result["accuracy"] == result["correct"] / result["count"]
        )
        assert (result["train_examples"], result["normalization"]) == (20, "value_range(-1, 1)")
        assert "lr" not in result and f"l2={result['l2']:g}" in result["chosen_from"]
    summary = summarize({name: result["accuracy"] for name, result in results.items()})
    assert summary["missing"] == [] and summary["mean"] > 0.2  # brightness tells the label
    assert not list((command.workdir / "features").rglob("*.npz"))

    # One of them anew: features by the model itself, the regression by scikit-learn.
    task = small_tasks["eurosat"]
    rows, labels = _features(weights, f"vtab:eurosat@{task.tv}")
    tests, wanted = _features(weights, f"vtab:eurosat@{task.e}")
    mean, scale = rows.mean(0), rows.std(0) + 1e-5
    peer = LogisticRegression(C=1 / (results["eurosat"]["l2"] * 20), max_iter=10_000)
    peer.fit((rows - mean) / scale, labels)
    assert peer.score((tests - mean) / scale, wanted) == results["eurosat"]["accuracy"]


def _features(weights, spec):
    model, params = vit_jax.load(weights, num_classes=0)
    source, program = open_source(spec, default_split="train"), parse("decode|resize(8)")
    images = np.stack([program.host(source[i].image, None) for i in range(len(source))])
    rows, _ = model.apply({"params": params}, images.astype(np.float32) / 127.5 - 1, train=False)
    return np.asarray(rows, np.float64), source.labels()


def test_features_that_are_through_are_kept_when_told_to_stop(command, monkeypatch):
    calls = []

    def poll():
        calls.append(1)
        if len(calls) == 6:  # the task, T, V, then E's second batch
            raise loop.Preempted

    monkeypatch.setattr(loop, "poll", poll)
    monkeypatch.setattr(runner, "poll", poll)
    store, _ = command("linear", ["kitti"])
    assert store.read("kitti", "final-seed=0") is None
    kept = list((command.workdir / "features" / "kitti").glob("*.npz"))
    assert 1 <= len(kept) <= 2
    store, failed = command("linear", ["kitti"], **{"vtab.keep_features": True})
    assert not failed and store.read("kitti", "final-seed=0")["count"] == 12
    assert set(kept) < set((command.workdir / "features" / "kitti").glob("*.npz"))


def test_features_that_are_no_numbers_fail_their_task_alone(command, monkeypatch):
    real = linear.Extractor.__call__

    def broken(self, params, source, num_classes):
        if "dtd" in source.spec:
            params = jax.tree.map(lambda x: x * np.nan, params)
        return real(self, params, source, num_classes)

    monkeypatch.setattr(linear.Extractor, "__call__", broken)
    store, failed = command("linear", ["cifar100", "dtd", "kitti"])
    assert list(failed) == ["dtd"] and "aren't finite" in failed["dtd"] and "dtd" in failed["dtd"]
    assert all(store.read(name, "final-seed=0") for name in ("cifar100", "kitti"))


FEW_STEPS = {"total_steps": 4, "vtab.seeds": 1}


@pytest.mark.slow
def test_a_task_is_fine_tuned_after_a_choice_on_v(command, small_tasks):
    grid = {"sweep.lr": (1e-6, 0.1), "sweep.steps": (2, 20), "vtab.seeds": 3}
    store, failed = command("vit", ["clevr_count"], **FEW_STEPS | grid)
    assert not failed
    names = [f"select-lr={lr},steps={steps}" for steps in (2, 20) for lr in ("1e-06", "0.1")]
    chosen = {name: store.read("clevr_count", name) for name in names}
    assert all(result["count"] == 4 for result in chosen.values())
    best = max(result["accuracy"] for result in chosen.values())
    finals = [store.read("clevr_count", f"final-seed={seed}") for seed in range(3)]
    setting = {(result["lr"], result["total_steps"]) for result in finals}
    assert len(setting) == 1 and setting <= {
        (result["lr"], result["total_steps"]) for result in chosen.values() if result["accuracy"] == best
    }
    config = json.loads((command.workdir / "runs/clevr_count/final-seed=2/config.json").read_text())
    assert (config["seed"], config["num_classes"]) == (2, 8)
    assert config["data"]["train"] == f"vtab:clevr_count@{small_tasks['clevr_count'].tv}"
    classes = (command.workdir / "runs/clevr_count/final-seed=2/classes.txt").read_text().splitlines()
    assert classes == [f"{n} objects" for n in range(3, 11)]
    assert [result["count"] for result in finals] == [10] * 3


@pytest.mark.slow
def test_a_rate_that_is_far_too_large_is_found_to_diverge(command):
    store, failed = command(
        "vit", ["kitti"], **FEW_STEPS | {"sweep.lr": (1e-3, 1e30), "total_steps": 30, "nonfinite_limit": 3,
                                         "optim.clip_norm": None},
    )  # fmt: skip
    assert not failed
    result = store.read("kitti", "select-lr=1e+30")
    assert result["accuracy"] is None and "not finite" in result["diverged"]
    assert store.read("kitti", "final-seed=0")["lr"] == 1e-3


@pytest.mark.slow
def test_all_nineteen_are_fine_tuned(command, small_tasks):
    store, failed = command("vit", TASKS, **FEW_STEPS)
    assert not failed
    for name, task in small_tasks.items():
        result = store.read(name, "final-seed=0")
        assert (result["count"], result["train_examples"]) == (task.test_count, 20)
        config = json.loads((command.workdir / "runs" / name / "final-seed=0" / "config.json").read_text())
        assert config["num_classes"] == task.num_classes


def test_the_normalisation_is_that_of_the_weights_unless_the_config_says_another(weights):
    for argument, wanted in (("vit", "value_range(-1, 1)"), ("vit,norm=unit", "value_range(0, 1)"),
                             ("linear,norm=imagenet", "normalize()")):  # fmt: skip
        config = config_lib.load(f"vtab:{argument},size=8" if "," not in argument else f"vtab:{argument}")
        plan.settle(config, weights, None)
        assert plan.normalization(config) == wanted
        assert config.data.preprocess_train == config.data.preprocess_eval
        assert config.init == weights


@pytest.mark.parametrize(
    ("argument", "keys", "words"),
    [
        ("vit,size=9", {}, "9"),
        ("vit,size=8", {"init": "other.npz"}, "init is 'other.npz'"),
        ("vit,size=8", {"optim.name": "lion"}, "lion"),
        ("vit,size=8", {"data.preprocess_eval": "decode"}, "no fixed size"),
        ("vit,size=8", {"data.preprocess_eval": "decode|inception_crop(8)"}, "random"),
    ],
)
def test_what_would_refuse_every_run_is_refused_before_any(weights, argument, keys, words):
    config = config_lib.load(f"vtab:{argument}")
    config.update_from_flattened_dict(keys)
    with pytest.raises(UsageError, match=words):
        plan.preflight(config, plan.settle(config, weights, None), TASKS["dtd"])
