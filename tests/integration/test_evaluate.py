"""The evaluate command: runs, bare weights, features and their cache, details, what fails, several processes."""

import json
import os
import shutil
import socket
import subprocess
import sys

import cv2
import jax
import numpy as np
import pytest

from tests import saved_run
from tests.collectives import own_lines
from tests.evaluators import everything
from tests.integration.command import ROOT, environment, finish, metrics
from vit_jax import sharding
from vit_jax.data.sources import open_source

FEWSHOT = "--config=configs/fewshot.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with random parameters, whose test split is evaluated in batches of 16."""
    path = tmp_path_factory.mktemp("runs") / "digits"
    saved_run.save(path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Digits of three classes as PNG files: eight of each to train on, twenty to test."""
    root = tmp_path_factory.mktemp("photos")
    source = open_source("digits@train", default_split="train")
    labels = source.labels()
    for digit, split, part in (
        (d, split, part)
        for d in (0, 1, 2)
        for split, part in (("train", slice(0, 8)), ("test", slice(8, 28)))
    ):
        folder = root / split / f"digit {digit}"
        folder.mkdir(parents=True)
        for i in np.flatnonzero(labels == digit)[part]:
            cv2.imwrite(str(folder / f"{i}.png"), source[i].image)
    return root


def start(*words, devices=1, env=None, module="vit_jax.evaluate", limit=None):
    """Starts the command; `limit` is the largest file that it may write, in KiB."""
    argv = [sys.executable, "-m", module, *map(str, words)]
    if limit is not None:
        argv = ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "bash", *argv]
    return subprocess.Popen(
        argv, cwd=ROOT, env=environment(devices) | (env or {}), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def evaluate(*words, **options):
    return finish(start(*words, **options))


def strict(text):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_own_data_with_cache_and_details(run, tmp_path):
    words = (f"--checkpoint={run}", FEWSHOT, f"--cache={tmp_path / 'cache'}", "--data=digits@test[:101]")
    done = evaluate(*words, f"--details={tmp_path / 'details.json'}")
    assert done.code == 0, done.err
    (line,) = done.out.splitlines()
    found = strict(line)
    assert (found["step"], found["eval/test/count"], found["eval/own/count"]) == (0, 101, 360)
    assert found["eval/test/accuracy"] == found["eval/test/correct"] / 101
    for k in (1, 5, 10, 25):
        assert 0 < found[f"eval/own/{k}shot/accuracy"] <= 1 and found[f"eval/own/{k}shot/sd"] >= 0
        assert found[f"eval/own/{k}shot/swept/l2"] > 0
    assert found["eval/own/linear/accuracy"] > 0.5 and found["eval/own/knn10/accuracy"] > 0.5
    details = strict((tmp_path / "details.json").read_text())
    assert np.sum(details["test/confusion"]) == 101
    assert np.trace(details["test/confusion"]) == found["eval/test/correct"]

    again = evaluate(*words)
    assert again.code == 0 and strict(again.out) == found
    assert again.err.count(f"examples from {tmp_path / 'cache'}") == 2


def test_without_a_config_a_run_is_evaluated_on_its_own_split_alone(run):
    done = evaluate(f"--checkpoint={run}@0")
    found = strict(done.out)
    assert done.code == 0 and found["eval/test/count"] == 360
    assert {key.split("/")[1] for key in found if key.startswith("eval/")} == {"test"}


def test_bare_weights_on_images_of_other_classes(run, photos, tmp_path):
    written = subprocess.run(
        [sys.executable, "-m", "vit_jax.convert", str(run), str(tmp_path / "w.npz"), "--to=big_vision"],
        cwd=ROOT, env=environment(1), capture_output=True, text=True,
    )  # fmt: skip
    assert written.returncode == 0, written.stderr
    weights = f"--checkpoint={tmp_path / 'w.npz'}"
    method = f"{FEWSHOT}:data=folder:{photos},methods=fewshot+knn"
    done = evaluate(weights, "--field=num_heads=4", method)
    assert done.code == 0, done.err
    found = strict(done.out)
    assert found["eval/" + photos.name + "/count"] == 60
    assert "10 shots left out, too few training images of classes 'digit 0 (8)'" in done.err
    assert (
        f"eval/{photos.name}/5shot/accuracy" in found and f"eval/{photos.name}/10shot/accuracy" not in found
    )
    other = evaluate(f"--checkpoint={run}", method)
    assert {k: v for k, v in strict(other.out).items() if k.startswith("eval")} == {
        k: v for k, v in found.items() if k.startswith("eval")
    }

    done = evaluate(weights, "--field=num_heads=4", "--data=digits@test")  # as many classes: taken in order
    assert done.code == 0 and "they are taken to be the data's" in done.err
    assert (
        strict(done.out)["eval/test/correct"]
        == strict(evaluate(f"--checkpoint={run}").out)["eval/test/correct"]
    )
    refused = evaluate(weights, "--field=num_heads=4", f"--data=folder:{photos}@test")
    assert (
        refused.code == 2 and "10 classes without names, the data has 3 (give --classes=FILE" in refused.error
    )
    nothing = evaluate(weights, "--field=num_heads=4")
    assert nothing.code == 2 and nothing.error.startswith("error: nothing to evaluate on")


def test_what_fails_is_named_and_the_rest_is_printed(run, photos, tmp_path):
    """A data set whose classes have too few images, beside the run's own test split; a full disk for the cache."""
    shutil.copytree(photos, tmp_path / "few")
    for path in sorted((tmp_path / "few" / "train" / "digit 1").iterdir())[1:]:
        path.unlink()
    data = f"(('few','folder:{tmp_path}/few','train','test'),)"
    done = evaluate(
        f"--checkpoint={run}", FEWSHOT, f"--config.features.data={data}", "--config.features.methods=('fewshot',)",
        "--config.fewshot.shots=(5,)", "--config.fewshot.l2_sweep=()", "--data=digits@test",
        f"--cache={tmp_path / 'cache'}", limit=1,
    )  # fmt: skip
    assert done.code == 1
    assert strict(done.out)["eval/test/count"] == 360
    assert "can't be written: File too large; going on without it" in done.err
    assert done.error.startswith(
        "error: few: few-shot: class 'digit 1' has 1 training images, fewer than any of"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--config.features.methods=('svm',)",), "known: fewshot, linear, knn"),
        (("--config.features.representation=logit",), "did you mean 'logits'"),
        (("--config.features.data=(('test','digits','train','test'),)",), "the name 'test' is taken"),
        (("--config.features.data=(('a','digits'),)",), "(name, SOURCE, train split, test split)"),
        (("--config.imagenet.v2=digits",), "ReaL and V2 need ImageNet's 1000"),
        (("--config.imagenet.a=digits",), "--classes=FILE"),
        (("--details=out.txt",), ".json or .npz"),
        (("--preprocess=decode|resize(16)",), "the model takes [8, 8, 3]"),
    ],
)
def test_what_does_not_go_together_is_refused_before_any_work(run, words, says, capfd, monkeypatch):
    from vit_jax import cli, distributed
    from vit_jax import evaluate as command

    monkeypatch.setattr(distributed, "initialize", lambda **_: None)  # this process has a backend already
    with pytest.raises(SystemExit) as end:
        cli.run(command.main, [f"--checkpoint={run}", FEWSHOT, *words])
    out, err = capfd.readouterr()
    assert (end.value.code, out) == (2, "")
    assert says in err.splitlines()[-1], err


def test_other_images_are_squashed_and_a_signal_ends_it(run, photos, tmp_path, capfd, monkeypatch):
    """The run takes its own images as they come, 8 x 8; these are 20 x 30."""
    from vit_jax import cli, distributed
    from vit_jax import evaluate as command

    large = tmp_path / "large"
    for path in photos.rglob("*.png"):
        target = large / path.relative_to(photos)
        target.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(target), cv2.resize(cv2.imread(str(path)), (30, 20)))
    monkeypatch.setattr(distributed, "initialize", lambda **_: None)
    monkeypatch.setattr(distributed, "shutdown", lambda: None)
    words = [
        f"--checkpoint={run}",
        f"{FEWSHOT}:data=folder:{large},methods=knn",
        f"--cache={tmp_path / 'cache'}",
    ]
    assert command.main(words) == 0
    assert strict(capfd.readouterr().out)["eval/large/count"] == 60

    def stop():
        raise command.Preempted

    monkeypatch.setattr(command, "poll", stop)
    with pytest.raises(SystemExit) as end:
        cli.run(command.main, [f"--checkpoint={run}", "--data=digits@test"])
    out, err = capfd.readouterr()
    assert (end.value.code, out) == (42, "")
    assert "stopped by a signal before the results were there: nothing is kept" in err


def test_in_training_features_have_an_interval_of_their_own(command, tmp_path):
    sets = {
        "total_steps": 10, "features.data": "(('own','','',''),)", "features.methods": "('fewshot','knn')",
        "fewshot.shots": "(5,)", "features.every_steps": 5, "eval.every_steps": None, "ema_decay": 0.9,
    }  # fmt: skip
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    steps = metrics(tmp_path / "run")
    for step in (5, 10):
        for name in ("own", "own_ema"):
            assert 0 < steps[step][f"eval/{name}/5shot/accuracy"] <= 1
            assert 0 < steps[step][f"eval/{name}/knn10/accuracy"] <= 1
    assert "eval/test/accuracy" in steps[10] and "eval/test/accuracy" not in steps[5]
    words = (f"--checkpoint={tmp_path / 'run'}", FEWSHOT + ":methods=fewshot", "--subtree=ema")
    again = strict(evaluate(*words, "--config.fewshot.shots=(5,)").out)
    assert again["eval/own/5shot/accuracy"] == steps[10]["eval/own_ema/5shot/accuracy"]


def _two(*words, module, devices=2):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    both = [
        start(*words, devices=devices, env=env | {"JAX_PROCESS_ID": str(i)}, module=module) for i in range(2)
    ]
    return [finish(process) for process in both]


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_every_evaluator_counts_the_same_on_any_mesh(tmp_path, devices):
    expected = everything.results(sharding.make_mesh(1, 1, 1, jax.devices()[:1]), 103, tmp_path / "one")
    mesh = sharding.make_mesh(-1, 1, 1, jax.devices()[:devices])
    found = everything.results(mesh, 16, tmp_path / "many")
    _same(found, expected)
    assert found["probe"] == found["probe from the cache"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_every_evaluator_counts_the_same_on_two_processes(tmp_path):
    expected = everything.results(sharding.make_mesh(1, 1, 1, jax.devices()[:1]), 103, tmp_path / "one")
    main, other = _two(16, tmp_path / "two", module="tests.evaluators.everything")
    assert (main.code, other.code) == (0, 0), main.err + other.err
    (line,) = own_lines(main.out)
    assert own_lines(other.out) == []
    _same(strict(line), expected)
    assert len(os.listdir(tmp_path / "two")) == 2  # one process writes


def _same(found, expected):
    """Counts and accuracies exactly; losses, calibration and average precision to float32's rounding of sums."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].keys() == values.keys()
        for key, value in values.items():
            tolerance = 1e-6 if key in ("loss", "ece") else 0
            assert found[name][key] == pytest.approx(value, abs=tolerance, rel=0), (name, key)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_command_on_two_processes(run, tmp_path):
    words = (f"--checkpoint={run}", FEWSHOT, "--data=digits@test", f"--cache={tmp_path / 'cache'}")
    alone = strict(own_lines(evaluate(*words[:-1], devices=4).out)[0])
    main, other = _two(*words, module="vit_jax.evaluate")
    assert (main.code, other.code) == (0, 0), main.err + other.err
    assert own_lines(other.out) == []
    found = strict(own_lines(main.out)[0])
    assert found.keys() == alone.keys()
    for key, value in alone.items():
        # The four devices hold the same rows in either case; float32 sums over processes may round otherwise.
        assert found[key] == pytest.approx(value, abs=1e-6), key
