"""The table as a page with bars: one file that loads nothing from anywhere."""

from vit_jax.report.frame import document
from vit_jax.report.html import Html, paragraph, section, text
from vit_jax.vtab1k import reference, table
from vit_jax.vtab1k.table import Content, Line, percent

_STYLE = """
.score { min-width: 9rem; }
.track { position: relative; display: block; height: .8rem; background: var(--line);
  border-radius: .4rem; margin-top: .35rem; }
.track .fill { position: absolute; inset: 0 auto 0 0; background: var(--blue); border-radius: .4rem; }
.track .tick { position: absolute; top: -.2rem; bottom: -.2rem; width: 2px; background: var(--ink); opacity: .55; }
tr.group th, tr.group td { font-weight: 650; border-top: 2px solid var(--line); }
"""


def render(content: Content, created: str) -> Html:
    """The whole page; `created`: when, in words."""
    title = f"VTAB-1k of {content.checkpoint}"
    mean = content.summary["mean"]
    headline = "" if mean is None else paragraph(f"{percent(mean)} %", "headline")
    what = f"{content.protocol}; images normalised by {content.normalization}. Made {created}."
    header = f"<h1>{text(title)}</h1>{headline}<p>{text(what)}</p>"
    parts = section("scores", "Scores", _scores(content))
    if content.missing:
        parts += section("missing", "Missing", _missing(content))
    parts += section("sources", "Where the other rows are from", _sources())
    return document(title, header, parts, extra_style=_STYLE)


def _scores(content: Content) -> Html:
    names = [row.name for row in reference.ROWS]
    head = "".join(f'<th scope="col" class="number">{text(name)}</th>' for name in ("ours", "sd", *names))
    body = "".join(_row(content, line) for line in table.lines(content))
    notes = "".join(paragraph(text(line), "note") for line in table.about(content)[1:])
    return (
        '<div class="wide" tabindex="0"><table><caption>Test accuracy in %; the bar is ours, the ticks are the '
        f'published rows</caption><thead><tr><th scope="col">task</th><th scope="col"></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{notes}"
    )


def _row(content: Content, line: Line) -> Html:
    spread = line.score.sd if line.score is not None else None
    mark = "*" if line.key in content.marks else ""
    cells = [percent(line.value), percent(spread), *(f"{value:.1f}" for value in line.published)]
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    kind = "" if line.is_task else ' class="group"'
    return (
        f'<tr{kind}><th scope="row">{text(line.title + mark)}</th>'
        f'<td class="score">{_bar(line)}</td>{numbers}</tr>'
    )


def _bar(line: Line) -> Html:
    """Beside numbers that say the same."""
    fill = "" if line.value is None else f'<span class="fill" style="width:{100 * line.value:.2f}%"></span>'
    ticks = "".join(f'<span class="tick" style="left:{value:.2f}%"></span>' for value in line.published)
    return f'<span class="track" aria-hidden="true">{fill}{ticks}</span>'


def _missing(content: Content) -> Html:
    return "".join(
        paragraph(f"{text(names)}: {text(why)}", "missing") for why, names in table.reasons(content).items()
    )


def _sources() -> Html:
    return "".join(paragraph(f"{text(row.name)}: {text(row.source)}") for row in reference.ROWS)
