"""Metric files: strict JSON lines that survive a kill, and TensorBoard events."""

import json
import math

from tensorboardX.proto.event_pb2 import Event

from vit_jax.writers import JsonLines, TensorBoard, Writers


def test_lines_are_strict_json_and_non_finite_is_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonLines(path)
    writer.write(3, {"train/loss": math.nan, "train/lr": 0.1, "train/mfu": None})
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
        writer.write(5, {"a": 1.0})
        writer.close()
        assert path.read_text() == whole + '{"step": 5, "a": 1.0}\n'
    path.write_text("only half a li")
    JsonLines(path).close()
    assert path.read_text() == ""


def test_tensorboard_leaves_out_what_is_not_finite(tmp_path):
    writer = Writers([TensorBoard(tmp_path / "tb")])
    writer.write(1, {"train/loss": 0.5, "train/mfu": None, "train/bad": math.inf})
    writer.close()
    (file,) = (tmp_path / "tb").iterdir()
    data, events, at = file.read_bytes(), [], 0
    while at < len(data):  # record: length, its checksum (4), payload, its checksum (4)
        size = int.from_bytes(data[at : at + 8], "little")
        events.append(Event.FromString(data[at + 12 : at + 12 + size]))
        at += 16 + size
    values = {v.tag: v.simple_value for e in events for v in e.summary.value}
    assert values == {"train/loss": 0.5}
