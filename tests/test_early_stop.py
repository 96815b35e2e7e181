"""When early stopping ends a run, also one that was interrupted, and what is refused."""

import json
import math

import pytest

from tests.tiny_job import tiny_config
from vit_jax import early_stop
from vit_jax.early_stop import EarlyStop, open_early_stop
from vit_jax.errors import UsageError

ACCURACY, LOSS = "eval/val/accuracy", "eval/val/loss"


def stops_at(values, metric=ACCURACY, mode="", patience=2, before=None):
    """Step and reason of the first stop; values by evaluation at steps 10, 20, ..."""
    stop = EarlyStop(metric, mode=mode, patience=patience, before=before or {})
    first = 10 + max(before, default=0) if before else 10
    for i, value in enumerate(values):
        if reason := stop.reason(first + 10 * i, {metric: value, "eval/test/accuracy": 1.0}):
            return first + 10 * i, reason
    return None


def test_it_stops_after_so_many_evaluations_without_a_better_one():
    assert stops_at([0.1, 0.2, 0.3, 0.4]) is None
    assert stops_at([0.1, 0.3, 0.3, 0.2, 0.9]) == (
        40,
        f"{ACCURACY} no better in 2 evaluations, best at step 20: 0.3",
    )
    assert stops_at([0.1, 0.3, 0.2, 0.31, 0.3, 0.31])[0] == 60
    assert stops_at([0.5, 0.4], patience=1)[0] == 20
    assert stops_at([0.5, 0.4, 0.4, 0.4, 0.4], patience=5) is None


def test_a_loss_is_to_fall_unless_the_mode_says_otherwise():
    assert stops_at([3.0, 2.0, 1.0], LOSS) is None
    assert stops_at([3.0, 2.0, 2.0, 2.5], LOSS)[0] == 40
    assert stops_at([3.0, 2.0, 1.0], LOSS, mode="max")[0] == 30
    assert stops_at([0.3, 0.2, 0.1], mode="min") is None


def test_what_is_not_finite_is_never_better():
    nan, inf = math.nan, math.inf
    assert stops_at([nan, inf]) == (20, f"{ACCURACY} no better in 2 evaluations, never finite")
    assert stops_at([0.1, nan, 0.2, nan, inf])[0] == 50


def test_other_evaluations_do_not_count():
    stop = EarlyStop(ACCURACY, mode="", patience=1, before={10: 0.5})
    assert stop.reason(20, {"eval/features/5shot/accuracy": 0.1}) == ""
    assert stop.reason(20, {ACCURACY: 0.5})


@pytest.mark.parametrize("metric", [ACCURACY, LOSS])
def test_a_run_that_starts_again_anywhere_stops_where_the_unbroken_one_does(metric, tmp_path):
    values = [0.4, 0.1, 0.1 + 2**-50, math.nan, 0.4000001, 0.3, 0.2, 0.4000001, 0.1]
    whole = stops_at(values, metric, patience=3)
    config = tiny_config(early_stop__metric=metric, early_stop__patience=3)
    for start in range(0, whole[0] + 1, 5):
        # As left by a run that got further, and by one before it with other values and another length.
        lines = [{"step": 10 * i, metric: 0.9} for i in (1, 2)] + [{"step": 7, metric: 9.0}]
        lines += [{"step": 10 * (i + 1), metric: v if v == v else None} for i, v in enumerate(values)]
        lines.insert(3, {"step": 3, "train/loss": 1.0})
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        stop = open_early_stop(config, 10, tmp_path, start)
        steps = [step for step in range(start, 100) if step > 0 and step % 10 == 0]
        found = next(((s, r) for s in steps if (r := stop.reason(s, {metric: values[s // 10 - 1]}))), None)
        assert found == whole, start


def test_off_by_default_and_best_follows_its_metric():
    config = tiny_config()
    assert open_early_stop(config, None, None, 0) is None
    early_stop.check(config, None, ())
    assert early_stop.best_metric(config) == ("", 1)
    assert early_stop.best_metric(tiny_config(early_stop__metric=LOSS)) == (LOSS, -1)
    both = tiny_config(early_stop__metric=LOSS, checkpoint__best_metric=ACCURACY)
    assert early_stop.best_metric(both) == (ACCURACY, 1)


@pytest.mark.parametrize(
    ("keys", "every", "says"),
    [
        ({"metric": "eval/val/acc"}, 10, "early_stop.metric 'eval/val/acc' isn't evaluated"),
        ({"metric": "eval/val_ema/accuracy"}, 10, "isn't evaluated"),
        ({"metric": ACCURACY, "mode": "up"}, 10, "early_stop.mode is 'up'"),
        ({"metric": ACCURACY}, None, "without periodic evaluations"),
    ],
)
def test_what_does_not_go_together_is_refused(keys, every, says):
    config = tiny_config(**{f"early_stop__{key}": value for key, value in keys.items()})
    with pytest.raises(UsageError, match=says.replace(".", r"\.")):
        early_stop.check(config, every, ("val", "test"))
