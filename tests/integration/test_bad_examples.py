"""Examples that can't be read, and updates that aren't finite, by the command."""

import pytest

from tests.integration.command import begun_steps, example_ids, metrics

FOLDER = {
    "data.test": "test",
    "global_batch": 8,
    "total_steps": 8,
    "warmup_steps": 1,
    "checkpoint.every_steps": None,
    "eval.every_steps": None,
    "log_every_steps": 1,
    "mixup_alpha": 0.0,  # with mixup an unreadable example takes its partner along
}


@pytest.mark.slow
def test_a_bad_image_stops_the_run_by_name(command, pictures, tmp_path):
    done = command.run(tmp_path / "run", FOLDER | {"data.train": f"folder:{pictures}"})
    assert done.code == 1
    assert "Traceback" not in done.err
    assert str(pictures / "train" / "dark" / "03.png") in done.error
    assert "failed (" in done.err and "checkpoint: none yet" in done.err
    assert "data.on_bad_image" in done.error


def test_a_bad_image_is_skipped_with_a_warning_and_counts_nowhere(command, pictures, tmp_path):
    sets = FOLDER | {"data.train": f"folder:{pictures}", "data.on_bad_image": "skip"}
    done = command.run(tmp_path / "run", sets)
    assert done.code == 0, done.err
    for split in ("train", "test"):
        named = [line for line in done.err.splitlines() if f"{pictures}/{split}/dark/03.png" in line]
        assert len(named) == 1 and "skipped unreadable image" in named[0]
    lines = metrics(tmp_path / "run")
    assert lines[8]["eval/test/count"] == 9
    bad = 3  # its place in the sorted folder
    for step, ids in example_ids(tmp_path / "run").items():
        assert lines[step + 1]["train/examples"] == 8 - ids.count(bad)
    assert sum(ids.count(bad) for ids in example_ids(tmp_path / "run").values()) >= 2


def test_too_many_updates_that_are_not_finite_end_the_run_and_name_their_examples(command, tmp_path):
    sets = {
        "optim.lr": 1e30,
        "warmup_steps": 0,
        "optim.clip_norm": 1e30,
        "optim.name": "sgd",
        "nonfinite_limit": 3,
        "log_every_steps": 1,
        "checkpoint.every_steps": None,
    }
    done = command.run(tmp_path / "run", sets)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "3 updates in a row were not finite" in done.error
    lines = metrics(tmp_path / "run")
    last = max(lines)
    assert lines[last]["train/skipped_in_a_row"] == 3.0
    assert lines[last]["train/loss"] is None  # not finite: null in strict JSON
    ids = example_ids(tmp_path / "run")[last - 1]
    assert f"examples of that step: {', '.join(map(str, ids))}" in done.err
    assert begun_steps(tmp_path / "run") <= last + 1  # one more was on its way
