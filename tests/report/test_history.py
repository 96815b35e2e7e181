"""What is read of a run's logs: a later line for a step wins, and whatever is damaged is named."""

import json

import numpy as np
from etils import epath

from vit_jax.report.history import read_history


def write(folder, lines, record='{"starts": [{"time": "now"}]}', tail=""):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    if record is not None:
        (folder / "run.json").write_text(record)
    return read_history(epath.Path(folder))


def test_later_lines_win_and_null_is_a_gap(tmp_path):
    lines = [
        {"step": 10, "train/loss": 2.0},
        {"step": 20, "train/loss": 1.0},
        {"step": 10, "train/loss": 3.0},
    ]
    found = write(
        tmp_path, [*lines, {"step": 30, "train/loss": None}, {"step": 30, "eval/test/accuracy": 0.5}]
    )
    steps, values = found.series["train/loss"]
    assert steps.tolist() == [10, 20, 30]
    np.testing.assert_array_equal(values, [3, 1, np.nan])
    assert found.series["eval/test/accuracy"][1].tolist() == [0.5]
    assert found.starts == [{"time": "now"}] and found.damaged == []


def test_a_line_still_being_written_is_left_for_the_next_time(tmp_path):
    found = write(tmp_path, [{"step": 1, "train/loss": 1.0}], tail='{"step": 2, "tr')
    assert found.series["train/loss"][0].tolist() == [1] and found.damaged == []


def test_damage_is_named_and_what_comes_before_is_kept(tmp_path):
    found = write(tmp_path, [{"step": 1, "train/loss": 1.0}], record="{", tail="nonsense\n")
    assert found.series["train/loss"][0].tolist() == [1] and found.starts == []
    assert "damaged line" in found.damaged[0] and "run.json can't be read" in found.damaged[1]


def test_a_folder_without_logs(tmp_path):
    found = read_history(epath.Path(tmp_path))
    assert (found.series, found.starts, found.damaged) == ({}, [], ["there is no run.json"])
