"""The order of the runs, what is never repeated, what fails; and the command on a study of two steps."""

import json

import pytest
from etils import epath

from tests.studies.synthetic import CURVE, ROWS, line, write_run
from vit_jax import study
from vit_jax.errors import RunFailed, UsageError
from vit_jax.loop import Outcome
from vit_jax.studies import runner, tiny
from vit_jax.studies.plan import Experiment, Run, cells, config_of


def todo_of(experiment, root):
    found = [(cell, config_of(cell, folder="x", workdir=root)) for cell in cells([experiment])]
    return found


def test_first_seeds_come_first():
    names = [cell.name for cell in cells([CURVE, ROWS])]
    assert names[:4] == ["curve/s-10/0", "curve/s-90/0", "curve/l-10/0", "curve/l-90/0"]
    assert names[4:7] == ["rows/first/0", "rows/a/0", "rows/b/0"] and names[7] == "curve/s-10/1"
    assert names[-3:] == ["rows/first/2", "rows/a/2", "rows/b/2"] and len(names) == 2 * 4 + 3 * 3
    assert len(list(cells([CURVE, ROWS], seeds=1))) == 7


def test_every_run_of_the_study_has_a_config_and_the_length_of_its_experiment():
    root = epath.Path("runs/tiny")
    found = list(cells(tiny.STUDY))
    assert len({cell.name for cell in found}) == len(found)
    for cell in found:
        config = config_of(cell, folder="photos", workdir=root)
        assert config.seed == cell.seed and "folder:photos@" in config.data.train
        if not cell.run.own_length:
            assert (config.total_steps, config.total_epochs) == (cell.experiment.steps, None)
            assert config.warmup_steps == cell.experiment.steps // 10
        short = config_of(cell, folder="photos", workdir=root, steps=20)
        assert (short.total_steps, short.total_epochs, short.warmup_steps) == (20, None, 2)
        evaluated = [name for name in ("val", "test") if config.data[name]]
        if cell.run.shown:
            assert cell.experiment.metric.split("/")[1] in evaluated
            assert not cell.experiment.chosen_by or cell.experiment.chosen_by.split("/")[1] in evaluated


def test_what_is_through_is_not_trained_again_and_what_fails_is_named(tmp_path):
    root, trained, failed = epath.Path(tmp_path), [], {}
    write_run(tmp_path / "rows/a/0", [line(4, 0.5)])
    write_run(tmp_path / "rows/a/1", [line(4, 0.5)], seed=1, steps=3)  # of another length
    write_run(tmp_path / "rows/b/0", [line(4, 0.5)], how="preempted")

    def train(config, path):
        trained.append("/".join(path.parts[-3:]))
        if trained[-1] == "rows/b/1":
            raise OSError("disk full")
        if trained[-1] == "rows/a/1":
            raise UsageError("holds another run", "choose another")
        return Outcome(0, 4)

    assert not runner.run(todo_of(ROWS, root), root, train, failed)
    assert trained == [
        "rows/first/0", "rows/b/0", "rows/first/1", "rows/a/1", "rows/b/1", "rows/first/2", "rows/a/2", "rows/b/2",
    ]  # fmt: skip
    assert set(failed) == {"rows/a/1", "rows/b/1"}
    assert "disk full" in failed["rows/b/1"] and "holds another run" in failed["rows/a/1"]


def test_a_refusal_of_the_very_first_run_and_a_stop_end_it(tmp_path):
    root = epath.Path(tmp_path)

    def refuse(config, path):
        raise UsageError("no such folder", "check the path")

    with pytest.raises(UsageError):
        runner.run(todo_of(ROWS, root), root, refuse, {})
    seen = []

    def stop(config, path):
        seen.append(path)
        return Outcome(0, 2, preempted=True)

    assert runner.run(todo_of(ROWS, root), root, stop, {}) and len(seen) == 1


@pytest.fixture
def here(monkeypatch):
    """The command within this process, with a study of one setting on the digits."""
    digits = Experiment("digits", "Digits", "None.", (Run("small", "quickstart"),), seeds=2, steps=400)
    monkeypatch.setattr(tiny, "STUDY", (digits,))
    monkeypatch.setattr(study, "config_of", _on_digits)
    monkeypatch.setattr(study.train, "use_compile_cache", lambda folder: None)
    monkeypatch.setattr(study.distributed, "initialize", lambda **seconds: None)
    monkeypatch.setattr(study.distributed, "shutdown", lambda: None)


def _on_digits(cell, **how):
    config = config_of(cell, **how)
    config.model.depth = 1
    return config


def test_a_study_of_two_steps(here, tmp_path, capsys, monkeypatch):
    flags = [f"--workdir={tmp_path}", "--data=digits", "--steps=2"]
    assert study.main([*flags, "--list"]) == 0
    assert capsys.readouterr().out == "to do\tdigits/small/0\nto do\tdigits/small/1\n"
    assert study.main(flags) == 0
    found = json.loads((tmp_path / "results.json").read_text())["digits"]["runs"]["small"]
    assert sorted(found["values"]) == ["0", "1"] and 0 <= found["mean"] <= 1
    for seed in (0, 1):
        lines = [
            json.loads(one)
            for one in (tmp_path / f"digits/small/{seed}/metrics.jsonl").read_text().splitlines()
        ]
        assert lines[-1]["step"] == 2
        assert {one["eval/test/accuracy"] for one in lines if "eval/test/accuracy" in one} == {
            found["values"][str(seed)]
        }
    assert (tmp_path / "figures/digits.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert study.main([*flags, "--list"]) == 0
    assert capsys.readouterr().out == "through\tdigits/small/0\nthrough\tdigits/small/1\n"
    assert study.main([f"--workdir={tmp_path}", "--report"]) == 0
    assert "| small | " in capsys.readouterr().out
    assert study.main(flags) == 0  # nothing is left to do
    with pytest.raises(UsageError, match="total_steps is 2 there, 3 here"):
        study.main([*flags, "--steps=3"])
    for path in (tmp_path / "digits/small").glob("*/run.json"):
        path.write_text(path.read_text().replace('"how": "done"', '"how": "failed (power)"'))

    def fail(config, path, command):
        raise OSError("disk full")

    monkeypatch.setattr(study.train, "train", fail)
    with pytest.raises(RunFailed, match="not through: digits/small/0, digits/small/1"):
        study.main(flags)
    assert json.loads((tmp_path / "results.json").read_text())["digits"]["runs"]["small"]["values"] == {}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "--workdir"),
        (["--workdir=x"], "--data"),
        (["--workdir=x", "--experiment=posmeb"], "unknown experiment"),
        (["--workdir=x", "--data=y", "--seeds=0"], "--seeds=0"),
        (["--workdir=does-not-exist", "--report"], "does not exist"),
        (["--workdir=x", "runs"], "unexpected"),
    ],
)
def test_refused(flags, says):
    with pytest.raises(UsageError, match=says):
        study.main(flags)
