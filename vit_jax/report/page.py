"""The page and its order. It loads nothing from anywhere."""

import math

from vit_jax.report import html, sections
from vit_jax.report.content import Content, Missing
from vit_jax.report.frame import document
from vit_jax.report.html import Html, text

_SECTIONS = (
    ("results", "Results", sections.results),
    ("curves", "Training curves", sections.curves),
    ("confusions", "What it confuses", sections.confusions),
    ("calibration", "Calibration", sections.calibration),
    ("inside", "Inside the model", sections.inside),
    ("time", "Throughput and time", sections.time),
    ("machine", "Devices and versions", sections.machine),
    ("config", "Configuration", sections.config),
    ("commands", "Do it again", sections.commands),
)


def render(content: Content) -> Html:
    """The whole page."""
    title = f"Report of {content.checkpoint}"
    links = "".join(f'<li><a href="#{name}">{text(heading)}</a></li>' for name, heading, _ in _SECTIONS)
    parts = "".join(html.section(name, heading, part(content)) for name, heading, part in _SECTIONS)
    step = "bare weights" if content.step is None else f"step {content.step}"
    header = (
        f"<h1>{text(title)}</h1>{_headline(content)}"
        f"<p>{text(_model(content))}, {text(step)}. Made {text(content.created)}.</p>"
    )
    nav = f'<nav aria-label="Parts of this page"><ul>{links}</ul></nav>\n'
    return document(title, header, parts, nav=nav)


def _headline(content: Content) -> Html:
    """The accuracy of a classified split, the last: test comes after val."""
    for key, value in reversed(content.results.items()):
        if sections.is_eval(key, "accuracy") and value is not None and math.isfinite(value):
            return f'<p class="headline">{100 * value:.2f} %</p><p>accuracy, {text(key.split("/")[1])}</p>'
    return ""


def _model(content: Content) -> str:
    size = content.config.get("model.image_size")
    shown = " × ".join(map(str, size)) if isinstance(size, list) else size
    data = content.config.get("data.train") or content.config.get("data.mixture")
    trained = "" if isinstance(content.history, Missing) else f", trained on {data}"
    return f"{content.config.get('model.name')} at {shown} px{trained}"
