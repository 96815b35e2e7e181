"""Pages as a browser's parser sees them: whole, described, self-contained, and honest about what is missing."""

import base64
import re

import cv2
import numpy as np
import pytest

from tests.report.pages import NASTY, Page, content
from vit_jax.report.anchors import Anchor
from vit_jax.report.content import Calibration, History, Inside, Learned, Missing, Mistakes
from vit_jax.report.page import render

SECTIONS = ["Results", "Training curves", "What it confuses", "Calibration", "Inside the model",
            "Throughput and time", "Devices and versions", "Configuration", "Do it again"]  # fmt: skip


@pytest.fixture(scope="module")
def source():
    return render(content())


@pytest.fixture(scope="module")
def page(source):
    return Page(source)


def test_it_has_a_title_headings_in_order_and_links_to_its_parts(source, page):
    assert source.startswith("<!DOCTYPE html>") and page.elements[0] == ("html", {"lang": "en"})
    assert [text for level, text in page.headings if level == "h2"] == SECTIONS
    assert page.headings[0][0] == "h1"
    assert ("meta", {"charset": "utf-8"}) in page.elements
    ids = page.attributes("id")
    assert len(ids) == len(set(ids)), "an id occurs twice"
    for link in page.attributes("href") + page.attributes("xlink:href"):
        assert link.startswith("#") and link[1:] in ids


def test_nothing_is_loaded_from_outside(source, page):
    """No address, but for images in the page itself."""
    rest = re.sub(r'src="data:image/[a-z]+;base64,[^"]*"', "", source)
    assert not re.search(
        r"https?:|//[a-z]|url\((?!#)|@import|<script|<link|<iframe|src=", rest, re.IGNORECASE
    )
    assert page.attributes("src") and all(a.startswith("data:image/") for a in page.attributes("src"))
    assert set(re.findall(r"url\(#([^)]*)\)", source)) <= set(page.attributes("id"))


def test_every_image_and_drawing_is_described(page):
    images = [attrs for tag, attrs in page.elements if tag == "img"]
    assert len(images) == 2 + 3 + 1 and all(attrs["alt"] for attrs in images)
    drawings = [attrs for tag, attrs in page.elements if tag == "svg"]
    assert len(drawings) == 4 + 1
    assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 20 for attrs in drawings)
    for attrs in images:
        kind, data = re.fullmatch(r"data:image/(png|jpeg);base64,(.*)", attrs["src"]).groups()
        decoded = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_UNCHANGED)
        assert decoded is not None, kind


def test_names_of_any_kind_are_escaped(source, page):
    shown = NASTY.replace("\udcff", "?")
    assert "<b>" not in source and source.encode() and page.text.count(shown) >= 8
    assert all(tag != "b" for tag, _ in page.elements)
    assert shown in page.attributes("alt")


def test_numbers_are_what_was_measured(page):
    for words in (
        "94 of 100 right", "accuracy 94.00 %", "class_accuracy not a finite number", "3 of 12 (25 %)",
        "Expected calibration error (ECE) of test: 10.00 %",
        "95.2 % sure and 94.1 % right: overconfident by 1.1 points",
        "Goodput 83.3 %", "130 images per second", "2 updates weren't finite", "ended (done) at step 39 of 39",
        "3 keys that differ from configs/base.py", "8 × cpu", "training steps 30.0 s 83.3 %",
    ):  # fmt: skip
        assert words in page.text, words
    assert "94.00 % accuracy, test" in page.text.split("Results")[0]


def test_the_headline_is_of_a_split_that_was_classified():
    found = {"eval/val/accuracy": 0.5, "eval/test/accuracy": 0.25, "eval/own/1shot/accuracy": 0.75}
    for results, headline in ((found, "25.00 % accuracy, test"), ({"eval/own/1shot/accuracy": 0.75}, "")):
        head = Page(render(content(results=results))).text.split("Results")[0]
        assert headline in head and "75.00 %" not in head and ("accuracy" in head) == bool(headline)


def test_the_papers_row_is_set_beside_or_its_absence_said(page):
    assert "No published result belongs to this configuration" in page.text
    rows = [Anchor("ViT, Table 5", "JFT", 91.87), Anchor("ViT, Table 5", "ImageNet-21k", 95.5)]
    shown = Page(render(content(anchors=rows))).text
    assert "ViT, Table 5 JFT 91.87 % +2.13" in shown and "ImageNet-21k 95.50 % -1.50" in shown
    assert "No published result" not in shown


def test_a_classifier_without_errors():
    shown = Page(render(content(mistakes=Mistakes("test", (), ())))).text
    assert "Not one example of test was misclassified." in shown


def test_bare_weights_say_what_they_lack():
    why = {name: Missing(f"no {name} here.") for name in ("history", "mistakes", "calibration", "inside")}
    page = Page(render(content(step=None, **why)))
    assert [text for level, text in page.headings if level == "h2"] == SECTIONS
    for name in ("mistakes", "calibration", "inside"):
        assert f"Not shown: no {name} here." in page.text
    assert page.text.count("Not shown: no history here.") == 2
    assert "devices and versions of the training aren't recorded" in page.text
    assert "bare weights" in page.text and not [tag for tag, _ in page.elements if tag in ("svg", "img")]


def test_a_run_that_is_going_on():
    steps = np.array([5], np.int64)
    history = History(
        {"train/loss": (steps, np.array([2.0]))}, [{"time": "now", "command": ["train"]}], ["cut off"]
    )
    page = Page(render(content(history=history)))
    assert "it is still going, or was killed; the last step logged is 5" in page.text
    assert "nothing is logged of accuracy, learning rate, throughput" in page.text
    assert "Not shown: cut off" in page.text and "seconds and goodput are known when a start" in page.text
    nothing = Page(render(content(history=History({}, []))))
    assert "the run has no record of its starts" in nothing.text
    assert "nothing is logged of loss, accuracy, learning rate, throughput" in nothing.text


def test_views_that_are_left_out_are_named():
    learned = Learned(None, None, {"filters": "it is a hybrid", "positions": "they are fixed"})
    page = Page(render(content(inside=Inside(learned, None, (), "class token"))))
    for words in ("filters: it is a hybrid", "positions: they are fixed", "attention distance: there is no image",
                  "rollout: there is no image"):  # fmt: skip
        assert f"Not shown: {words}" in page.text


def test_values_that_no_axis_has():
    """Constant, zero, negative, single and huge values; bins without examples."""
    steps = np.array([1, 2], np.int64)
    series = {
        "train/loss": (steps, np.array([0.0, 0.0])),
        "eval/test/loss": (steps[:1], np.array([1e30])),
        "train/lr": (steps, np.array([np.nan, 0.0])),
        "train/img_per_sec": (steps, np.array([np.nan, np.nan])),
    }
    bins = np.full((3, 15), np.nan)
    bins[0] = 0
    bins[:, 3] = 1, 0.2, 0.0
    page = Page(render(content(history=History(series, []), calibration=Calibration("test", bins, 0.2))))
    assert "nothing is logged of accuracy, throughput" in page.text and "underconfident" not in page.text
