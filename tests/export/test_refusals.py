"""What both exports refuse, and that no file is lost: not an old one, not half of a new one."""

import functools
import os
import sys
from pathlib import Path

import jax
import numpy as np
import onnx
import pytest

from tests.export.tiny_models import images, tiny
from vit_jax.errors import UsageError
from vit_jax.export import load_stablehlo, read_back_logits_onnx, write_onnx, write_stablehlo

WRITERS = {"onnx": write_onnx, "stablehlo": write_stablehlo}
both = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@both
def test_what_is_refused_leaves_nothing(write, tmp_path):
    model, params = tiny()
    out = tmp_path / "out"
    for keywords, message in [
        ({"class_names": ["cat"]}, "1 class names .* 3 classes"),
        ({"normalization": ([0.5], [0.5])}, "1 means .* 3 channels"),
        ({"metadata": {"model": 1}}, "'model'"),
    ]:
        with pytest.raises(UsageError, match=message):
            write(model, params, out, **keywords)
    headless = {name: leaf for name, leaf in params.items() if name != "head"}
    for wrong, message in [
        (headless, "2 differ.*missing: head/bias"),
        ({**params, "extra": np.zeros(3)}, "not in the model: extra"),
        ({**params, "posemb": np.zeros((1, 9, 32))}, r"posemb: \(1, 9, 32\), the model has \(1, 6, 32\)"),
    ]:
        with pytest.raises(UsageError, match=message):
            write(model, wrong, out)
    with pytest.raises(UsageError, match="not a local path"):
        write(model, params, "gs://bucket/out")
    assert not os.listdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="file/out can't be written"):
        write(model, params, tmp_path / "file/out")
    assert contents(tmp_path) == {"file": b"mine"}


@both
def test_nothing_is_overwritten_unasked(write, tmp_path):
    model, params = tiny()
    out = tmp_path / "new" / "out"
    write(model, params, out)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="out exists already"):
        write(model, params, out)
    assert contents(tmp_path) == before
    write(model, jax.tree.map(lambda leaf: leaf + 1, params), out, overwrite=True)
    after = contents(tmp_path)
    assert after.keys() == before.keys() and after != before


@both
def test_overwriting_spares_what_is_no_export(write, tmp_path):
    model, params = tiny()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_text("mine")
    with pytest.raises(UsageError, match=r"photos is (a folder|not an exported folder)"):
        write(model, params, tmp_path / "photos", overwrite=True)
    assert contents(tmp_path) == {"photos/cat.jpg": b"mine"}


@both
def test_a_failure_while_writing_keeps_the_old(write, tmp_path, monkeypatch):
    model, params = tiny()
    write(model, params, tmp_path / "out")
    before = contents(tmp_path)

    def full_disk(*_arguments, **_keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(onnx, "save", full_disk)
    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(UsageError, match="out can't be written: No space left on device"):
        write(model, jax.tree.map(lambda leaf: leaf + 1, params), tmp_path / "out", overwrite=True)
    assert contents(tmp_path) == before


@both
def test_a_failure_at_the_last_step_brings_the_old_back(write, tmp_path, monkeypatch):
    model, params = tiny()
    write(model, params, tmp_path / "out")
    before = contents(tmp_path)
    arrivals = []

    def fail_at_first(source, destination, real=os.rename):
        if destination == tmp_path / "out":
            arrivals.append(source)
            if len(arrivals) == 1:
                raise PermissionError(13, "Permission denied")
        real(source, destination)

    monkeypatch.setattr(os, "rename", fail_at_first)
    monkeypatch.setattr(os, "replace", fail_at_first)
    with pytest.raises(UsageError, match="out can't be written: Permission denied"):
        write(model, params, tmp_path / "out", overwrite=True)
    assert arrivals and contents(tmp_path) == before


def test_reading_back_refuses_by_name(tmp_path):
    model, params = tiny()
    write_onnx(model, params, tmp_path / "model.onnx")
    write_stablehlo(model, params, tmp_path / "out")
    onnx_logits = functools.partial(read_back_logits_onnx, tmp_path / "model.onnx")
    for logits in (onnx_logits, load_stablehlo(tmp_path / "out")):
        for shape, dtype in [((1, 48, 32, 3), "float32"), ((1, 32, 48, 3), "uint8"), ((3,), "float32")]:
            with pytest.raises(UsageError, match=rf"images of shape .*{dtype}"):
                logits(np.zeros(shape, dtype))
    with pytest.raises(UsageError, match="no file"):
        read_back_logits_onnx(tmp_path / "none.onnx", images(model, 1))
    with pytest.raises(UsageError, match=r"holds no model\.stablehlo"):
        load_stablehlo(tmp_path)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(UsageError, match=r"bad\.onnx can't be read"):
        read_back_logits_onnx(tmp_path / "bad.onnx", images(model, 1))
    (tmp_path / "out/model.stablehlo").write_bytes(b"no program")
    with pytest.raises(UsageError, match="out can't be read"):
        load_stablehlo(tmp_path / "out")


def test_missing_packages_name_the_extra(tmp_path, monkeypatch):
    model, params = tiny()
    for package, call in {
        "onnx": lambda: write_onnx(model, params, tmp_path / "model.onnx"),
        "onnxruntime": lambda: read_back_logits_onnx(tmp_path / "model.onnx", images(model, 1)),
        "flatbuffers": lambda: write_stablehlo(model, params, tmp_path / "out"),
    }.items():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(UsageError, match=rf"'{package}'.*pip install 'vit_jax\[export\]'"):
                call()
    assert not os.listdir(tmp_path)
