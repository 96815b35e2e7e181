"""`prepare`: what comes out, what is refused, and that a broken-off run ends like an unbroken one."""

import errno
import json
import os
import signal

import cv2
import numpy as np
import pytest

from tests.preparing.pictures import contents, picture, read, run, write_folder
from vit_jax import cli, prepare
from vit_jax.data.sources import open_source
from vit_jax.errors import RunFailed, UsageError
from vit_jax.preparing import destination as destination_lib
from vit_jax.preparing import writing


def test_a_folder_comes_back_as_it_was(tmp_path, capsys):
    source, out = write_folder(tmp_path / "in"), tmp_path / "out"
    assert run(source, out, "--shards=3") == 0
    assert "train 12 images in 3 shards, test 12 images in 3 shards, 3 classes" in capsys.readouterr().out
    for split in ("train", "test"):
        folder = open_source(f"folder:{source}@{split}", default_split="train")
        made = read(out, split)
        assert made.classes == folder.classes
        assert len(made) == len(folder)
        for i in range(len(made)):
            assert (made[i].image, made[i].label) == (folder[i].image, folder[i].label)
            assert made[i].name == os.path.relpath(folder[i].name, source)
    assert not (out / ".prepare").exists()
    assert run(source, out, "--shards=3") == 0
    assert "finished already" in capsys.readouterr().out


def test_the_result_depends_on_nothing_but_source_and_options(tmp_path):
    write_folder(tmp_path / "a/in")
    write_folder(tmp_path / "b/in")
    run(tmp_path / "a/in", tmp_path / "one", "--shards=5", "--threads=1")
    run(tmp_path / "b/in", tmp_path / "two", "--shards=5", "--threads=4")
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == ["manifest.json"]  # which names the source


def test_splits(tmp_path):
    source = write_folder(tmp_path / "in")
    run(source, tmp_path / "parts", "--split=train=train[:50%]", "--split=dev=train[50%:]")
    assert len(read(tmp_path / "parts")) == len(read(tmp_path / "parts", "dev")) == 6
    run(f"folder:{source}@test", tmp_path / "one")
    assert read(tmp_path / "one", "test").classes == ("cat", "dog", "owl")
    run(source / "train", tmp_path / "flat")
    assert read(tmp_path / "flat", "train")[0].name == "cat/0.jpg"


def test_shuffle_mixes_classes_and_loses_nothing(tmp_path):
    source = write_folder(tmp_path / "in", splits=("train",), per_class=30)
    run(source, tmp_path / "plain")
    run(source, tmp_path / "mixed", "--shuffle=1", "--shards=4")
    plain, mixed = read(tmp_path / "plain"), read(tmp_path / "mixed")
    pairs = [
        sorted((e.image, e.label, e.name) for e in map(s.__getitem__, range(90))) for s in (plain, mixed)
    ]
    assert pairs[0] == pairs[1]
    assert set(mixed.labels()[:20]) == {0, 1, 2} != set(plain.labels()[:20])


def test_names_of_any_bytes(tmp_path):
    source = write_folder(tmp_path / "in", splits=("train",), classes=("été", "猫"))
    odd = os.fsencode(source) + b"/train/\xe9t\xe9"
    os.mkdir(odd)
    with open(odd + b"/\xff.jpg", "wb") as file:
        file.write(picture(7))
    run(source, tmp_path / "out")
    made = read(tmp_path / "out")
    assert [os.fsencode(name) for name in made.classes] == [
        b"\xc3\xa9t\xc3\xa9",
        b"\xe7\x8c\xab",
        b"\xe9t\xe9",
    ]
    assert os.fsencode(made[8].name) == b"train/\xe9t\xe9/\xff.jpg"


def test_bad_images_by_policy(tmp_path, caplog):
    source, out = write_folder(tmp_path / "in"), tmp_path / "out"
    (source / "train/cat/1.jpg").write_bytes(picture(1)[:200])
    (source / "train/owl/2.jpg").write_bytes(b"")
    with pytest.raises(RunFailed, match=r"train/(cat/1|owl/2)\.jpg can't be used: .*--on-bad-image=skip"):
        run(source, out, "--shards=3")
    # The same command with the other policy goes on.
    assert run(source, out, "--shards=3", "--on-bad-image=skip") == 0
    entry = json.loads((out / "manifest.json").read_text())["splits"]["train"]
    assert (entry["count"], entry["class_counts"]) == (10, [3, 4, 3])
    assert entry["skipped"] == [
        {"name": "train/cat/1.jpg", "why": "the JPEG is truncated"},
        {"name": "train/owl/2.jpg", "why": "the file is empty"},
    ]
    assert "skipped train/owl/2.jpg: the file is empty" in caplog.text
    made = read(out)
    names = [made[i].name for i in range(10)]
    assert names[:2] == ["train/cat/0.jpg", "train/cat/2.jpg"]
    assert "train/owl/2.jpg" not in names
    # Unchecked, they are taken as they are.
    run(source, tmp_path / "unchecked", "--no-check")
    assert len(read(tmp_path / "unchecked")) == 12


def test_skipped_images_arent_forgotten_by_a_change_of_policy(tmp_path, monkeypatch):
    source, out = write_folder(tmp_path / "in", splits=("train",)), tmp_path / "out"
    (source / "train/cat/1.jpg").write_bytes(b"")
    _break_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        run(source, out, "--shards=3", "--threads=1", "--on-bad-image=skip")
    monkeypatch.undo()
    with pytest.raises(RunFailed, match=r"skip there, error here: 1 images were left out before.*cat/1"):
        run(source, out, "--shards=3")


def test_nothing_left_is_no_data_set(tmp_path):
    source = write_folder(tmp_path / "in", splits=("train",), classes=("a",), per_class=2)
    for i in range(2):
        (source / f"train/a/{i}.jpg").write_bytes(b"no image")
    with pytest.raises(RunFailed, match="none of the 2 images of train can be used"):
        run(source, tmp_path / "out", "--on-bad-image=skip")


def test_resizing(tmp_path):
    root = tmp_path / "in/train/a"
    root.mkdir(parents=True)
    ramp = np.tile(np.linspace(0, 255, 120, dtype=np.uint8)[None, :, None], (60, 1, 3))
    cv2.imwrite(str(root / "large.png"), ramp)
    small = picture(0, (30, 50))
    (root / "small.jpg").write_bytes(small)
    run(tmp_path / "in", tmp_path / "out", "--resize-short-side=30", "--jpeg-quality=90")
    made = read(tmp_path / "out")
    assert made[1].image == small
    assert made[0].image.startswith(b"\xff\xd8")
    pixels = cv2.imdecode(np.frombuffer(made[0].image, np.uint8), cv2.IMREAD_COLOR)
    assert pixels.shape == (30, 60, 3)
    means = ramp.astype(float).reshape(30, 2, 60, 2, 3).mean((1, 3))
    assert np.abs(pixels - means).max() <= 4  # JPEG at quality 90 on a ramp
    options = json.loads((tmp_path / "out/manifest.json").read_text())["made_from"]["options"]
    assert (options["resize_short_side"], options["jpeg_quality"]) == (30, 90)


def test_arrays_stay_arrays(tmp_path):
    run("digits", tmp_path / "plain")
    run("digits", tmp_path / "small", "--resize-short-side=4")
    digits = open_source("digits@test", default_split="train")
    plain, small = read(tmp_path / "plain", "test"), read(tmp_path / "small", "test")
    assert all(np.array_equal(plain[i].image, digits[i].image) for i in range(360))
    assert plain.labels().tolist() == digits.labels().tolist()
    assert plain[3].name == "test/3"
    assert small[0].image.shape == (4, 4, 1)


def _break_after(monkeypatch, shards: int) -> None:
    """Has the command die after so many shards were noted."""
    noted = 0
    whole = destination_lib.Destination.note

    def note(self, *words):
        nonlocal noted
        if noted == shards:
            raise KeyboardInterrupt
        noted += 1
        whole(self, *words)

    monkeypatch.setattr(destination_lib.Destination, "note", note)


@pytest.mark.parametrize("shards", [0, 1, 4])
def test_a_broken_run_ends_like_an_unbroken_one(tmp_path, monkeypatch, shards):
    source = write_folder(tmp_path / "in")
    run(source, tmp_path / "whole", "--shards=3", "--shuffle=5")
    _break_after(monkeypatch, shards)
    with pytest.raises(KeyboardInterrupt):
        run(source, tmp_path / "broken", "--shards=3", "--shuffle=5", "--threads=1")
    monkeypatch.undo()
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "broken").rglob("*.array_record")}
    assert len(written) == shards + 1  # the last one is there, but isn't noted
    with pytest.raises(UsageError, match=r"no manifest\.json"):
        read(tmp_path / "broken")
    assert run(source, tmp_path / "broken", "--shards=3", "--shuffle=5") == 0
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    kept = [p for p, when in written.items() if p.stat().st_mtime_ns == when]
    assert len(kept) == shards


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 42), (signal.SIGINT, 130)])
def test_signals_stop_it_in_order(tmp_path, monkeypatch, capsys, number, code):
    source = write_folder(tmp_path / "in")
    whole = writing._ShardWriter._read
    seen = 0

    def read_and_signal(self, split, place):
        nonlocal seen
        seen += 1
        if seen == 7:
            os.kill(os.getpid(), number)
            assert self.stop.wait(10)
        return whole(self, split, place)

    monkeypatch.setattr(writing._ShardWriter, "_read", read_and_signal)
    before = signal.getsignal(number)  # a shell that starts this in the background ignores SIGINT for it
    with pytest.raises(SystemExit) as end:
        cli.run(prepare.main, [str(source), str(tmp_path / "out"), "--shards=3", "--threads=1"])
    assert end.value.code == code
    printed = capsys.readouterr()
    assert "the same command continues" in printed.out or printed.err.splitlines()[-1].startswith(
        "error: interr"
    )
    monkeypatch.undo()
    assert signal.getsignal(number) == before
    assert not list((tmp_path / "out").rglob("*.part"))
    run(source, tmp_path / "out", "--shards=3")
    run(source, tmp_path / "whole", "--shards=3")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_full_disk(tmp_path, monkeypatch):
    source, out = write_folder(tmp_path / "in"), tmp_path / "out"
    real = writing.array_record_module.ArrayRecordWriter

    class FullDisk:
        """What array_record says when a write fails."""

        def __init__(self, path, options):
            self._real = real(path, options)

        def write(self, record):
            raise RuntimeError("write() failed: No space left on device; writing x")

        def close(self):
            self._real.close()

    monkeypatch.setattr(writing.array_record_module, "ArrayRecordWriter", FullDisk)
    with pytest.raises(RunFailed, match=r"can't write .*No space left on device.*the same command goes on"):
        run(source, out)
    monkeypatch.undo()
    assert not list(out.rglob("*.array_record*"))
    assert run(source, out) == 0

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(destination_lib.os, "fsync", full)
    with pytest.raises(RunFailed, match="No space left on device"):
        run(source, tmp_path / "other")


def test_other_options_or_another_source_are_refused(tmp_path):
    source = write_folder(tmp_path / "in")
    run(source, tmp_path / "out", "--shards=2")
    for words, difference in (
        ([source, "--shards=3"], r"made otherwise: splits\.test\.shards: 2 there, 3 here .and 1 more"),
        ([source, "--shards=2", "--shuffle=1"], r"options\.shuffle: None there, 1 here"),
        ([source, "--shards=2", "--resize-short-side=8"], r"options\.exif: None there, False here"),
        ([source / "train", "--shards=2"], r"source: 'folder:.*in' there, 'folder:.*in/train' here"),
    ):
        with pytest.raises(UsageError, match=difference):
            run(*words[:1], tmp_path / "out", *words[1:])
    (source / "train/cat/new.jpg").write_bytes(picture(99))
    with pytest.raises(UsageError, match=r"splits\.train\.digest: .* there, .* here"):
        run(source, tmp_path / "out", "--shards=2")


def test_what_is_refused_before_anything_is_written(tmp_path):
    source = write_folder(tmp_path / "in")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    (source / "train" / "empty").mkdir()
    cases = [
        ([source], r"1 words given, not SOURCE DESTINATION"),
        (
            [source, tmp_path / "out"],
            r"split train of folder:.* has no image of class 'empty'.*--classes=FILE",
        ),
        ([tmp_path / "nowhere", tmp_path / "out"], r"nowhere: no such folder"),
        ([source, foreign], r"foreign holds other files, such as thesis\.tex"),
        ([source, foreign / "thesis.tex"], r"thesis\.tex is a file"),
        ([source, source / "out"], r"lies in the source"),
        ([source, "gs://bucket/out"], r"can't be written to an object store"),
        ([source, "/proc/out"], r"can't write /proc/out"),
        ([source, tmp_path / "out", "--shards=0"], r"--shards=0"),
        ([source, tmp_path / "out", "--threads=0"], r"--threads=0"),
        ([source, tmp_path / "out", "--jpeg-quality=90"], r"--jpeg-quality without --resize-short-side"),
        ([source, tmp_path / "out", "--split=x=val"], r"no split 'val'"),
        ([source, tmp_path / "out", "--split=../x"], r"write --split=NAME"),
        ([source, tmp_path / "out", "--classes=imagenet21k"], r"has 4 classes, .*aren't the 21843"),
        ([source, tmp_path / "out", "--shard=2"], r"unknown flag --shard .*--shards"),
    ]
    for words, message in cases:
        with pytest.raises(UsageError, match=message):
            run(*words)
        assert not (tmp_path / "out").exists()
    assert os.listdir(foreign) == ["thesis.tex"]


def test_one_command_at_a_time(tmp_path):
    source = write_folder(tmp_path / "in")
    held = destination_lib.Destination(str(tmp_path / "out"))
    with pytest.raises(UsageError, match="is in use by another prepare"):
        run(source, tmp_path / "out")
    held.release()
    assert run(source, tmp_path / "out") == 0


def test_classes_of_a_file(tmp_path, caplog):
    source = write_folder(tmp_path / "in")
    names = tmp_path / "names.txt"
    names.write_text("owl\nemu\ndog\ncat\n")
    run(source, tmp_path / "out", f"--classes={names}")
    made = read(tmp_path / "out")
    assert made.classes == ("owl", "emu", "dog", "cat")
    assert [made[i].label for i in (0, 4, 8)] == [3, 2, 0]
    assert "split train has no image of class 'emu'" in caplog.text
    names.write_text("owl\ndog\nowl\n")
    with pytest.raises(UsageError, match="names class 'owl' twice"):
        run(source, tmp_path / "other", f"--classes={names}")
    names.write_text("owl\ndog\n")
    with pytest.raises(UsageError, match="has class 'cat', which the class map"):
        run(source, tmp_path / "other", f"--classes={names}")
