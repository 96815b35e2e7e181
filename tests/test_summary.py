"""The end of a run's log."""

from vit_jax import summary


def test_the_best_is_the_first_of_equals_and_a_later_line_for_a_step_wins():
    lines = [
        {"step": 10, "train/loss": 2.0, "eval/test/accuracy": 0.9, "eval/val/accuracy": None},
        {"step": 20, "eval/test/accuracy": 0.7, "eval/test/loss": 0.1},
        {"step": 10, "eval/test/accuracy": 0.5},  # after a restart
        {"step": 30, "eval/test/accuracy": 0.7},
    ]
    assert summary.best_of(lines) == {"eval/test/accuracy": {"value": 0.7, "step": 20}}
    assert summary.best_of([]) == {}


def test_what_the_log_says():
    end = {
        "how": "preempted", "step": 30, "total_steps": 90, "steps": 20, "images": 320,
        "seconds": {"step": 1800.0, "total": 3600.0}, "goodput": 0.5, "img_per_sec": 64.25, "mfu": None,
        "best": {"eval/test/accuracy": {"value": 0.7, "step": 20}}, "checkpoint": "gs://b/run/checkpoints/30",
    }  # fmt: skip
    assert summary.lines(end) == [
        "preempted at step 30 of 90: 20 steps, 320 images in this start",
        "hours: step 0.5000  total 1.0000",
        "goodput 50.0 %; in training steps 64.2 img/s, MFU unknown",
        "best eval/test/accuracy 0.7 at step 20",
        "checkpoint: gs://b/run/checkpoints/30",
    ]
    assert summary.lines(end | {"mfu": 0.4123, "checkpoint": None})[2:] == [
        "goodput 50.0 %; in training steps 64.2 img/s, MFU 41.2 %",
        "best eval/test/accuracy 0.7 at step 20",
        "checkpoint: none yet",
    ]
