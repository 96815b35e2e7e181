"""Fine-tuning by the command: freezing, layer-wise decay and the average of the parameters, in one run."""

import json
import subprocess
import sys

import pytest

from tests.integration.command import (
    ROOT,
    assert_same_run,
    assert_same_state,
    cut,
    environment,
    metrics,
    saved_steps,
    state,
)

SETS = {
    "ema_decay": 0.9,
    "optim.frozen": "patch_embed/.*|posemb",
    "optim.lr_mults": "(('head/.*', 10.0), ('encoder/norm/.*', 2))",
    "optim.layer_decay": 0.75,
    "optim.wd_mults": "(('cls_token', 0.5),)",
    "model.depth": 2,
    "model.scan": True,
    "checkpoint.best_metric": "eval/test_ema/accuracy",
}


def evaluate(*flags):
    """The results that the command prints."""
    argv = [sys.executable, "-m", "vit_jax.evaluate", *flags]
    done = subprocess.run(argv, cwd=ROOT, env=environment(1), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_broken_off_run_with_an_average_ends_like_an_unbroken_one(command, finished, tmp_path):
    unbroken = finished("finetune", SETS)
    folder = cut(unbroken, tmp_path / "run", 20)
    assert saved_steps(folder) == [10, 20]
    done = command.run(folder, SETS)
    assert done.code == 0, done.err
    assert "continuing from step 20" in done.err
    assert_same_run(folder, unbroken)
    assert "ema/head/kernel" in state(folder)
    assert json.loads((folder / "config.json").read_text())["optim"]["lr_mults"][0] == ["head/.*", 10.0]

    for line in (
        "frozen: ",
        "learning rate x 0.5625 0.75 by layer: encoder/blocks/*",
        "learning rate x 10: head/*",
        "weight decay x 0.5: 16 parameters in 1 arrays: cls_token",
        "average of the parameters: decay 0.9",
    ):
        assert line in done.err, line

    last = metrics(unbroken)[30]
    for metric in ("accuracy", "loss", "correct", "count"):
        assert f"eval/test_ema/{metric}" in last and f"eval/test/{metric}" in last
    assert last["eval/test_ema/loss"] != last["eval/test/loss"]
    assert last["eval/test_ema/count"] == 360
    assert saved_steps(unbroken) and (unbroken / "best").exists()

    averaged = evaluate(f"--checkpoint={unbroken}", "--subtree=ema")
    assert averaged["eval/test/correct"] == last["eval/test_ema/correct"]
    assert averaged["eval/test/loss"] == pytest.approx(last["eval/test_ema/loss"], abs=1e-6)


def test_init_starts_the_average_from_what_was_read(command, finished, tmp_path):
    sets = {
        "init": f"{finished('plain')}@10",
        "total_steps": 2,
        "warmup_steps": 0,
        "optim.lr": 0.0,
        "ema_decay": 0.9,
    }
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    left, right = state(tmp_path / "run"), state(finished("plain"), 10)
    for name in [name for name in right if name.startswith("params/")]:
        average = left["ema/" + name.removeprefix("params/")]
        assert average.tobytes() == right[name].tobytes() == left[name].tobytes(), name


@pytest.mark.slow
def test_the_average_on_eight_devices_resumes_on_one(command, finished, tmp_path):
    sets = SETS | {"mesh.fsdp": 4, "mesh.tensor": 2, "fsdp_min_size": 0}
    done = command.run(tmp_path / "run", sets | {"total_steps": 30}, devices=8)
    assert done.code == 0, done.err
    left, right = state(tmp_path / "run"), state(finished("finetune", SETS))
    assert left.keys() == right.keys()
    again = command.run(tmp_path / "run", SETS, devices=1)
    assert again.code == 0 and "already finished at step 30" in again.err
    assert_same_state(state(tmp_path / "run"), left)


def test_a_run_without_an_average_refuses_the_checkpoint_of_one_with_it(command, finished, tmp_path):
    done = command.run(tmp_path / "run", {"resume": f"{finished('plain')}@10", "ema_decay": 0.9})
    assert done.code == 2
    assert "ema/encoder/block_0/attn/key/bias: not in the checkpoint" in done.err
    assert "was saved by another model or optimizer" in done.error
