"""Whose folder is it, and what ran there."""

import json
import os
import sys
from pathlib import Path

import pytest

from vit_jax import workdir
from vit_jax.errors import UsageError

CONFIG = {
    "seed": 0,
    "total_steps": 100,
    "mesh": {"replica": 1, "fsdp": -1},
    "optim": {"lr": 1e-3, "betas": (0.9, 0.999)},
    "note": None,
}
MAY_CHANGE = ("mesh.*", "log_*")
HINTS = {"total_*": "set allow_total_change=true"}


def _open(path, config, may_change=MAY_CHANGE, defaults=None):
    command = ["python", "-m", "vit_jax.train"]
    return workdir.open_workdir(
        path, config, may_change=may_change, hints=HINTS, command=command, defaults=defaults or {}
    )


def _changed(**changes):
    return {**CONFIG, **changes}


def test_a_new_folder_gets_its_records(tmp_path):
    opened = _open(tmp_path / "runs" / "a", CONFIG)
    assert opened.stored is None and opened.changed == {}
    stored = workdir.read_config(tmp_path / "runs" / "a")
    assert stored["optim"] == {"lr": 1e-3, "betas": [0.9, 0.999]}
    (start,) = json.loads((opened.path / "run.json").read_text())["starts"]
    assert start["command"] == ["python", "-m", "vit_jax.train"]
    assert start["devices"] == {"platform": "cpu", "kind": "cpu", "count": 8, "processes": 1}
    assert start["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert start["versions"]["jax"] and start["versions"]["orbax-checkpoint"]
    assert sorted(path.name for path in opened.path.iterdir()) == [".lock", "config.json", "run.json"]


def test_the_same_config_continues_and_each_start_is_recorded(tmp_path):
    _open(tmp_path, CONFIG)
    opened = _open(tmp_path, _changed(mesh={"replica": 8, "fsdp": 1}))
    assert opened.stored["mesh"] == {"replica": 1, "fsdp": -1}
    assert opened.changed == {"mesh.replica": (1, 8), "mesh.fsdp": (-1, 1)}
    starts = json.loads((tmp_path / "run.json").read_text())["starts"]
    assert [start["changed"] for start in starts] == [{}, {"mesh.fsdp": [-1, 1], "mesh.replica": [1, 8]}]
    assert workdir.read_config(tmp_path)["mesh"] == {"replica": 8, "fsdp": 1}


def test_a_folder_of_another_config_is_refused_and_left_alone(tmp_path):
    _open(tmp_path, CONFIG)
    for step in (126000, 127000):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(UsageError) as refusal:
        _open(tmp_path, _changed(optim={"lr": 3e-3, "betas": (0.9, 0.95)}, mesh={"replica": 2, "fsdp": 1}))
    text = str(refusal.value)
    assert f"{tmp_path} holds another run (steps 126000, 127000)" in text
    assert "optim.lr is 0.001 there, 0.003 here" in text
    assert "optim.betas is [0.9, 0.999] there, [0.9, 0.95] here" in text
    assert "mesh" not in text and "--workdir" in text and "allow_total_change" not in text
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_another_total_is_refused_unless_allowed(tmp_path):
    _open(tmp_path, CONFIG)
    with pytest.raises(UsageError, match=r"total_steps is 100 there, 200 here.*set allow_total_change=true"):
        _open(tmp_path, _changed(total_steps=200))
    opened = _open(tmp_path, _changed(total_steps=200), may_change=(*MAY_CHANGE, "total_*"))
    assert opened.changed == {"total_steps": (100, 200)}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1.0}, {}),
        ({"a": 1}, {"a": True}, {"a": (1, True)}),
        ({"a": None}, {}, {"a": (None, "(absent)")}),
        ({}, {"b": {"c": 0}}, {"b.c": ("(absent)", 0)}),
        ({"b": {}}, {"b": {"c": 0}}, {"b": ({}, "(absent)"), "b.c": ("(absent)", 0)}),
    ],
)
def test_differences(old, new, expected):
    assert workdir.differences(old, new) == expected


def test_a_run_of_an_older_version_goes_on_where_new_keys_stand_at_their_defaults(tmp_path):
    _open(tmp_path, CONFIG)
    newer = _changed(cutmix_alpha=0.0, optim={**CONFIG["optim"], "power": 1.0})
    defaults = {"cutmix_alpha": 0.0, "optim": {"lr": 0.5, "power": 1.0}}
    opened = _open(tmp_path, newer, defaults=defaults)
    assert opened.changed == {}
    del opened
    with pytest.raises(UsageError, match=r"cutmix_alpha is 0\.0 there, 1\.0 here"):
        _open(tmp_path, {**newer, "cutmix_alpha": 1.0}, defaults=defaults)


def test_checkpoints_without_a_config_are_refused(tmp_path):
    (tmp_path / "checkpoints" / "30").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"holds checkpoints \(step 30\) but no config.json"):
        _open(tmp_path, CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_a_folder_with_other_things_is_fine(tmp_path):
    (tmp_path / "slurm-1.log").write_text("started")
    assert _open(tmp_path, CONFIG).stored is None


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder where even root can't write")
def test_an_unwritable_workdir_is_named():
    with pytest.raises(UsageError, match="can't write to the workdir /proc/run"):
        _open("/proc/run", CONFIG)


def test_a_file_is_no_workdir(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        _open(tmp_path / "run", CONFIG)
    with pytest.raises(UsageError, match="can't write to the workdir"):
        _open(tmp_path / "run" / "below", CONFIG)


def test_a_broken_config_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"seed": 0')
    with pytest.raises(UsageError, match=r"can.t read .*config\.json"):
        _open(tmp_path, CONFIG)
    with pytest.raises(UsageError, match="does not exist"):
        workdir.read_config(tmp_path / "elsewhere")


def test_classes_are_stored_in_order_and_must_stay(tmp_path):
    names = ("10", "2", "Ünï côde", "a b", "")
    workdir.write_classes(tmp_path, names)
    workdir.write_classes(tmp_path, names)
    assert workdir.read_classes(tmp_path) == names
    with pytest.raises(UsageError, match="number 1 is '2' there, '3' here"):
        workdir.write_classes(tmp_path, ("10", "3", "Ünï côde", "a b", ""))
    with pytest.raises(UsageError, match="line break"):
        workdir.write_classes(tmp_path, ("a\nb",))


def test_plain_is_strict_json():
    assert workdir.plain({"a": (1, float("inf")), 3: {"b": float("nan")}}) == {
        "a": [1, None],
        "3": {"b": None},
    }
    with pytest.raises(TypeError, match="no place"):
        workdir.plain({"a": object()})


def test_a_folder_in_use_is_refused_and_free_again_when_its_process_is_gone(tmp_path):
    first = _open(tmp_path, CONFIG)
    with pytest.raises(UsageError, match=rf"is in use by process {os.getpid()} on "):
        _open(tmp_path, CONFIG)
    del first
    _open(tmp_path, CONFIG)


def test_a_damaged_record_of_starts_is_begun_anew(tmp_path, caplog):
    _open(tmp_path, CONFIG)
    (tmp_path / "run.json").write_text("{half")
    _open(tmp_path, CONFIG)
    assert "starting a new record" in caplog.text
    assert len(json.loads((tmp_path / "run.json").read_text())["starts"]) == 1
