"""One figure of each experiment: a curve where its runs have a place on an axis, else a row for each."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.studies.plan import Experiment
from vit_jax.studies.results import Found

_DPI = 120


def draw(experiment: Experiment, found: Sequence[Found]) -> Figure:
    """Every run as a dot, in percent, and the means: as a line over x, or as a bar across the dots.

    Args:
      found: of `read_experiment`, with at least one run that is through.
    """
    found = [one for one in found if one.values]
    curve = found[0].run.x is not None
    tall = 3.6 if curve else 1.3 + 0.36 * len(found)
    figure = Figure(figsize=(5.6, tall), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    axes.set_title(experiment.title, fontsize=10)
    (_curve if curve else _rows)(axes, experiment, found)
    axes.grid(alpha=0.3)
    return figure


def _curve(axes: Axes, experiment: Experiment, found: Sequence[Found]) -> None:
    for place, series in enumerate(dict.fromkeys(one.run.series for one in found)):
        points = sorted((one for one in found if one.run.series == series), key=lambda one: one.run.x)
        colour = f"C{place}"
        for one in points:
            values = [100 * value for value in one.values.values()]
            axes.plot([one.run.x] * len(values), values, "o", markersize=3, alpha=0.5, color=colour)
        axes.plot(
            [one.run.x for one in points],
            [100 * one.mean for one in points],
            "-o",
            color=colour,
            label=series,
        )
    ticks = sorted({one.run.x for one in found})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_xlabel(experiment.x_label)
    axes.set_ylabel(f"{experiment.metric}, %")
    axes.legend(frameon=False)


def _rows(axes: Axes, experiment: Experiment, found: Sequence[Found]) -> None:
    for row, one in enumerate(found):
        values = [100 * value for value in one.values.values()]
        axes.plot(values, [row] * len(values), "o", markersize=4, alpha=0.5, color=f"C{row % 10}")
        axes.plot([100 * one.mean], [row], "|", markersize=16, markeredgewidth=2, color=f"C{row % 10}")
    axes.set_yticks(range(len(found)), [one.run.name for one in found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlabel(f"{experiment.metric}, % (a dot a run, the bar their mean)")
