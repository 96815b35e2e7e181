"""One HTML page about a checkpoint: how it was trained, what it scores, what it confuses, what it looks at.

gather.py    computes what the page says, which is plain data (content.py); mistakes.py, history.py, anchors.py
page.py      content -> HTML, part by part: sections.py, plots.py, html.py
writing.py   where the page goes, and both of these
"""
