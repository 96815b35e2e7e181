"""The vtab command: stopped and killed, shared by several commands, full disks, bad images, and what it refuses."""

import json
import signal
import subprocess
import sys

import pytest

from tests import saved_run
from tests.integration.command import ROOT, assert_same_state, environment, finish, state, wait_for
from tests.vtab.test_source import folders
from vit_jax.data.vtab_tasks import TASKS

THREE = ("dtd", "eurosat", "kitti")
SHORT = {"total_steps": 12, "global_batch": 8, "checkpoint.every_steps": 5, "vtab.seeds": 2}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A run with random parameters: 8 x 8 images."""
    path = tmp_path_factory.mktemp("runs") / "digits"
    saved_run.save(path)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders of all 19 tasks: four classes (or two), 16, 8 and 12 images."""
    root = tmp_path_factory.mktemp("data")
    for name, task in TASKS.items():
        folders(root, name, classes=("b", "a", "10", "2")[: task.num_classes])
    return root


@pytest.fixture
def command(checkpoint, data, shared):
    """Starts `vit_jax.vtab` on them; keys are config keys, None to leave one of SHORT out."""

    def start(workdir, *flags, config="vtab:vit,size=8", limit=None, **keys):
        keys = {k: v for k, v in (SHORT | keys).items() if v is not None}
        argv = [sys.executable, "-m", "vit_jax.vtab", f"--config={config}", f"--checkpoint={checkpoint}",
                f"--workdir={workdir}", f"--data-dir={data}", f"--config.compile_cache={shared / 'compiled'}",
                *(f"--config.{key}={value}" for key, value in keys.items()), *flags]  # fmt: skip
        if limit is not None:  # KiB in a file
            argv = ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "bash", *argv]
        return subprocess.Popen(
            argv, cwd=ROOT, env=environment(1), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def _results(workdir):
    """task/trial -> what was found, without what a clock measured."""
    found = {}
    for path in sorted((workdir / "results").rglob("*.json")):
        content = json.loads(path.read_text())
        del content["seconds_of_last_start"]
        found[f"{path.parent.name}/{path.stem}"] = content
    return found


def _summary(workdir):
    return json.loads((workdir / "summary.json").read_text())


@pytest.mark.slow
def test_all_nineteen_by_a_linear_probe(command, tmp_path):
    done = finish(command(tmp_path / "run", config="vtab:linear,size=8", **dict.fromkeys(SHORT)))
    assert done.code == 0, done.err
    summary, results = _summary(tmp_path / "run"), _results(tmp_path / "run")
    assert len(results) == 19 and summary["missing"] == []
    for name in TASKS:
        result = results[f"{name}/final-seed=0"]
        assert result["count"] == 3 * min(4, TASKS[name].num_classes)
        assert summary[name] == result["correct"] / result["count"]
    assert summary["mean"] == pytest.approx(sum(summary[name] for name in TASKS) / 19, abs=1e-12)
    assert "images normalised by value_range(-1, 1)" in done.out and "Mean of the 19 " in done.out
    assert "are normalised by value_range(-1, 1)" in done.err
    assert {p.name for p in (tmp_path / "run").iterdir() if p.is_file() and p.name[0] != "."} == {
        "vtab.json", "summary.json", "table.txt", "table.csv", "table.tex", "report.html",
    }  # fmt: skip
    again = finish(command(tmp_path / "run", config="vtab:linear,size=8", **dict.fromkeys(SHORT)))
    assert again.code == 0 and again.out == done.out
    assert "linear probe" in done.err and "linear probe" not in again.err

    other = finish(command(tmp_path / "run", config="vtab:linear,size=8,norm=unit", **dict.fromkeys(SHORT)))
    assert other.code == 2 and "holds another table: data.preprocess_eval is" in other.error
    assert other.error.endswith(
        "(choose another --workdir, or give the config and checkpoint it was started with)"
    )


@pytest.mark.slow
def test_killed_and_stopped_in_the_middle_it_ends_like_an_unbroken_one(command, tmp_path):
    grid = {"sweep.lr": "(0.001,0.1)", "vtab.keep_checkpoints": True, "total_steps": 60}
    flags = ("--task=dtd,kitti",)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = finish(command(whole, *flags, **grid))
    assert done.code == 0, done.err

    process = command(broken, *flags, **grid)
    wait_for(
        (broken / "runs/dtd/select-lr=0.1/checkpoints/5").exists, process, "a checkpoint of the second trial"
    )
    process.kill()
    finish(process)
    first = (broken / "results/dtd/select-lr=0.001.json").stat().st_mtime_ns
    process = command(broken, *flags, **grid)
    wait_for(
        (broken / "runs/kitti/final-seed=1/checkpoints/5").exists, process, "a checkpoint of the last trial"
    )
    process.send_signal(signal.SIGTERM)
    stopped = finish(process)
    assert stopped.code == 42, stopped.err
    assert "vtab kitti: 2 of 2 final runs" in stopped.err
    assert "vtab dtd: 1 of 2 settings" not in stopped.err
    assert stopped.out.splitlines()[-1] == "preempted: saved; the same command continues"
    assert "1 of 2 final runs are through" in (broken / "table.txt").read_text()
    done = finish(command(broken, *flags, **grid))
    assert done.code == 0, done.err
    assert "continuing from step" in done.err and "1 of 2 settings" not in done.err

    assert (broken / "results/dtd/select-lr=0.001.json").stat().st_mtime_ns == first
    assert _results(broken) == _results(whole) and _summary(broken) == _summary(whole)
    for trial in ("dtd/select-lr=0.1", "kitti/final-seed=1"):
        assert_same_state(state(broken / "runs" / trial), state(whole / "runs" / trial))


@pytest.mark.slow
def test_several_commands_share_a_workdir(command, tmp_path):
    run = tmp_path / "run"
    processes = [command(run, f"--task={names}") for names in ("dtd", "kitti", ",".join(THREE))]
    ended = [finish(process) for process in processes]
    assert [done.code for done in ended] == [0, 0, 0], ended
    assert set(_results(run)) == {f"{name}/final-seed={seed}" for name in THREE for seed in (0, 1)}
    assert not set(THREE) & set(_summary(run)["missing"])
    # Nothing was done twice: every run was started once.
    for path in (run / "runs").rglob("run.json"):
        assert len(json.loads(path.read_text())["starts"]) == 1, path
    alone = tmp_path / "alone"
    assert finish(command(alone, f"--task={','.join(THREE)}")).code == 0
    assert _results(alone) == _results(run)


@pytest.mark.slow
def test_a_full_disk_and_a_broken_image_take_nothing_from_the_others(command, data, tmp_path):
    run, image = tmp_path / "run", data / "eurosat" / "test" / "a" / "1.png"
    whole = image.read_bytes()
    image.write_bytes(whole[:40])
    try:
        done = finish(command(run, f"--task={','.join(THREE)}"))
    finally:
        image.write_bytes(whole)
    assert done.code == 1
    assert done.error == "error: not through: eurosat (the same command tries them again)"
    assert f"eurosat: can't read {image}" in done.err
    assert set(_summary(run)) >= {"dtd", "kitti"} and "eurosat" in _summary(run)["missing"]

    before = {name: found for name, found in _results(run).items() if not name.startswith("eurosat")}
    full = finish(
        command(run, f"--task={','.join(THREE)}", "--config.vtab.seeds=3", limit=8, **{"vtab.seeds": None})
    )
    assert full.code == 1 and "not through: dtd, eurosat, kitti" in full.error, full.err
    assert "File too large" in full.err or "can't be saved" in full.err, full.err
    kept = _results(run)
    assert {name: kept[name] for name in before} == before
    done = finish(command(run, f"--task={','.join(THREE)}"))
    assert done.code == 0, done.err
    assert set(_summary(run)) >= set(THREE)


@pytest.mark.slow
def test_refused_before_any_work(command, tmp_path):
    def ends(*flags, **keys):
        done = finish(command(tmp_path / "run", *flags, **keys))
        assert done.code == 2 and not (tmp_path / "run").exists(), done.err
        return done.error

    assert "unknown task 'kiti' (did you mean 'kitti'?" in ends("--task=kiti")
    assert "no such file or folder: 'none.npz'" in ends("--checkpoint=none.npz")
    assert "the data of none of the 1 tasks can be read (--check-data says how" in ends(
        "--task=dtd", f"--data-dir={tmp_path}"
    )
    assert "unknown config argument" in ends(config="vtab:vit,pixels=8")
    assert "data.train is 'digits'" in ends("--config.data.train=digits")
    missing = subprocess.run(
        [sys.executable, "-m", "vit_jax.vtab", "--config=vtab"], cwd=ROOT, env=environment(1),
        capture_output=True, text=True,
    )  # fmt: skip
    assert missing.returncode == 2 and "error: --checkpoint is missing" in missing.stderr
