"""Strict JSON lines that survive a kill, in a file or in parts."""

import json
import math

import pytest
from etils import epath

from vit_jax import records
from vit_jax.records import JsonLines, JsonParts, read_records


def test_lines_are_strict_json_and_non_finite_is_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonLines(path)
    writer.append({"step": 3, "train/loss": math.nan, "train/lr": 0.1, "train/mfu": None})
    writer.append({"step": 4, "ids": [1, 2]})
    writer.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 3, "train/loss": None, "train/lr": 0.1, "train/mfu": None},
        {"step": 4, "ids": [1, 2]},
    ]


def test_half_a_line_left_by_a_kill_is_dropped_and_whole_ones_stay(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = "".join(json.dumps({"step": i, "x": "y" * 3000}) + "\n" for i in range(4))
    for tail in ("", '{"step": 9, "trai', "z" * 9000):
        path.write_text(whole + tail)
        writer = JsonLines(path)
        writer.append({"step": 5, "a": 1.0})
        writer.close()
        assert path.read_text() == whole + '{"step": 5, "a": 1.0}\n'
    path.write_text("only half a li")
    JsonLines(path).close()
    assert path.read_text() == ""


def test_parts_are_one_file_over_several_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_PART_BYTES", 60)
    folder = epath.Path(tmp_path) / "metrics"
    folder.mkdir()
    for start in range(2):
        parts = JsonParts(folder)
        for i in range(5):
            parts.append({"step": 5 * start + i, "x": math.inf})
            if i % 2:
                parts.flush()
        if start == 1:
            parts.close()
    # The first start was killed after its second flush: its fifth line is lost.
    assert [line["step"] for line in read_records(tmp_path, "metrics")] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert sorted(path.name for path in folder.iterdir())[:2] == [
        "part-0000-000000.jsonl",
        "part-0001-000000.jsonl",
    ]


def test_storage_that_fails_for_a_while_loses_no_line(tmp_path, caplog):
    folder = epath.Path(tmp_path) / "metrics"
    parts = JsonParts(folder)  # not there yet, as if the store were gone
    parts.append({"step": 1})
    parts.flush()
    assert "can't write to" in caplog.text
    with pytest.raises(OSError):
        parts.close()
    folder.mkdir()
    parts.append({"step": 2})
    parts.close()
    assert [line["step"] for line in read_records(tmp_path, "metrics")] == [1, 2]
