"""What the command refuses before any work: code 2, one clear line, no traceback, nothing compiled."""

import json
import subprocess
import sys

import cv2
import numpy as np
import pytest

from tests.integration.command import ROOT, environment

# One process for all command lines: what is refused leaves nothing behind. Fails if anything is compiled.
DRIVER = """
import contextlib, io, json, sys, time
import jax
from vit_jax import cli, train

def compiled(*args, **kwargs):
    raise AssertionError("compiled")

jax.stages.Lowered.compile = compiled
for argv in json.load(sys.stdin):
    out, err, began = io.StringIO(), io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.run(train.main, argv)
        except SystemExit as e:
            code = e.code
    print(json.dumps([code, out.getvalue(), err.getvalue(), time.monotonic() - began]))
"""


def _png(path, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.zeros((*size, 3), np.uint8))


def _folders(root):
    """Data sets that don't fit: classes of test that train lacks, and an empty split."""
    for split, names in (("train", "ab"), ("test", "abc")):
        for name in names:
            _png(root / "foreign" / split / name / "0.png")
            _png(root / "mixed" / split / name / "0.png")
    (root / "foreign" / "void" / "a").mkdir(parents=True)


def _batch_cases(golden):
    cases = json.loads((golden / "cases" / "config_batch.json").read_text())
    for case in cases["invalid"]:
        assert case["devices"] == 8
        yield {"global_batch": case["global_batch"], "accum_steps": case.get("accum_steps", 1)}


def _unknown_cases(golden):
    """The cases' settings, in our keys."""
    ours = {
        "optim.wieght_decay=0.1": {"optim.wieght_decay": 0.1},
        "optimizer=admw": {"optim.name": "admw"},
        "model=ViT-Q/16": {"model.name": "ViT-Q/16"},
        "total_steps=0": {"total_steps": 0},
        "warmup_steps=-1": {"warmup_steps": -1},
    }
    cases = json.loads((golden / "cases" / "config_unknown.json").read_text())["cases"]
    assert [case["set"] for case in cases] == list(ours)
    return ours


@pytest.fixture(scope="module")
def results(tmp_path_factory, golden, command):
    """Name of a case -> code, out, err, seconds."""
    root = tmp_path_factory.mktemp("refused")
    _folders(root)
    (root / "file").write_text("no folder")
    (root / "weights.npz").write_bytes(b"PK")
    (root / "run").mkdir()
    folder = {"data.train": f"folder:{root}/foreign", "data.test": ""}
    cases = {
        **_unknown_cases(golden),
        **{f"batch {i}": sets for i, sets in enumerate(_batch_cases(golden))},
        "eval batch": {"eval.global_batch": 0},
        "wrong type": {"total_steps": "many"},
        "schedule": {"schedule": "cosin"},
        "loss": {"loss": "softmax"},
        "heads": {"model.width": 64, "model.num_heads": 5},
        "no heads": {"model.num_heads": 0},
        "no width": {"model.width": 0, "model.num_heads": 1},
        "no depth": {"model.depth": 0},
        "patch": {"model.patch_size": 3},
        "mesh": {"mesh.fsdp": 3},
        "missing folder": {"data.train": f"folder:{root}/nowhere"},
        "unknown split": folder | {"data.train": f"folder:{root}/foreign@trian"},
        "empty split": folder | {"data.train": f"folder:{root}/foreign@void"},
        "empty range": {"data.test": "digits@test[:0]"},
        "foreign class": folder | {"data.test": "test"},
        "too few classes": {"num_classes": 9},
        "unknown source": {"data.train": "digit"},
        "unknown op": {"data.preprocess_train": "decode|inception_corp(8)"},
        "two sizes": {"data.preprocess_train": "decode|resize(16)|value_range(-1, 1)"},
        "image size": {"model.image_size": 16},
        "best metric": {"checkpoint.best_metric": "eval/val/accuracy"},
        "two lengths": {"total_epochs": 3},
        "long warm-up": {"warmup_steps": 31},
        "init a file": {"init": f"{root}/weights.npz"},
        "init nowhere": {"init": f"{root}/nothing"},
        "init an empty run": {"init": f"{root}/run"},
        "resume nowhere": {"resume": f"{root}/nothing@30"},
    }
    argvs = {
        name: command.argv(root / f"workdir of {name.replace('/', '_')}", sets)
        for name, sets in cases.items()
    }
    argvs["workdir a file"] = command.argv(root / "file")
    argvs["workdir not writable"] = command.argv("/proc/nowhere")
    argvs["no workdir"] = ["--config=configs/quickstart.py"]
    argvs["no config"] = [f"--workdir={root}/x"]
    argvs["config file missing"] = [f"--workdir={root}/x", "--config=configs/quikstart.py"]
    argvs["unknown flag"] = [*command.argv(root / "x"), "--wrokdir=y"]
    argvs["debug"] = [*argvs["heads"], "--debug"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(list(argvs.values())),
        cwd=ROOT,
        env=environment(8),
        text=True,
        stdout=subprocess.PIPE,
        timeout=300,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(argvs, lines, strict=True))


EXPECTED = {
    "optim.wieght_decay=0.1": ["wieght_decay", "did you mean"],
    "optimizer=admw": ["'admw'", "known: adafactor, adam, sgd"],
    "model=ViT-Q/16": ["ViT-Q/16", "did you mean", "So400m"],
    "total_steps=0": ["total_steps"],
    "warmup_steps=-1": ["warmup_steps", "-1"],
    "batch 0": ["global_batch 10 not divisible by 8 data shards: 1.25 per device", "use 8 or 16"],
    "batch 1": ["global_batch 4 not divisible by 8 data shards: 0.5 per device"],
    "batch 2": ["global_batch is 0"],
    "batch 3": ["global_batch 24 not divisible by 8 data shards x 2 accum_steps: 1.5 per device"],
    "batch 4": ["accum_steps is 0"],
    "wrong type": ["total_steps"],
    "schedule": ["'cosin'", "did you mean 'cosine'?"],
    "loss": ["'softmax'", "softmax_xent"],
    "heads": ["64", "5", "heads"],
    "no heads": ["num_heads", "0"],
    "no width": ["width", "0"],
    "no depth": ["depth", "0"],
    "patch": ["height 8", "patch size 3"],
    "mesh": ["3", "8"],
    "missing folder": ["nowhere"],
    "unknown split": ["'trian'"],
    "empty split": ["void"],
    "empty range": ["empty split 'test[:0]'"],
    "foreign class": ["'c'"],
    "too few classes": ["num_classes is 9", "10 classes"],
    "unknown source": ["unknown kind 'digit'", "did you mean 'digits'?"],
    "unknown op": ["inception_corp", "did you mean 'inception_crop'"],
    "two sizes": ["16", "8"],
    "image size": ["model.image_size is 16x16", "gives 8x8"],
    "best metric": ["eval/val/accuracy", "eval/test/accuracy"],
    "two lengths": ["total_steps", "total_epochs"],
    "long warm-up": ["warmup", "31", "30"],
    "init a file": ["weights.npz", "no intact .npz file (2 bytes)"],
    "init nowhere": ["nothing", "no such file or folder"],
    "init an empty run": ["holds no .safetensors or .npz file"],
    "resume nowhere": ["nothing", "no such folder"],
    "workdir a file": ["is a file"],
    "workdir not writable": ["can't write to the workdir /proc/nowhere"],
    "no workdir": ["--workdir"],
    "no config": ["--config"],
    "config file missing": ["quikstart"],
    "unknown flag": ["unknown flag --wrokdir", "did you mean '--workdir'"],
}


@pytest.mark.parametrize("case", EXPECTED)
def test_refused_at_once_in_one_line(results, case):
    code, out, err, seconds = results[case]
    line = err.splitlines()[-1]
    assert code == 2, err
    assert line.startswith("error: ") and line.endswith(")")
    for words in EXPECTED[case]:
        assert words in line
    assert "Traceback" not in err and out == ""
    assert seconds < 15


def test_the_traceback_is_shown_on_demand(results):
    code, _, err, _ = results["debug"]
    assert code == 2
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1] == results["heads"][2].splitlines()[-1]


def test_the_code_reaches_the_shell_and_the_line_is_all_there_is(command, tmp_path):
    done = command.run(tmp_path / "run", {"optim.wieght_decay": 0.1})
    assert done.code == 2 and done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith("error: ") and "wieght_decay" in line
    assert not (tmp_path / "run").exists()
    assert done.seconds < 15


@pytest.mark.parametrize("spec", ["{run}@999", "{run}@best"])
def test_a_step_that_was_not_saved(command, finished, tmp_path, spec):
    done = command.run(tmp_path / "run", {"resume": spec.format(run=finished("plain"))})
    assert done.code == 2 and "Traceback" not in done.err
    assert done.error.startswith("error: no ")
    if "999" in spec:
        assert "no step '999'" in done.error and "steps: 10, 20, 30" in done.error


def test_a_folder_of_another_run(command, finished, golden, tmp_path):
    """The case: two steps of another config; refused with the folder, its steps and the keys."""
    scenarios = json.loads((golden / "cases" / "resume_scenarios.json").read_text())["scenarios"]
    assert any(case["id"] == "foreign-workdir" for case in scenarios)
    unbroken = finished("plain")
    before = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")}
    done = command.run(unbroken, {"model.depth": 2, "optim.lr": 0.5})
    assert done.code == 2 and "Traceback" not in done.err
    for words in (
        str(unbroken),
        "steps 10, 20, 30",
        "model.depth is 1 there, 2 here",
        "optim.lr is 0.003 there, 0.5 here",
    ):
        assert words in done.error
    after = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")}
    changed = {path.name for path in after if after[path] != before.get(path)}
    assert changed <= {unbroken.name}  # the probe came and went
    assert list(after) == list(before)
