"""Which runs count, which evaluation of theirs, and the table of it."""

import dataclasses
import statistics

import numpy as np
import pytest
from etils import epath

from tests.studies.synthetic import CURVE, ROWS, line, write_run
from vit_jax.figures import png
from vit_jax.studies import results, table
from vit_jax.studies.figures import draw


@pytest.fixture
def root(tmp_path):
    """CURVE: s-10 of two seeds, s-90 of one. ROWS: a of three seeds, b of none that is through."""
    write_run(tmp_path / "curve/s-10/0", [line(2, 0.3, 1.0), line(4, 0.2, 2.0)])
    write_run(
        tmp_path / "curve/s-10/1", [line(2, 0.1, 3.0), line(4, 0.4, 1.5)], how="done, stopped early (x)"
    )
    write_run(tmp_path / "curve/s-90/0", [line(4, 0.6)])
    for seed, accuracy in enumerate((0.50, 0.56, 0.53)):
        # A later line for a step wins; a line without the metric says nothing.
        lines = [line(4, 0.9), {"step": 5, "train/loss": 1.0}, line(4, accuracy)]
        write_run(tmp_path / f"rows/a/{seed}", lines, seed=seed)
    write_run(tmp_path / "rows/b/0", [line(4, 0.9)], how="failed (disk)")
    write_run(tmp_path / "rows/b/1", [line(4, 0.9)], how=None)
    write_run(tmp_path / "rows/b/2", [{"step": 4, "eval/test/accuracy": None}])
    (tmp_path / "rows/a/notes").mkdir()
    return epath.Path(tmp_path)


def test_the_evaluation_that_counts(root):
    ten, ninety, *large = results.read_experiment(root / "curve", CURVE)
    assert ten.values == {0: 0.3, 1: 0.4}  # each where its validation loss is least
    assert (ten.mean, ten.sd) == (pytest.approx(0.35), pytest.approx(statistics.stdev((0.3, 0.4))))
    assert (ninety.mean, ninety.sd) == (0.6, None)
    assert [one.mean for one in large] == [None, None]


def test_the_best_of_anything_but_a_loss_is_the_largest(root):
    by_accuracy = dataclasses.replace(CURVE, chosen_by="eval/test/accuracy")
    assert results.read_experiment(root / "curve", by_accuracy)[0].values == {0: 0.3, 1: 0.4}
    last = dataclasses.replace(CURVE, chosen_by="")
    assert results.read_experiment(root / "curve", last)[0].values == {0: 0.2, 1: 0.4}


def test_runs_that_did_not_end_do_not_count(root):
    a, b = results.read_experiment(root / "rows", ROWS)  # the one that others start from isn't shown
    assert a.values == {0: 0.50, 1: 0.56, 2: 0.53} and a.sd == pytest.approx(0.03)
    assert b.values == {} and b.mean is None


def test_the_table(root):
    found = results.read_study(root, (CURVE, ROWS))
    text = table.markdown((CURVE, ROWS), found, "command")
    assert "| s-10 | 35.0 ± 7.1 | 2 | 30.0, 40.0 |" in text
    assert "| s-90 | 60.0 | 1 | 60.0 |" in text
    assert "| l-10 | not run | 0 | |" in text
    assert "| a | 53.0 ± 3.0 | 3 | 50.0, 56.0, 53.0 |" in text
    assert "at the evaluation with the best `eval/val/loss`" in text and "Paper: It rises." in text
    numbers = table.plain((CURVE, ROWS), found)
    assert numbers["rows"]["runs"]["b"] == {"mean": None, "sd": None, "values": {}}
    assert numbers["curve"]["runs"]["s-90"]["values"] == {"0": 0.6}


@pytest.mark.parametrize("experiment", [CURVE, ROWS])
def test_the_figure_shows_the_means_and_every_run(root, experiment):
    found = results.read_experiment(root / experiment.name, experiment)
    figure = draw(experiment, found)
    (axes,) = figure.axes
    drawn = [tuple(np.round(np.asarray(one.get_ydata(), float), 6)) for one in axes.lines]
    across = [tuple(np.round(np.asarray(one.get_xdata(), float), 6)) for one in axes.lines]
    if experiment is CURVE:
        assert drawn == [(30.0, 40.0), (60.0,), (35.0, 60.0)]
        assert across[2] == (10, 90) and axes.get_xscale() == "log"
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["s"]
    else:
        assert across == [(50.0, 56.0, 53.0), (53.0,)]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["a"]
    assert png(figure).startswith(b"\x89PNG")
