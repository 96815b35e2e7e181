"""A mixture with repeated images trains the same examples after a crash and on any number of processes."""

import numpy as np
import pytest

from tests.integration.command import assert_same_run, cut, finish, json_lines, metrics

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

MIXED = {
    "data.train": "",
    "data.mixture": "(('digits@train{:60%}', 0.7), ('digits@train{60%:}', 0.3))",
    "data.test": "digits@test",
    "data.repeats": 2,
}


def _examples(run):
    return {line["step"]: (line["ids"], line["sources"]) for line in json_lines(run / "examples.jsonl")}


def test_a_mixture_is_the_same_after_a_crash_and_on_two_processes(command, tmp_path):
    whole = tmp_path / "whole"
    assert (done := command.run(whole, MIXED, devices=4)).code == 0, done.err
    assert "digits@train{:60%} 862 images, 70 % of the draws, 1.167 passes in an epoch" in done.err
    ids, sources = np.concatenate(list(_examples(whole).values()), axis=1).tolist()
    assert len(ids) == 480 and 2 * abs(sources.count(0) - 0.7 * 480) <= 16
    assert set(sources) == {0, 1} and max(ids) < 862

    broken = cut(whole, tmp_path / "broken", 10)
    assert (done := command.run(broken, MIXED, devices=4)).code == 0, done.err
    assert "continuing from step 10 " in done.err
    assert_same_run(broken, whole)
    assert _examples(broken) == _examples(whole)

    two = tmp_path / "two"
    main, other = [finish(process) for process in command.start_group(two, MIXED)]
    assert (main.code, other.code) == (0, 0), main.err + other.err
    assert _examples(two) == _examples(whole)
    for step in (5, 30):
        assert metrics(two)[step]["train/loss"] == pytest.approx(metrics(whole)[step]["train/loss"], rel=1e-5)
