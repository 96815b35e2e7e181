"""Content for pages, made up; and a page taken apart by the standard parser."""

from html.parser import HTMLParser

import numpy as np

from vit_jax import views
from vit_jax.inspection import Learned
from vit_jax.report.content import Calibration, Confusion, Content, History, Inside, Mistakes
from vit_jax.report.mistakes import encoded

VOID = {"meta", "img", "br", "link", "input", "hr"}
NASTY = '<b>"T&shirt"</b> $x_1$ \udcff é\''


class Page(HTMLParser):
    """Attributes:
    text: of each element kind joined; alts, ids, addresses: of all elements; headings: (level, text)."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.texts, self.elements, self.headings = [], [], [], []
        self.feed(source.replace("<wbr>", ""))
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append([tag, ""])

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.texts.append(data)
        if self.open and self.headings and {"h1", "h2", "h3"} & set(self.open):
            self.headings[-1][1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def attributes(self, name):
        return [attrs[name] for _, attrs in self.elements if attrs.get(name) is not None]


def content(**changes):
    """A complete content, with odd names; changes replace its fields."""
    rng = np.random.default_rng(0)
    steps = np.arange(1, 40, dtype=np.int64)
    losses = np.exp(-steps / 10)
    losses[5] = np.nan
    series = {
        "train/loss": (steps, losses),
        "train/lr": (steps, losses),
        "train/img_per_sec": (steps, np.full(39, 100.0)),
        "train/skipped": (steps, np.minimum(steps, 2.0)),
        "eval/test/loss": (steps[::10], losses[::10]),
        "eval/test/accuracy": (steps[::10], 1 - losses[::10]),
    }
    end = {
        "how": "done", "step": 39, "total_steps": 39, "images": 3900, "mfu": None,
        "seconds": {"start": 1.0, "compile": 2.0, "data": 0.5, "step": 30.0, "eval": 1.0, "checkpoint": 1.0,
                    "other": 0.5, "total": 36.0},
    }  # fmt: skip
    start = {
        "time": "2026-01-01", "command": ["python", "-m", "vit_jax.train", f"--workdir={NASTY}"],
        "versions": {"jax": "0.10.2"}, "revision": None,
        "devices": {"platform": "cpu", "kind": "cpu", "count": 8, "processes": 1}, "end": end,
    }  # fmt: skip
    photo = encoded(rng.integers(0, 256, (300, 200, 3), np.uint8), NASTY, "99 % sure")
    calibration = np.full((3, 15), np.nan)
    calibration[0] = 0
    calibration[:, 10], calibration[:, 14] = (10, 0.7, 0.5), (90, 0.98, 0.99)
    filters = views.embedding_filters(rng.normal(size=(4, 4, 3, 8)))
    similarity = views.position_similarity(rng.normal(size=(6, 8)), (2, 3))
    inside = Inside(Learned(filters, similarity, {}), rng.random((2, 3)), (photo,), "class token")
    fields = {
        "checkpoint": f"runs/{NASTY}", "step": 39, "created": "2026-01-01 00:00 UTC",
        "data": {"test": f"folder:{NASTY}@test, 100 examples"},
        "results": {"eval/test/accuracy": 0.94, "eval/test/loss": 0.2, "eval/test/correct": 94,
                    "eval/test/count": 100, "eval/test/ece": 0.1, "eval/test/class_accuracy": float("nan")},
        "failed": [f"own: {NASTY}"], "anchors": [], "history": History(series, [start]),
        "mistakes": Mistakes("test", (Confusion(NASTY, "dress", 3, 12, (photo, photo)), Confusion("a", "b", 1, 9)),
                             ((NASTY, 0.75, 12),)),
        "calibration": Calibration("test", calibration, 0.1), "inside": inside,
        "config": {"model.name": "B/16", "model.image_size": [8, 8], "data.train": NASTY, "seed": 0},
        "defaults": {"model.name": "S/16", "seed": 0}, "machine": {"devices": "1 × cpu"},
        "commands": {"This page": f"python {NASTY}"},
    }  # fmt: skip
    return Content(**{**fields, **changes})
