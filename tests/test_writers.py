"""TensorBoard events."""

import math

from tensorboardX.proto.event_pb2 import Event

from vit_jax.writers import TensorBoard, Writers


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
