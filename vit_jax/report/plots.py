"""Curves and the reliability diagram as inline SVG, in the page's own text colour: for light and dark."""

import io
import re
from html import escape

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from vit_jax.report.content import Calibration

# Told apart in light and dark, and by those who don't see red or green.
_COLOURS = ("#2f86d6", "#e07b28", "#2fa084", "#b56fd0", "#c9a227", "#d9577a")
_SIZE = (4.4, 2.7)  # inches: as wide as a phone
# Text stays text: it takes the page's colour, can be read aloud, and is small.
_STYLE = {"svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9, "legend.fontsize": 8}

Series = dict[str, tuple[np.ndarray, np.ndarray]]


def curves(series: Series, *, name: str, ylabel: str, log: bool = False, percent: bool = False) -> str:
    """Lines over steps, NaN left open.

    Args:
      series: label -> steps [n], values [n].
      name: of the diagram, for its text.
      log: values on a logarithmic axis, where all are positive and they span more than a decade.
      percent: values 0..1 are shown as percent.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _axes()
        for place, (label, (steps, values)) in enumerate(series.items()):
            steps, values = thinned(steps, values)  # noqa: PLW2901
            marker = "o" if np.isfinite(values).sum() < 25 else None
            axes.plot(
                steps, values * 100 if percent else values, marker=marker, markersize=3, linewidth=1.4,
                label=label.replace("$", r"\$"), color=_COLOURS[place % len(_COLOURS)],
            )  # fmt: skip
        everything = np.concatenate([values for _, values in series.values()])
        finite = everything[np.isfinite(everything)]
        # Within a decade a logarithmic axis has unreadable ticks.
        if log and finite.min() > 0 and finite.max() > 10 * finite.min():
            axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel(ylabel)
        axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
        if len(series) > 1:
            axes.legend(frameon=False)
        ends = [f"{label} ends at {_last(values, percent)}" for label, (_, values) in series.items()]
        return _svg(figure, f"{name} over steps: {'; '.join(ends)}", name)


def reliability(found: Calibration) -> str:
    """Accuracy by confidence, beside the diagonal of a model that is as right as it is sure."""
    rows, confidence, accuracy = found.bins
    edges = np.linspace(0, 1, len(rows) + 1)
    with mpl.rc_context(_STYLE):
        figure, axes = _axes((4.4, 3.4))
        used = rows > 0
        width = 1 / len(rows)
        middles = (edges[:-1] + edges[1:]) / 2
        axes.bar(middles[used], accuracy[used], width * 0.92, color=_COLOURS[0], alpha=0.75, label="accuracy")
        axes.bar(
            middles[used], rows[used] / rows.sum(), width * 0.3, color=_COLOURS[1], label="share of examples"
        )
        axes.plot([0, 1], [0, 1], "--", color="#000000", linewidth=1, label="perfectly calibrated")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("confidence (probability of the answer)")
        axes.set_ylabel("accuracy")
        axes.legend(frameon=False, loc="upper left")
        points = [
            f"sure {100 * c:.0f} %, right {100 * a:.0f} % ({n:.0f})"
            for n, c, a in zip(rows[used], confidence[used], accuracy[used], strict=True)
        ]
        text = f"Reliability of {found.split}: {'; '.join(points)}"
        return _svg(figure, text, f"reliability {found.split}")


def thinned(steps: np.ndarray, values: np.ndarray, most: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Up to `most` of the points of a line, that look the same: lowest and highest of as many equal stretches.

    First and last are kept; so is a stretch's gap, where all of it is NaN.
    """
    if len(steps) <= most:
        return steps, values
    kept = {0, len(steps) - 1}
    for part in np.array_split(np.arange(len(steps)), (most - 2) // 2):
        finite = part[np.isfinite(values[part])]
        kept |= (
            {finite[values[finite].argmin()], finite[values[finite].argmax()]} if len(finite) else {part[0]}
        )
    places = sorted(kept)
    return steps[places], values[places]


def _axes(size: tuple[float, float] = _SIZE) -> tuple[Figure, mpl.axes.Axes]:
    figure = Figure(figsize=size, layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6, color="#000000")
    return figure, axes


def _last(values: np.ndarray, percent: bool) -> str:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "no finite value"
    return f"{100 * finite[-1]:.2f} %" if percent else f"{finite[-1]:.4g}"


def _svg(figure: Figure, text: str, salt: str) -> str:
    """The figure as an <svg> element described by `text`; `salt` tells its ids from those of others on the page."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": salt}):
        FigureCanvasSVG(figure).print_svg(file, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    whole = file.getvalue()
    body = whole[whole.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = body.replace("#000000", "currentColor")
    opening, rest = body.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', opening)[0]
    # matplotlib numbers its groups alike in every figure: ids that nothing refers to go.
    referred = set(re.findall(r'(?:#)([\w-]+)(?=["\)])', rest))
    rest = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in referred else "", rest)
    return f'<svg {box} role="img" aria-label="{escape(text)}">{rest.strip()}'
