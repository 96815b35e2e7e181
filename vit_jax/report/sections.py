"""The parts of a report, each a function from content to HTML."""

from collections.abc import Callable
from typing import Any

import numpy as np

from vit_jax import figures, inspection
from vit_jax.report import html, plots
from vit_jax.report.content import Content, History, Missing, Picture
from vit_jax.report.html import Html, paragraph, text

# Buckets of a run's time, as timing.Buckets names them.
_BUCKETS = {
    "start": "start, up to the first step",
    "compile": "compilation",
    "data": "waiting for data",
    "step": "training steps",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
    "other": "other",
}


def missing(found: Missing) -> Html:
    """In place of a part that isn't there."""
    return paragraph(f"Not shown: {text(found.why[:1].lower() + found.why[1:])}", "missing")


def results(content: Content) -> Html:
    """Final numbers, beside the paper's."""
    parts = []
    for name in _evaluations(content.results):
        rows = [
            (metric, shown(metric, value))
            for metric, value in _of(content.results, name).items()
            if metric not in ("correct", "count")
        ]
        found = _of(content.results, name)
        where = content.data.get(name, "")
        counted = f"{found['correct']} of {found['count']} right" if "correct" in found else ""
        caption = ": ".join(filter(None, (name, ", ".join(filter(None, (where, counted))))))
        parts.append(html.table(("metric", "value"), rows, caption=caption, numbers=1))
    parts += [paragraph(f"Failed: {text(line)}", "missing") for line in content.failed]
    return "".join(parts) + _anchors(content)


def _anchors(content: Content) -> Html:
    if not content.anchors:
        return paragraph(
            "No published result belongs to this configuration, so none is set beside these numbers.", "note"
        )
    own = content.results.get("eval/test/accuracy")
    rows = [
        (
            a.source,
            a.pretraining,
            f"{a.accuracy:.2f} %",
            f"{100 * own - a.accuracy:+.2f}" if own is not None else "",
        )
        for a in content.anchors
    ]
    return html.table(
        ("published", "pre-trained on", "accuracy", "this run, points"), rows,
        caption="The papers' result for this model, data, size and recipe", numbers=2,
    )  # fmt: skip


def curves(content: Content) -> Html:
    """What was logged while training."""
    if isinstance(content.history, Missing):
        return missing(content.history)
    series = content.history.series
    groups: list[tuple[str, str, Callable[[str], bool], dict[str, bool]]] = [
        ("Loss", "loss", lambda k: k == "train/loss" or is_eval(k, "loss"), {"log": True}),
        ("Accuracy", "accuracy (%)", lambda k: is_eval(k, "accuracy"), {"percent": True}),
        ("Learning rate", "learning rate", lambda k: k == "train/lr", {}),
        ("Throughput", "images per second", lambda k: k == "train/img_per_sec", {}),
    ]
    drawn, absent = [], []
    for name, label, wanted, options in groups:
        found = {_short(key): values for key, values in series.items() if wanted(key)}
        found = {key: values for key, values in found.items() if np.isfinite(values[1]).any()}
        if found:
            drawn.append(html.drawing(plots.curves(found, name=name, ylabel=label, **options), name))
        else:
            absent.append(name.lower())
    notes = [paragraph(f"Not shown: {text(line)}", "missing") for line in content.history.damaged]
    if absent:
        notes.append(paragraph(f"Not shown: nothing is logged of {', '.join(absent)}.", "missing"))
    skipped = series.get("train/skipped")
    if skipped is not None and np.nanmax(skipped[1], initial=0) > 0:
        notes.append(
            paragraph(f"{np.nanmax(skipped[1]):.0f} updates weren't finite and were skipped.", "note")
        )
    return f'<div class="grid">{"".join(drawn)}</div>' + "".join(notes)


def confusions(content: Content) -> Html:
    """The worst pairs of classes, with images."""
    found = content.mistakes
    if isinstance(found, Missing):
        return missing(found)
    if not found.pairs:
        return paragraph(f"Not one example of {text(found.split)} was misclassified.")
    parts = []
    for pair in found.pairs:
        title = f"<strong>{text(pair.label)}</strong> taken for <strong>{text(pair.prediction)}</strong>"
        share = f"{pair.count} of {pair.of} ({100 * pair.count / pair.of:.0f} %)"
        images = "".join(html.picture(p) for p in pair.examples) or paragraph(
            "No image of it could be read.", "missing"
        )
        parts.append(
            f'<article class="pair"><h3>{title}: {share}</h3><div class="strip">{images}</div></article>'
        )
    rows = [(name, f"{100 * accuracy:.1f} %", count) for name, accuracy, count in found.classes]
    worst = html.table(
        ("class", "accuracy", "examples"), rows, caption="Classes with the lowest accuracy", numbers=2
    )
    return f'<div class="grid">{"".join(parts)}</div>{worst}'


def calibration(content: Content) -> Html:
    """Whether the classifier is as right as it is sure."""
    found = content.calibration
    if isinstance(found, Missing):
        return missing(found)
    sure = np.nansum(found.bins[0] * found.bins[1]) / found.bins[0].sum()
    right = np.nansum(found.bins[0] * found.bins[2]) / found.bins[0].sum()
    said = (
        f"Expected calibration error (ECE) of {text(found.split)}: <strong>{100 * found.ece:.2f} %</strong>. "
        f"On average it is {100 * sure:.1f} % sure and {100 * right:.1f} % right: "
        f"{'over' if sure > right else 'under'}confident by {100 * abs(sure - right):.1f} points."
    )
    return paragraph(said) + html.drawing(plots.reliability(found), "Reliability diagram")


def time(content: Content) -> Html:
    """Where the time of the training went."""
    if isinstance(content.history, Missing):
        return missing(content.history)
    starts = content.history.starts
    if not starts:
        return missing(Missing("the run has no record of its starts."))
    ends = [start["end"] for start in starts if isinstance(start.get("end"), dict)]
    parts = [paragraph(text(_progress(content.history)))]
    if not ends:
        parts.append(missing(Missing("seconds and goodput are known when a start of the run has ended.")))
        return "".join(parts)
    seconds = {name: sum(end["seconds"].get(name, 0.0) for end in ends) for name in (*_BUCKETS, "total")}
    total = seconds["total"] or 1.0
    rows = "".join(
        f'<tr><th scope="row">{text(what)}</th><td class="number">{_duration(seconds[name])}</td>'
        f'<td class="number">{100 * seconds[name] / total:.1f} %</td>'
        f"<td>{html.bar(seconds[name] / total)}</td></tr>"
        for name, what in _BUCKETS.items()
    )
    images = sum(end.get("images", 0) for end in ends)
    rate = images / seconds["step"] if seconds["step"] else 0.0
    mfu = ends[-1].get("mfu")
    count = f"{len(ends)} start{'s' if len(ends) > 1 else ''} that ended"
    parts.append(
        f'<div class="wide" tabindex="0"><table><caption>Wall-clock time of {count}: '
        f"{_duration(seconds['total'])}</caption><thead><tr>"
        '<th scope="col">bucket</th><th scope="col" class="number">time</th>'
        f'<th scope="col" class="number">share</th><td></td></tr></thead><tbody>{rows}</tbody></table></div>'
    )
    parts.append(
        paragraph(
            f"Goodput <strong>{100 * seconds['step'] / total:.1f} %</strong>: the share that went into training "
            f"steps. In them {rate:,.0f} images per second, MFU "
            f"{'unknown (no peak is known for this device)' if mfu is None else f'{100 * mfu:.1f} %'}."
        )
    )
    return "".join(parts)


def inside(content: Content) -> Html:
    """Filters, positions, attention."""
    found = content.inside
    if isinstance(found, Missing):
        return missing(found)
    parts, left_out = [], dict(found.learned.left_out)
    if found.learned.filters is not None:
        drawn = figures.png(figures.draw_filters(found.learned.filters))
        count = len(found.learned.filters.images)
        alt = f"{count} principal components of the patch embedding, as small images"
        parts.append(Picture(drawn, "png", alt, "Filters of the patch embedding"))
    if found.learned.similarity is not None:
        drawn = figures.png(figures.draw_positions(found.learned.similarity))
        height, width = found.learned.similarity.shape[:2]
        alt = f"Maps of cosine similarity between position embeddings, {height} by {width} patches"
        parts.append(Picture(drawn, "png", alt, "Similarity of position embeddings"))
    if found.distance is not None:
        count = len(found.rollouts)
        drawn = figures.png(figures.draw_distance(found.distance, num_images=count))
        first, last = found.distance.mean(axis=1)[[0, -1]]
        alt = f"Mean attention distance by head and layer: {first:.1f} pixels in the first, {last:.1f} in the last"
        parts.append(Picture(drawn, "png", alt, "Mean attention distance"))
    else:
        left_out |= dict.fromkeys((inspection.DISTANCE, inspection.ROLLOUT), "there is no image to look at")
    shown_parts = "".join(html.picture(p, "paper") for p in (*parts, *found.rollouts))
    notes = [
        paragraph(f"Not shown: {text(name.replace('_', ' '))}: {text(why)}.", "missing")
        for name, why in left_out.items()
    ]
    reads = paragraph(
        f"The rollout follows attention back from the {text(found.reads)}; "
        "it is drawn so that the brightest 2 % of the patches are white.",
        "note",
    )
    return f'<div class="grid">{shown_parts}</div>{reads if found.rollouts else ""}{"".join(notes)}'


def machine(content: Content) -> Html:
    """Devices, mesh and versions, of the training and of this evaluation."""
    parts = [html.table(("what", "value"), content.machine.items(), caption="This evaluation")]
    history = content.history
    if isinstance(history, Missing) or not history.starts:
        parts.append(missing(Missing("devices and versions of the training aren't recorded.")))
        return "".join(parts)
    start = history.starts[-1]
    devices, versions = start.get("devices", {}), start.get("versions", {})
    mesh = ", ".join(f"{axis} {content.config.get(f'mesh.{axis}')}" for axis in ("replica", "fsdp", "tensor"))
    rows = {
        "started": start.get("time"),
        "devices": f"{devices.get('count')} × {devices.get('kind')}",
        "processes": devices.get("processes"),
        "mesh asked for (-1: all that are left)": mesh,
        "code revision": start.get("revision") or "unknown",
        **versions,
    }
    parts.append(
        html.table(("what", "value"), rows.items(), caption=f"Training, start {len(history.starts)}")
    )
    return f'<div class="grid">{"".join(parts)}</div>'


def config(content: Content) -> Html:
    """What differs from the defaults, and all keys behind a fold."""
    values = {key: '""' if value == "" else value for key, value in content.config.items()}
    changed = [
        (key, value)
        for key, value in values.items()
        if key not in content.defaults or content.defaults[key] != content.config[key]
    ]
    parts = html.table(
        ("key", "value"), changed, caption=f"{len(changed)} keys that differ from configs/base.py"
    )
    everything = html.table(("key", "value"), values.items(), caption="All keys")
    return f"{parts}<details><summary>All {len(content.config)} keys</summary>{everything}</details>"


def commands(content: Content) -> Html:
    """How to do it again."""
    return "".join(
        f"<h3>{text(what)}</h3><pre><code>{text(line)}</code></pre>"
        for what, line in content.commands.items()
    )


def shown(metric: str, value: Any) -> str:
    """A metric's value: shares as percent."""
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "not a finite number"
    if isinstance(value, int):
        return f"{value:,}"
    last = metric.rpartition("/")[2]
    is_share = last.endswith("accuracy") or last in ("ece", "map", "precision_at_1", "sd")
    return f"{100 * value:.2f} %" if is_share else f"{value:.4g}"


def _evaluations(found: dict[str, Any]) -> list[str]:
    """Names of what was evaluated: `test` of eval/test/accuracy."""
    return list(dict.fromkeys(key.split("/")[1] for key in found))


def _of(found: dict[str, Any], name: str) -> dict[str, Any]:
    prefix = f"eval/{name}/"
    return {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}


def is_eval(key: str, metric: str) -> bool:
    """eval/NAME/metric, not that of a method such as eval/NAME/5shot/accuracy."""
    parts = key.split("/")
    return len(parts) == 3 and parts[0] == "eval" and parts[2] == metric


def _short(key: str) -> str:
    return "/".join(key.split("/")[:2]).removeprefix("eval/").replace("train/loss", "train")


def _progress(history: History) -> str:
    end = history.starts[-1].get("end")
    count = f"Start {len(history.starts)} of the run" if len(history.starts) > 1 else "The run"
    if isinstance(end, dict):
        return f"{count} ended ({end.get('how')}) at step {end.get('step')} of {end.get('total_steps')}."
    steps = [int(steps[-1]) for steps, _ in history.series.values() if len(steps)]
    last = f"the last step logged is {max(steps)}" if steps else "no step is logged yet"
    return f"{count} has no recorded end: it is still going, or was killed; {last}."


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 100 else f"{hours:.1f} h"
