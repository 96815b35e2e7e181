"""The frame and the style of all pages: one file that loads nothing from anywhere."""

from vit_jax.report.html import Html, text

_STYLE = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --ink: #1c1e21; --soft: #5b6168;
  --line: #dcdfe3; --blue: #1f6fbf; --warn: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --page: #14161a; --card: #1d2025; --ink: #e8e9eb; --soft: #a4abb3;
  --line: #353a42; --blue: #6fb1f2; --warn: #f0b35a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 .75rem; }
h3 { font-size: 1rem; font-weight: 500; margin: 0 0 .5rem; overflow-wrap: anywhere; }
a { color: var(--blue); }
header p { color: var(--soft); margin: .25rem 0; overflow-wrap: anywhere; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: 1rem 0; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem;
  margin: 0 0 1rem; }
.headline { font-size: 2.2rem; font-weight: 650; color: var(--ink); line-height: 1.2; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem;
  align-items: start; margin: 0 0 1rem; }
.wide { overflow-x: auto; margin: 0 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
caption { text-align: left; color: var(--soft); padding: 0 0 .35rem; overflow-wrap: anywhere; }
th, td { text-align: left; font-weight: 400; padding: .3rem .6rem .3rem 0; border-top: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
thead th, thead td { color: var(--soft); border-top: 0; }
th[scope="row"] { overflow-wrap: break-word; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 0; min-width: 0; }
figcaption { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
img, svg { display: block; max-width: 100%; height: auto; }
.drawing svg { width: 100%; max-width: 32rem; color: var(--ink); }
.drawing svg text { fill: currentColor; font-family: inherit !important; }
.paper { background: #ffffff; color: #1c1e21; border-radius: .4rem; padding: .4rem; }
.paper figcaption { color: #5b6168; }
.paper img { width: 100%; }
.strip { display: flex; flex-wrap: wrap; gap: .5rem; }
.strip img { max-height: min(7rem, 17vw); border-radius: .25rem; image-rendering: pixelated; }
.strip img[src^="data:image/jpeg"] { image-rendering: auto; }
.note { color: var(--soft); }
.missing { color: var(--warn); overflow-wrap: anywhere; }
.bar { display: block; min-width: 5rem; height: .7rem; background: var(--line); border-radius: .35rem;
  margin-top: .4rem; }
.bar span { display: block; height: 100%; background: var(--blue); border-radius: .35rem; }
pre { overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; background: var(--page); padding: .75rem;
  border-radius: .4rem; margin: 0 0 1rem; font-size: .85rem; }
summary { cursor: pointer; color: var(--blue); }
"""


def document(title: str, header: Html, main: Html, *, nav: Html = "", extra_style: str = "") -> Html:
    """A page of these parts in the style of all reports."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}{extra_style}</style>\n</head>\n<body>\n"
        f"<header>{header}</header>\n{nav}<main>\n{main}\n</main>\n</body>\n</html>\n"
    )
