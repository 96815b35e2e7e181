"""Masked patch prediction by the command: interrupted, evaluated, looked at, and fine-tuned from."""

import logging

import numpy as np
import pytest

import vit_jax
from tests.integration.command import assert_same_run, cut, metrics, state
from tests.integration.test_finetune import evaluate
from vit_jax.errors import UsageError

SETS = {"task": "masked_patch", "mixup_alpha": 0.0, "label_smoothing": 0.0, "ema_decay": 0.9}


@pytest.fixture(scope="module")
def pretrained(finished):
    return finished("masked_patch", SETS)


def test_a_broken_off_run_ends_like_an_unbroken_one(command, pretrained, tmp_path):
    folder = cut(pretrained, tmp_path / "run", 20)
    done = command.run(folder, SETS)
    assert done.code == 0, done.err
    assert "2 of an image's 4 patches are hidden, their mean_colour is predicted (512 outputs)" in done.err
    assert_same_run(folder, pretrained)
    last = metrics(pretrained)[30]
    assert (last["eval/test/count"], last["eval/test/answers"]) == (360, 720)
    assert last["eval/test/accuracy"] == last["eval/test/correct"] / 720
    assert last["eval/test/loss"] < np.log(512) - 1 and last["eval/test_ema/loss"] != last["eval/test/loss"]
    assert done.result.startswith("done step=30 eval/test/accuracy=")


def test_evaluate_asks_it_what_it_learned(pretrained):
    found, last = evaluate(f"--checkpoint={pretrained}"), metrics(pretrained)[30]
    assert found["eval/test/correct"] == last["eval/test/correct"]
    assert found["eval/test/loss"] == pytest.approx(last["eval/test/loss"], rel=1e-6)


def test_as_weights_it_is_an_encoder(pretrained, caplog):
    with caplog.at_level(logging.INFO, "vit_jax"):
        model, params = vit_jax.load(str(pretrained))
    assert "as weights it is an encoder, without mask token and prediction head" in caplog.text
    assert model.num_classes == 0 and not model.mask_token
    assert sorted(params) == ["cls_token", "encoder", "patch_embed", "posemb"]
    _, aux = model.apply({"params": params}, np.zeros((1, 8, 8, 3), np.float32))
    assert aux["pre_logits"].shape == (1, 16)
    with pytest.raises(UsageError, match=r"has no classes: it gives features .*fine-tune it first"):
        vit_jax.Predictor.from_checkpoint(pretrained)


def test_fine_tuning_starts_from_its_encoder(command, pretrained, tmp_path):
    sets = {"init": str(pretrained), "optim.lr": 0.0, "total_steps": 1, "warmup_steps": 0}
    done = command.run(tmp_path / "still", sets)
    assert done.code == 0, done.err
    assert "without mask token and prediction head" in done.err
    assert "replaced by zeros: there is none" in done.err
    left, right = state(tmp_path / "still"), state(pretrained)
    params = [name for name in left if name.startswith("params/")]
    for name in params:
        same = left[name].tobytes() == right[name].tobytes()
        assert same or name.startswith("params/head/"), name
    assert not left["params/head/kernel"].any() and left["params/head/kernel"].shape == (16, 10)
    assert "params/mask_token" in right and "params/mask_token" not in left and len(params) > 20


@pytest.mark.slow
def test_pretraining_starts_from_a_classifier_too(command, finished, tmp_path):
    sets = SETS | {"init": str(finished("plain")), "ema_decay": None, "total_steps": 3, "warmup_steps": 0}
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    assert "has no mask token: it begins with zeros" in done.err
    assert "replaced by zeros: 10 classes there, 512 here" in done.err
