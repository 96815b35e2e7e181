"""Long curves are thinned without losing what the eye sees; drawings take the page's colour."""

import numpy as np

from vit_jax.report import plots


def test_short_lines_stay_as_they_are():
    steps, values = np.arange(50), np.random.default_rng(0).normal(size=50)
    kept = plots.thinned(steps, values)
    assert kept[0] is steps and kept[1] is values


def test_spikes_ends_and_gaps_of_long_lines_are_kept():
    steps = np.arange(0, 100_000, 5)
    values = np.random.default_rng(0).normal(size=len(steps))
    values[777], values[1234] = 50, -50
    values[5000:7000] = np.nan
    found_steps, found = plots.thinned(steps, values, 1000)
    assert len(found) <= 1000 and (np.diff(found_steps) > 0).all()
    assert (found_steps[0], found_steps[-1]) == (0, steps[-1])
    assert (np.nanmax(found), np.nanmin(found)) == (50, -50)
    gap = np.isnan(found)
    assert gap.sum() > 10 and found_steps[gap].min() >= steps[5000] and found_steps[gap].max() < steps[7000]
    drawn = plots.curves({"loss": (steps, values)}, name="Loss", ylabel="loss")
    assert len(drawn) < 60_000


def test_lines_are_drawn_in_the_pages_colour_and_described():
    steps = np.arange(3)
    series = {"train": (steps, np.array([3.0, 2, 1])), "a $b_c$": (steps, np.array([np.nan, np.nan, 0.5]))}
    drawn = plots.curves(series, name="Loss", ylabel="loss")
    assert drawn.startswith("<svg viewBox=") and drawn.endswith("</svg>")
    assert (
        "currentColor" in drawn
        and "#000000" not in drawn
        and "<metadata" not in drawn
        and "xmlns" not in drawn
    )
    assert 'aria-label="Loss over steps: train ends at 1; a $b_c$ ends at 0.5"' in drawn
    assert ">a $b_c$</text>" in drawn
