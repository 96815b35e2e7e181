"""The predict command on a trained run: its three forms, odd paths, what can't be read, and exit codes."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.data import odd_files
from tests.integration.command import ROOT, Done, environment, finish, terminal_text
from vit_jax import cli, predict
from vit_jax.data.sources import open_source

RESIZE = "--preprocess=decode|resize(8)|value_range(-1, 1)"


@pytest.fixture(scope="module")
def run(finished) -> Path:
    return finished("plain")


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return open_source("digits@test", default_split="test").labels()


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """The test split as 360 PNG files."""
    folder = tmp_path_factory.mktemp("photos")
    source = open_source("digits@test", default_split="test")
    for i in range(len(source)):
        cv2.imwrite(str(folder / f"{i:03}.png"), source[i].image)
    return folder


def start(*words: str) -> Done:
    """Runs the command as users do."""
    return finish(
        subprocess.Popen(
            [sys.executable, "-m", "vit_jax.predict", *map(str, words)], cwd=ROOT, env=environment(1),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
            errors="surrogateescape",
        )
    )  # fmt: skip


@pytest.fixture
def called(capfdbinary):
    """A function that runs the command in this process."""

    def call(*words: str) -> Done:
        with pytest.raises(SystemExit) as e:
            cli.run(predict.main, list(map(str, words)))
        out, err = capfdbinary.readouterr()
        return Done(e.value.code, out.decode(errors="surrogateescape"), err.decode(), 0.0)

    return call


def strict(text: str) -> list:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_of_a_folder_agrees_with_evaluate(run, photos, labels):
    done = start(f"--checkpoint={run}", "--json", "--batch=eval", "--top=10", photos)
    assert done.code == 0 and "%|" not in done.err and "error" not in done.err, done.err
    found = strict(done.out)
    assert [entry["path"] for entry in found] == [f"{photos}/{i:03}.png" for i in range(360)]
    best = [entry["predictions"][0]["index"] for entry in found]
    for entry in found:
        assert list(entry) == ["path", "predictions"] and len(entry["predictions"]) == 10
        assert all(list(p) == ["class", "index", "probability"] for p in entry["predictions"])
        assert all(p["class"] == str(p["index"]) for p in entry["predictions"])
        assert sum(p["probability"] for p in entry["predictions"]) == pytest.approx(1, abs=1e-5)
    evaluated = subprocess.run(
        [sys.executable, "-m", "vit_jax.evaluate", f"--checkpoint={run}"],
        cwd=ROOT, env=environment(1), capture_output=True, text=True,
    )  # fmt: skip
    assert json.loads(evaluated.stdout)["eval/test/correct"] == sum(best == labels)


def test_csv_and_table_and_a_file(run, photos, called, tmp_path):
    words = (f"--checkpoint={run}", photos / "000.png", "--top=3", photos / "001.png")
    expected = [
        (entry["path"], rank, p["class"], p["index"], p["probability"])
        for entry in strict(called(*words, "--json").out)
        for rank, p in enumerate(entry["predictions"], 1)
    ]
    assert len(expected) == 6
    done = called(*words, "--csv", f"--output={tmp_path / 'out.csv'}")
    assert (done.code, done.out) == (0, "")
    rows = list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert rows[0] == ["path", "rank", "class", "index", "probability"]
    assert [(p, int(r), c, int(i), float(x)) for p, r, c, i, x in rows[1:]] == expected
    lines = called(*words).out.splitlines()
    assert lines[0].split() == ["path", "probability", "class"] and len(lines) == 7
    assert [line.split() for line in lines[1:]] == [[p, f"{x:.4f}", c] for p, _, c, _, x in expected]
    assert len({line.rindex("  ") for line in lines[1:]}) == 1


def test_paths_come_out_byte_for_byte(run, called, tmp_path):
    folder = odd_files.unpack("unicode_names", tmp_path)
    raw = os.path.join(os.fsencode(tmp_path), b"a b\xff%20.png")
    Path(os.fsdecode(raw)).write_bytes(odd_files.read("gray_L.png"))
    words = (f"--checkpoint={run}", RESIZE, "--top=1", folder, os.fsdecode(raw))
    expected = [os.path.join(d, f) for d, _, names in os.walk(os.fsencode(folder)) for f in names]
    expected = [*sorted(expected), raw]
    assert len(expected) == 7

    done = called(*words, "--json")
    assert done.code == 0, done.err
    done.out.encode()  # strict: JSON is UTF-8 even if a path isn't
    assert [os.fsencode(entry["path"]) for entry in strict(done.out)] == expected
    assert "猫" in done.out and "é" in done.out and "100%" in done.out
    rows = list(csv.reader(io.StringIO(called(*words, "--csv").out)))
    assert [os.fsencode(row[0]) for row in rows[1:]] == expected
    lines = called(*words).out.splitlines()[1:]
    assert all(line.startswith(os.fsdecode(path)) for line, path in zip(lines, expected, strict=True))


def test_class_names_come_out_as_they_are(run, photos, called, tmp_path):
    names = ["été", "猫", "a, b", 'say "x"', "100%", *"56789"]
    (tmp_path / "names").write_text("\n".join(names), encoding="utf-8")
    words = (f"--checkpoint={run}", f"--classes={tmp_path / 'names'}", "--top=10", photos / "000.png")
    (entry,) = strict(called(*words, "--json").out)
    assert {p["index"]: p["class"] for p in entry["predictions"]} == dict(enumerate(names))
    rows = list(csv.reader(io.StringIO(called(*words, "--csv").out)))
    assert {int(row[3]): row[2] for row in rows[1:]} == dict(enumerate(names))


def test_what_cannot_be_read_is_named_and_the_others_are_predicted(run, photos, tmp_path):
    jpeg = odd_files.read("cmyk.jpg")
    files = {"empty.jpg": b"", "text.png": b"no image", "cut.jpg": jpeg[: len(jpeg) // 2]}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    good = [str(photos / "000.png"), str(photos / "001.png")]
    done = start(f"--checkpoint={run}", "--json", good[0], tmp_path, tmp_path / "missing.png", good[1])
    assert done.code == 1
    assert [entry["path"] for entry in strict(done.out)] == good
    for name in [*files, "missing.png"]:
        assert sum(line.startswith(f"{tmp_path / name}: ") for line in done.err.splitlines()) == 1
    assert done.error == "error: 4 of 6 images couldn't be used (they are named above)"

    done = start(f"--checkpoint={run}", "--json", tmp_path / "missing.png")
    assert done.code == 1 and strict(done.out) == []


def test_a_model_that_learned_nothing_but_nan_gives_null(run, photos, called, monkeypatch):
    monkeypatch.setattr(predict.Predictor, "probabilities", lambda self, logits: np.full_like(logits, np.nan))
    (entry,) = strict(called(f"--checkpoint={run}", "--json", "--top=1", photos / "000.png").out)
    assert entry["predictions"] == [{"class": "0", "index": 0, "probability": None}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no images given"),
        (["{empty}"], "no images in"),
        (["{photo}", "{empty}"], "no images in"),
        (["https://example.org/a.jpg"], "https://example.org/a.jpg is a URL, which isn't read (download it first)"),
        (["{photo}", "--topp=3"], "unknown flag --topp (did you mean '--top'"),
        (["{photo}", "--top=0"], "--top is 0"),
        (["{photo}", "--batch=0"], "the batch size is 0"),
        (["{photo}", "--batch=x"], "argument --batch"),
        (["{photo}", "--json", "--csv"], "not allowed with"),
        (["{photo}", "--classes={photo}"], "not UTF-8"),
        (["{photo}", "--preprocess=decode|resize(16)"], "the model takes [8, 8, 3]"),
        (["{photo}", "--subtree=ema"], "has no 'ema'"),
        (["{photo}", "--output=/nowhere/out.json"], "can't write /nowhere/out.json: No such file or directory"),
        (["{photo}", "--checkpoint={photo}"], "no intact .npz file"),
    ],
)  # fmt: skip
def test_refused_with_one_line(run, photos, called, tmp_path, words, message):
    (tmp_path / "empty").mkdir()
    given = [w.format(photo=photos / "000.png", empty=tmp_path / "empty") for w in words]
    done = called(f"--checkpoint={run}", *given)
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith("error: ") and message in done.error


def test_a_terminal_shows_a_bar_and_names_what_cannot_be_read(run, photos, tmp_path):
    (tmp_path / "empty.jpg").write_bytes(b"")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 200))
    output = tmp_path / "answers.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "vit_jax.predict", f"--checkpoint={run}", "--json", f"--output={output}",
         photos, tmp_path],
        cwd=ROOT, env=environment(1), stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = terminal_text(ours)
    assert process.wait(timeout=60) == 1 and len(strict(output.read_text())) == 360
    assert "361/361" in shown and "image/s" in shown
    assert f"{tmp_path}/empty.jpg: the file is empty" in shown


def test_a_name_that_begins_with_a_dash(run, photos, called, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("-x.png").write_bytes((photos / "000.png").read_bytes())
    done = called(f"--checkpoint={run}", "--json", "--", "-x.png")
    assert done.code == 0 and strict(done.out)[0]["path"] == "-x.png"
