"""`evaluate --report` on runs, on one that has logged nothing, on bare weights, and what it refuses."""

import json
import shutil
import socket

import pytest

from tests import saved_run
from tests.collectives import own_lines
from tests.integration.command import finish
from tests.integration.test_evaluate import FEWSHOT, evaluate, photos, start, strict  # noqa: F401 - a fixture
from tests.report.pages import Page
from vit_jax.records import open_records


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with random parameters."""
    path = tmp_path_factory.mktemp("runs") / "digits & <co>"
    saved_run.save(path)
    return path


def sections(page):
    return [text for level, text in page.headings if level == "h2"]


def test_a_run_that_has_logged_and_not_ended(run, tmp_path):
    copy = tmp_path / run.name
    shutil.copytree(run, copy)
    log = open_records(copy, "metrics")
    for step in (1, 2, 3):
        log.append({"step": step, "train/loss": 3.0 / step, "train/lr": 0.1, "train/img_per_sec": 50.0})
    log.append({"step": 3, "eval/test/accuracy": 0.5, "eval/test/loss": 1.0})
    log.close()
    done = evaluate(f"--checkpoint={copy}", "--data=digits@test[:101]", "--report", devices=2)
    assert done.code == 0, done.err
    found = strict(own_lines(done.out)[-1])
    page = Page((copy / "report.html").read_text())
    assert len(sections(page)) == 9
    assert f"{found['eval/test/correct']} of 101 right" in page.text and "digits@test[:101]" in page.text
    assert "it is still going, or was killed; the last step logged is 3" in page.text
    assert "taken for" in page.text and "2 × cpu" in page.text and "digits & <co>" in page.text
    kinds = [tag for tag, _ in page.elements]
    assert kinds.count("svg") == 5  # four curves and the reliability diagram
    assert (
        "No published result" in page.text
        and "rollout follows attention back from the class token" in page.text
    )
    assert "--data=digits@test[:101]" in page.text and "vit_jax.evaluate" in page.text


def test_a_run_without_metrics_to_a_file_of_ones_choice(run, tmp_path):
    target = tmp_path / "page.html"
    before = sorted(path.name for path in run.iterdir())
    done = evaluate(f"--checkpoint={run}", f"--report={target}", f"--details={tmp_path / 'details.json'}")
    assert done.code == 0, done.err
    assert sorted(path.name for path in run.iterdir()) == before
    page = Page(target.read_text())
    assert "nothing is logged of loss, accuracy, learning rate, throughput" in page.text
    worst = json.loads((tmp_path / "details.json").read_text())["test/confusion"]
    count, label, prediction = max(
        (n, i, j) for i, row in enumerate(worst) for j, n in enumerate(row) if i != j
    )
    first = next(text for level, text in page.headings if level == "h3")
    assert first.startswith(f"{label} taken for {prediction}: {count} of {sum(worst[label])} ")


def test_bare_weights_that_classify_nothing(photos, golden, tmp_path):  # noqa: F811 - the fixture
    target = tmp_path / "page.html"
    words = (f"--checkpoint={golden / 'hf' / 'vit'}", f"{FEWSHOT}:data=folder:{photos}", f"--report={target}")
    refused = evaluate(*words[:2], "--report")
    assert refused.code == 2 and "is no run" in refused.err and "--report=FILE.html" in refused.err
    done = evaluate(*words, "--config.fewshot.shots=(1,)", "--config.fewshot.seeds=1")
    assert done.code == 0, done.err
    page = Page(target.read_text())
    assert len(sections(page)) == 9 and "nothing is known of their training" in page.text
    assert "nothing was classified" in page.text and "1shot/accuracy" in page.text
    assert [attrs for tag, attrs in page.elements if tag == "img"]  # the inner views of test images


def test_a_page_that_cannot_be_written_takes_no_results_back(run, tmp_path):
    for name in ("page.txt", "none/page.html"):
        refused = evaluate(f"--checkpoint={run}", f"--report={tmp_path / name}")
        assert refused.code == 2 and "give a file ending in .html in an existing folder" in refused.err
    (tmp_path / "page.html").mkdir()
    done = evaluate(f"--checkpoint={run}", "--data=digits@test[:16]", f"--report={tmp_path / 'page.html'}")
    assert done.code == 1 and "page.html isn't written" in done.err.splitlines()[-1]
    assert strict(done.out)["eval/test/count"] == 16


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_make_one_page(run, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    words = (f"--checkpoint={run}", f"--report={tmp_path / 'page.html'}")
    both = [start(*words, devices=2, env=env | {"JAX_PROCESS_ID": str(i)}) for i in range(2)]
    main, other = [finish(process) for process in both]
    assert (main.code, other.code) == (0, 0), main.err + other.err
    assert "report: " in main.err and "report: " not in other.err
    page = Page((tmp_path / "page.html").read_text())
    assert "4 × cpu" in page.text and "taken for" in page.text
    assert len([tag for tag, _ in page.elements if tag == "img"]) > 4
