"""Pieces of HTML. What comes from outside passes through `text` or an attribute of `picture`, which escape it."""

import base64
from collections.abc import Iterable, Sequence
from html import escape

from vit_jax.report.content import Picture

Html = str  # markup, escaped where it must be


def text(value: object) -> Html:
    """Any value as text. Bytes of a name that are no UTF-8 become question marks."""
    return escape(str(value).encode(errors="replace").decode())


def paragraph(inner: Html, kind: str = "") -> Html:
    """A paragraph; kind: "note" or "missing"."""
    return f'<p class="{kind}">{inner}</p>' if kind else f"<p>{inner}</p>"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str, numbers: int = 0) -> Html:
    """A table whose first column heads its rows; the last `numbers` columns are aligned as numbers."""
    first_number = len(header) - numbers

    def cell(place: int, value: object) -> Html:
        kind = ' class="number"' if place >= first_number else ""
        name = 'th scope="row"' if place == 0 else "td"
        shown = text(value)
        if place == 0:  # where a long key may be broken
            shown = shown.replace(".", ".<wbr>").replace("_", "_<wbr>")
        return f"<{name}{kind}>{shown}</{name.split()[0]}>"

    titles = "".join(
        f'<th scope="col"{" class=" + chr(34) + "number" + chr(34) if i >= first_number else ""}>{text(h)}</th>'
        for i, h in enumerate(header)
    )
    body = "".join(f"<tr>{''.join(cell(i, v) for i, v in enumerate(row))}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0"><table><caption>{text(caption)}</caption>'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def picture(found: Picture, kind: str = "") -> Html:
    """An embedded image with its caption."""
    data = base64.b64encode(found.data).decode()
    image = f'<img src="data:image/{found.kind};base64,{data}" alt="{text(found.alt)}">'
    caption = f"<figcaption>{text(found.caption)}</figcaption>" if found.caption else ""
    return f'<figure class="{kind}">{image}{caption}</figure>'


def drawing(svg: Html, caption: str) -> Html:
    """An inline SVG with its caption."""
    return f'<figure class="drawing">{svg}<figcaption>{text(caption)}</figcaption></figure>'


def section(name: str, title: str, inner: Html) -> Html:
    """A part of the page, to be linked to by `#name`."""
    return f'<section id="{name}"><h2>{text(title)}</h2>{inner}</section>'


def bar(share: float) -> Html:
    """A bar of a share, 0..1, beside a number that says the same."""
    return f'<span class="bar" aria-hidden="true"><span style="width:{100 * share:.1f}%"></span></span>'
