"""All 19 tasks on small copies of their data: what is run in which order, what fails, what is never repeated."""

import json
import os
import statistics

import pytest
from etils import epath

from tests.vtab.test_source import folders
from vit_jax import config as config_lib
from vit_jax import workdir as workdir_lib
from vit_jax.data.sources import open_source
from vit_jax.data.vtab_tasks import TASKS
from vit_jax.errors import RunFailed, UsageError
from vit_jax.formats.weights import Weights
from vit_jax.loop import Outcome
from vit_jax.metrics import NonFinite
from vit_jax.vtab1k import folder, runner, writing
from vit_jax.vtab1k.check import check
from vit_jax.vtab1k.plan import Plan
from vit_jax.vtab1k.results import Store

GRID = [
    (0.001, 500),
    (0.003, 500),
    (0.01, 500),
    (0.03, 500),
    (0.001, 2500),
    (0.003, 2500),
    (0.01, 2500),
    (0.03, 2500),
]


class FakeTraining:
    """Stands in for the training command: opens the data that it is told to, and answers by a rule."""

    def __init__(self):
        self.seen = []
        self.answer = lambda config: (config.total_steps + 1000 * config.optim.lr + config.seed) / 10_000
        self.fail = {}

    def __call__(self, config, path):
        key = (path.parent.name, path.name)
        self.seen.append((*key, config.data.train, config.data.val, config.data.test))
        (path / "checkpoints" / "5").mkdir(parents=True)
        (path / "metrics.jsonl").write_text("{}\n")
        if key in self.fail:
            found = self.fail[key]
            if isinstance(found, Exception):
                raise found
            return found
        name = "val" if config.data.val else "test"
        count = len(open_source(config.data[name], default_split=name))
        assert len(open_source(config.data.train, default_split="train")) > 0
        keys = {"accuracy": self.answer(config), "correct": 1, "count": count, "loss": 1.0}
        return Outcome(0, 5, results={f"eval/{name}/{k}": v for k, v in keys.items()})


@pytest.fixture
def training():
    return FakeTraining()


@pytest.fixture
def table(small_tasks, training, tmp_path):
    """A function that runs the command's work and returns (how it ended, what failed)."""

    def run(protocol="augreg", names=tuple(TASKS), data_dir="", **keys):
        config = config_lib.load(f"vtab:{protocol},norm=half,size=16")
        config.update_from_flattened_dict(keys)
        config.init = "B_16.npz"
        weights = Weights("npz", "B_16.npz", "vit", {}, {}, "zoom", (), ())
        plan = Plan(config, epath.Path(tmp_path / "vtab"), data_dir, weights, training)
        folder.open_folder(plan.workdir, config, data_dir)
        checks = {name: check(task, data_dir) for name, task in small_tasks.items()}
        failed = {}
        ended = runner.run(
            plan, [checks[name] for name in names], runner.finetuner(plan), failed=failed,
            on_progress=lambda: writing.update(plan, protocol, checks, failed),
        )  # fmt: skip
        run.content = writing.update(plan, protocol, checks, failed)
        return ended, failed

    run.workdir = tmp_path / "vtab"
    run.summary = lambda: json.loads((run.workdir / "summary.json").read_text())
    return run


def test_all_nineteen_select_on_v_and_are_tested_on_e(table, training, small_tasks):
    ended, failed = table()
    assert not ended.preempted and not failed and not ended.elsewhere
    assert len(training.seen) == 19 * (8 + 3)
    for number, (name, task) in enumerate(small_tasks.items()):
        own = training.seen[11 * number : 11 * (number + 1)]
        assert {seen[0] for seen in own} == {name}
        spec = f"vtab:{name}@"
        for (lr, steps), seen in zip(GRID, own, strict=False):
            assert seen[1:] == (f"select-lr={lr:g},steps={steps}", spec + task.t, spec + task.v, "")
        for seed, seen in enumerate(own[8:]):
            assert seen[1:] == (f"final-seed={seed}", spec + task.tv, "", spec + task.e)
    # The rule makes the longest run with the largest rate the best: 2500 steps, 0.03; seeds add 0, 1, 2.
    runs = [(2500 + 30 + seed) / 10_000 for seed in range(3)]
    summary = table.summary()
    assert all(summary[name] == pytest.approx(statistics.median(runs), abs=1e-12) for name in TASKS)
    assert summary["mean"] == pytest.approx(runs[1]) and summary["missing"] == []
    result = json.loads((table.workdir / "results" / "kitti" / "final-seed=1.json").read_text())
    assert (result["lr"], result["total_steps"], result["seed"]) == (0.03, 2500, 1)
    assert result["chosen_from"]["select-lr=0.03,steps=2500"] == pytest.approx(0.253)
    assert result["count"] == small_tasks["kitti"].test_count and result["train_examples"] == 20
    assert (
        result["normalization"] == "value_range(-1, 1)"
        and "value_range(-1, 1)" in (table.workdir / "table.txt").read_text()
    )
    # Finished runs keep their logs and no checkpoint.
    left = list((table.workdir / "runs").rglob("checkpoints"))
    assert left == [] and len(list((table.workdir / "runs").rglob("metrics.jsonl"))) == 19 * 11


def test_the_same_command_again_runs_nothing(table, training):
    table(names=("dtd", "kitti"))
    before, files = len(training.seen), sorted((table.workdir / "results").rglob("*.json"))
    stamps = [path.stat().st_mtime_ns for path in files]
    ended, failed = table(names=("dtd", "kitti"))
    assert len(training.seen) == before and not failed and not ended.preempted
    assert [path.stat().st_mtime_ns for path in files] == stamps
    table(names=("dtd", "kitti"), **{"vtab.seeds": 5})  # two more runs each, beside those there are
    assert [seen[1] for seen in training.seen[before:]] == ["final-seed=3", "final-seed=4"] * 2


def test_what_is_through_is_not_read_again(table, training, monkeypatch):
    table("vit", names=("dtd", "kitti"))
    monkeypatch.setattr(runner, "notes", None)
    ended, failed = table("vit", names=("dtd", "kitti"))
    assert not failed and not ended.elsewhere


def test_one_setting_needs_no_selection(table, training):
    table("vit", names=("dtd",))
    assert [seen[1] for seen in training.seen] == ["final-seed=0", "final-seed=1", "final-seed=2"]


def test_what_fails_is_named_and_the_rest_goes_on(table, training):
    training.fail = {
        ("dtd", "final-seed=1"): OSError(28, "No space left on device"),
        ("pets", "select-lr=0.001,steps=500"): RunFailed("can't read x.png: truncated (mend it)\nmore"),
        ("svhn", "final-seed=0"): NonFinite("10 updates in a row were not finite"),
        ("kitti", "final-seed=2"): UsageError("vtab:kitti example 3 holds the label 7", "prepare it again"),
    }
    ended, failed = table()
    assert not ended.preempted and set(failed) == {"dtd", "pets", "svhn", "kitti"}
    assert "No space left" in failed["dtd"] and failed["pets"] == "can't read x.png: truncated (mend it)"
    assert "not finite" in failed["svhn"] and "holds the label 7" in failed["kitti"]
    assert table.summary()["missing"] == ["dtd", "pets", "svhn", "kitti"]
    assert table.summary()["natural"] is None and table.summary()["specialized"] is not None
    assert (
        "missing dtd: the disk is full: OSError: [Errno 28] No space left on device (free some space; "
        in (table.workdir / "table.txt").read_text()
    )
    done = {path.stem for path in (table.workdir / "results" / "dtd").iterdir()}
    assert len(done) == 9 and "final-seed=1" not in done
    kept = table.workdir / "runs" / "dtd" / "final-seed=1" / "checkpoints"
    assert kept.exists()  # what isn't through goes on from there
    training.fail, before = {}, len(training.seen)
    (kept / "5").rmdir()
    for path in (table.workdir / "runs").rglob("checkpoints"):
        for step in path.iterdir():
            step.rmdir()
        path.rmdir()
    _, failed = table()
    assert not failed and table.summary()["mean"] is not None
    again = [seen[:2] for seen in training.seen[before:]]
    assert [trial for name, trial in again if name == "dtd"] == ["final-seed=1", "final-seed=2"]
    assert len([name for name, _ in again if name == "pets"]) == 11
    assert [trial for name, trial in again if name == "kitti"] == ["final-seed=2"]


def test_a_setting_that_diverges_is_a_finding(table, training):
    training.fail = {("dtd", "select-lr=0.03,steps=2500"): NonFinite("10 updates in a row were not finite")}
    _, failed = table(names=("dtd",))
    assert not failed
    result = json.loads((table.workdir / "results" / "dtd" / "select-lr=0.03,steps=2500.json").read_text())
    assert result["accuracy"] is None and "not finite" in result["diverged"]
    final = json.loads((table.workdir / "results" / "dtd" / "final-seed=0.json").read_text())
    assert (final["lr"], final["chosen_from"]["select-lr=0.03,steps=2500"]) == (0.01, None)
    training.fail = {
        ("pets", f"select-lr={lr:g},steps={steps}"): NonFinite("not finite") for lr, steps in GRID
    }
    _, failed = table(names=("pets",))
    assert "every setting of the grid diverged" in failed["pets"]


def test_a_loss_that_is_no_number_is_no_score(table, training):
    nan = {"accuracy": 0.3, "correct": 1, "count": 12, "loss": float("nan")}
    training.fail = {
        ("dtd", "final-seed=0"): Outcome(0, 5, results={f"eval/test/{k}": v for k, v in nan.items()})
    }
    _, failed = table("vit", names=("dtd",))
    assert "the loss on test of dtd, final-seed=0 isn't finite" in failed["dtd"]
    assert table.summary()["missing"] == list(TASKS)


def test_told_to_stop_it_ends_there_and_goes_on_there(table, training):
    training.fail = {("eurosat", "final-seed=1"): Outcome(0, 3, preempted=True)}
    ended, failed = table()
    assert ended.preempted and not failed and not ended.elsewhere
    last = training.seen[-1][:2]
    assert last == ("eurosat", "final-seed=1")
    training.fail, before = {}, len(training.seen)
    (table.workdir / "runs" / "eurosat" / "final-seed=1" / "checkpoints" / "5").rmdir()
    (table.workdir / "runs" / "eurosat" / "final-seed=1" / "checkpoints").rmdir()
    ended, failed = table()
    assert not ended.preempted and not failed
    assert training.seen[before][:2] == last and len(training.seen) == 19 * 11 + 1


def test_a_task_that_another_command_is_at_is_left_to_it(table, training):
    place = epath.Path(table.workdir / "locks" / "dtd")
    place.mkdir(parents=True)
    theirs = workdir_lib.Lock(place)
    ended, failed = table(names=("caltech101", "dtd", "pets"))
    assert ended.elsewhere == ["dtd"] and not failed
    assert {seen[0] for seen in training.seen} == {"caltech101", "pets"}
    del theirs
    ended, _ = table(names=("caltech101", "dtd", "pets"))
    assert ended.elsewhere == [] and {seen[0] for seen in training.seen[22:]} == {"dtd"}


def test_a_task_without_data_is_left_out_and_said(table, training, prepared, monkeypatch):
    (prepared / "sun397").rename(prepared / "elsewhere")
    try:
        _, failed = table("vit")
    finally:
        (prepared / "elsewhere").rename(prepared / "sun397")
    assert list(failed) == ["sun397"] and len(training.seen) == 18 * 3
    summary = table.summary()
    assert summary["missing"] == ["sun397"] and summary["mean"] is None and summary["natural"] is None
    text = (table.workdir / "table.txt").read_text()
    assert "missing sun397: tfds:sun397/tfds:4.0.0 isn't prepared" in text
    assert "tfds build sun397/tfds:4.0.0 --file_format=array_record" in text


def test_absent_classes_and_other_counts_are_said_with_every_result(table, training, tmp_path, caplog):
    folders(tmp_path / "own", "kitti")
    for path in (tmp_path / "own" / "kitti" / "train" / "2", tmp_path / "own" / "kitti" / "val" / "2"):
        for image in path.iterdir():
            image.unlink()
        path.rmdir()
    table("vit", names=("kitti",), data_dir=str(tmp_path / "own"))
    result = json.loads((table.workdir / "results" / "kitti" / "final-seed=0.json").read_text())
    assert result["absent_classes"] == ["2"] and "val 6, not 200" in result["differences"]
    assert "kitti: 1 of 4 classes have no image among the 18 to train on: class '2'" in caplog.text
    assert "KITTI-Distance*" in (table.workdir / "table.txt").read_text()


def test_a_label_out_of_range_is_named_and_fails_its_task_alone(table, training, small_tasks, monkeypatch):
    from vit_jax.data import vtab_labels

    assert small_tasks["clevr_count"].rule is vtab_labels.clevr_count
    monkeypatch.setattr(vtab_labels, "CLEVR_FEWEST", -2)
    _, failed = table("vit", names=("clevr_count", "clevr_distance"))
    assert list(failed) == ["clevr_count"]
    assert "label 1" in failed["clevr_count"] and "clevr" in failed["clevr_count"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"optim.lr": 0.5}, "optim.lr is 0.01 there, 0.5 here"),
        ({"seed": 3}, "seed is 0 there, 3 here"),
    ],
)
def test_the_workdir_of_another_table_is_refused(table, keys, words):
    table("vit", names=("dtd",))
    with pytest.raises(UsageError, match=words):
        table("vit", names=("dtd",), **keys)
    with pytest.raises(UsageError, match="data_dir is '' there, '/other' here"):
        config = config_lib.load("vtab:vit,norm=half,size=16")
        config.init = "B_16.npz"
        folder.open_folder(epath.Path(table.workdir), config, "/other")


def test_a_workdir_of_something_else_is_refused(tmp_path):
    config = config_lib.load("vtab")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"holds something else: it has no vtab\.json"):
        folder.open_folder(epath.Path(tmp_path), config, "")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        folder.open_folder(epath.Path(tmp_path / "file"), config, "")
    if os.geteuid() != 0:  # root may write anywhere
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(UsageError, match="can't write"):
            folder.open_folder(epath.Path(tmp_path / "locked" / "x"), config, "")


def test_finished_results_survive_a_full_disk_under_the_tables(table, training, monkeypatch, caplog):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_whole", full)
    _, failed = table("vit", names=("dtd",))
    assert not failed and "can't be written: No space left on device" in caplog.text
    assert Store(epath.Path(table.workdir)).score("dtd", ["final-seed=0"]) is not None
