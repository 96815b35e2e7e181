"""Medians and means, the missing, the store on disk, and the table in all its forms."""

import csv
import io
import json
import re
import statistics
from html.parser import HTMLParser

import numpy as np
import pytest
from etils import epath

from vit_jax.data.vtab_tasks import TASKS
from vit_jax.errors import UsageError
from vit_jax.vtab1k import page, reference, table
from vit_jax.vtab1k.results import Score, Store, summarize


@pytest.fixture(scope="module")
def case(golden):
    return json.loads((golden / "cases" / "vtab_missing.json").read_text())


def _result(task, seed, accuracy, **more):
    return {"task": task, "trial": f"final-seed={seed}", "kind": "final", "accuracy": accuracy, "differences": [],
            "absent_classes": [], "count": 100, "test_examples": 100, "lr": 0.01, "total_steps": 2500,
            "total_epochs": None, "total_examples": None, "normalization": "value_range(-1, 1)",
            **more}  # fmt: skip


def _content(accuracies, missing, **more):
    scores = {
        name: Score(a, (a, a - 0.01, a + 0.01), (_result(name, 0, a, **more),))
        for name, a in accuracies.items()
    }
    return table.Content(scores, missing, "B_16.npz", "configs/vtab.py", "value_range(-1, 1)")


@pytest.fixture
def eighteen(case):
    accuracies = {name: percent / 100 for name, percent in case["results"].items()}
    return _content(
        accuracies, {"sun397": "an image can't be decoded; prepare: tfds build sun397/tfds:4.0.0"}
    )


def test_one_missing_task_leaves_no_mean_but_all_others(case, eighteen):
    summary = eighteen.summary
    assert summary["missing"] == case["missing"] == ["sun397"]
    assert summary["mean"] is None and summary["natural"] is None
    for name, percent in case["results"].items():
        assert summary[name] == percent / 100
    for group in ("specialized", "structured"):
        own = [case["results"][name] / 100 for name, task in TASKS.items() if task.group == group]
        assert summary[group] == pytest.approx(statistics.fmean(own), abs=1e-12)
    text = table.terminal(eighteen)
    assert re.search(r"^Sun397 +- +- ", text, re.M) and re.search(r"^Natural +- +- ", text, re.M)
    assert re.search(r"^Mean of the 19 +- +- ", text, re.M) and re.search(r"^CIFAR-100 +51\.50 ", text, re.M)
    assert "missing sun397: an image can't be decoded; prepare: tfds build" in text


def test_the_mean_is_that_of_the_tasks_not_of_the_groups():
    accuracies = {name: 0.9 if task.group == "natural" else 0.1 for name, task in TASKS.items()}
    summary = summarize(accuracies)
    assert summary["mean"] == pytest.approx((7 * 0.9 + 12 * 0.1) / 19)
    assert summary["missing"] == [] and summary["structured"] == pytest.approx(0.1)
    assert list(summary) == [*TASKS, "natural", "specialized", "structured", "mean", "missing"]


@pytest.mark.parametrize(
    ("name", "mean", "groups"),
    [
        ("H/14 JFT", 77.63, (86.69, 87.00, 65.03)),
        ("L/16 JFT", 76.29, (85.56, 86.72, 62.96)),
        ("L/16 I21k", 72.71, (83.27, 84.65, 57.50)),
        ("B/16 full", 65.57, (75.88, 83.36, 47.64)),
        ("B/16 linear", 52.94, (68.93, 77.16, 26.84)),
        ("R50 Sup-Rot", 67.97, None),
        ("R50 Sup", 66.37, None),
        ("R50 scratch", 43.14, None),
    ],
)
def test_published_rows_have_their_published_means(name, mean, groups):
    row = next(row for row in reference.ROWS if row.name == name)
    found = summarize(row.scores)
    assert found["mean"] == pytest.approx(mean, abs=0.011)
    if groups:  # published from unrounded scores: the mean of four rounded ones may be off by 0.05
        np.testing.assert_allclose(
            [found[g] for g in ("natural", "specialized", "structured")], groups, atol=0.02
        )


def test_the_score_is_the_median_of_the_runs(tmp_path):
    store = Store(epath.Path(tmp_path))
    names = [f"final-seed={seed}" for seed in range(3)]
    for seed, accuracy in enumerate((0.1, 0.9, 0.4)):
        assert store.score("dtd", names) is None
        store.write("dtd", names[seed], _result("dtd", seed, accuracy))
    score = store.score("dtd", names)
    assert (score.accuracy, score.runs) == (0.4, (0.1, 0.9, 0.4))
    assert score.sd == pytest.approx(np.std((0.1, 0.9, 0.4), ddof=1))
    assert store.score("dtd", names[:2]).accuracy == pytest.approx(0.5)  # of an even number the middle
    assert store.score("dtd", names[:1]).sd is None
    assert [p.name for p in (tmp_path / "results" / "dtd").iterdir() if p.suffix != ".json"] == []


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"task": "dtd", "trial": "final-seed=0", "kind": "final", "accuracy": null}',
     '{"task": "dtd", "trial": "final-seed=0", "kind": "final", "accuracy": 51.5}',
     '{"task": "pets", "trial": "final-seed=0", "kind": "final", "accuracy": 0.5}'],
)  # fmt: skip
def test_a_damaged_result_is_named(tmp_path, text):
    store = Store(epath.Path(tmp_path))
    path = store.path("dtd", "final-seed=0")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UsageError, match=r"can't use .*dtd/final-seed=0\.json.*remove it"):
        store.read("dtd", "final-seed=0")


def test_csv_latex_and_page_say_the_same(eighteen):
    rows = {row["task"]: row for row in csv.DictReader(io.StringIO(table.as_csv(eighteen)))}
    assert len(rows) == 19 + 3 + 1
    assert (rows["cifar100"]["accuracy"], rows["cifar100"]["runs"]) == ("51.50", "51.50 50.50 52.50")
    assert rows["cifar100"]["setting"] == "lr 0.01, 2500 steps"
    assert rows["sun397"]["accuracy"] == rows["mean"]["accuracy"] == rows["natural"]["accuracy"] == ""
    assert "can't be decoded" in rows["sun397"]["remarks"] and rows["mean"]["H/14 JFT"] == "77.63"

    text = table.latex(eighteen)
    body = [line for line in text.splitlines() if " & " in line]
    assert len(body) == 1 + 23 and all(line.count("&") == 9 and line.endswith(r"\\") for line in body)
    assert r"% B\_16.npz, configs/vtab.py; images normalised by value\_range(-1, 1)" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert r"CIFAR-100 & 51.50 & 85.5 & 81.9" in text and r"Sun397 & -- & 65.0" in text

    html = page.render(eighteen, "today")
    parser = _Tags()
    parser.feed(html)
    assert not parser.open and not re.search(r"<(script|link|img|iframe)|https?://|@import", html)
    assert html.count('class="fill"') == 18 + 2  # the tasks that are through, and the two whole groups
    assert "51.50" in html and "an image can&#x27;t be decoded" in html and "Mean of the 19" in html


def test_test_images_that_could_not_be_read_are_marked():
    content = _content({"dtd": 0.5}, {}, count=98)
    assert "* DTD: 98 of 100 test images could be read" in table.terminal(content)


def test_data_that_is_not_vtabs_is_marked_wherever_it_shows():
    content = _content({"dtd": 0.5}, {}, differences=["test 12, not 1880"], absent_classes=["a", "b"])
    remark = "test 12, not 1880; 2 classes without a training image"
    assert "\nDTD*  " in table.terminal(content) and f"* DTD: {remark}" in table.terminal(content)
    assert remark in table.as_csv(content) and f"% * DTD: {remark}" in table.latex(content)
    (row,) = (line for line in table.latex(content).splitlines() if line.startswith("DTD &"))
    assert row.split(" & ")[1].endswith("$^{*}$")
    assert "DTD*" in page.render(content, "today") and remark in page.render(content, "today")


class _Tags(HTMLParser):
    """Open tags, to find one that is never closed."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
