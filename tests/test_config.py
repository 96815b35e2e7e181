"""Configurations: loading, arguments, overrides, and one clear error for every mistake."""

import json
import shutil

import pytest

from vit_jax import cli, config
from vit_jax.errors import UsageError


def parse(*words):
    return cli.parse(cli.Parser("prog", ""), words)


def test_shipped_name_and_path_are_the_same_config():
    by_name, by_path = config.load("quickstart"), config.load("configs/quickstart.py")
    assert by_name.to_dict() == by_path.to_dict()
    assert by_name.is_locked


def test_every_shipped_config_has_exactly_the_keys_of_base():
    known = set(config.keys(config.base_config()))
    for name in config.config_names():
        assert set(config.keys(config.load(name))) == known, name


def test_config_file_of_a_user_in_another_folder(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from vit_jax.config import base_config\n"
        "def get_config(arg):\n"
        "    c = base_config()\n"
        "    c.model.name = arg\n"
        "    return c\n"
    )
    assert config.load(f"{file}:L/16").model.name == "L/16"


def test_overrides_by_type():
    parsed = parse(
        "--config=quickstart", "--config.optim.lr=3", "--config.model.image_size=(8,16)", "--config.seed", "7",
        "--config.log_example_ids=true", "--config.data.train=folder:a b,c@train[:50%]",
        "--config.optim.lr_mults=(('head/.*', 10.0), ('.*/norm[12]/.*', 2))",
    )  # fmt: skip
    c = parsed.config
    assert (c.optim.lr, c.model.image_size, c.seed, c.log_example_ids) == (3.0, (8, 16), 7, True)
    assert c.data.train == "folder:a b,c@train[:50%]"
    assert c.optim.lr_mults == (("head/.*", 10.0), (".*/norm[12]/.*", 2))
    assert set(parsed.overrides) == {
        "optim.lr", "model.image_size", "seed", "log_example_ids", "data.train", "optim.lr_mults"
    }  # fmt: skip


def test_a_duration_on_the_command_line_replaces_the_other_units():
    c = parse("--config=quickstart", "--config.total_steps=5", "--config.eval.every_steps=2").config
    assert (c.total_steps, c.total_epochs, c.total_examples) == (5, None, None)
    assert (c.eval.every_steps, c.eval.every_epochs) == (2, None)
    assert c.checkpoint.every_epochs == config.load("quickstart").checkpoint.every_epochs is not None


def test_none_unsets_and_the_last_word_counts():
    parsed = parse("--config=configs/vtab.py", "--config.optim.clip_norm=2", "--config.optim.clip_norm=None")
    assert parsed.config.optim.clip_norm is None
    assert parsed.overrides == ("optim.clip_norm",)
    assert parse("--config=quickstart", "--config.init=runs/lr=None").config.init == "runs/lr=None"
    again = parse("--config=configs/vtab.py", "--config.optim.clip_norm=None", "--config.optim.clip_norm=2.5")
    assert again.config.optim.clip_norm == 2.5


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--config.model.remat=None", "'model.remat' can't be None"),
        ("--config.optim.wieght_decay=0.1", "unknown config key 'optim.wieght_decay'"),
        ("--config.optim.lrr=0.1", "did you mean 'optim.lr'"),
        ("--config.optim=adam", "is a group"),
        ("--config.total_steps=1.5", "total_steps"),
        ("--config.log_example_ids=maybe", "log_example_ids"),
        ("--config.optim.lr=nan", "'optim.lr' is nan"),
        ("--confg.seed=1", "unknown flag --confg.seed"),
        ("stray", "unexpected 'stray'"),
    ],
)
def test_bad_overrides_are_refused_by_name(word, says):
    with pytest.raises(UsageError, match=says.replace(".", r"\.")):
        parse("--config=quickstart", word)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("quikstart", "did you mean 'quickstart'"),
        ("nowhere/none.py", "no config file"),
        ("quickstart:arg", "takes no argument"),
    ],
)
def test_bad_config_names_are_refused(spec, says):
    with pytest.raises(UsageError, match=says):
        config.load(spec)


def test_a_config_file_with_an_unknown_key_names_it(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(
        "from vit_jax.config import base_config\n"
        "def get_config():\n"
        "    c = base_config()\n"
        "    c.optim.weight_decay = 1.0\n"
        "    return c\n"
    )
    with pytest.raises(UsageError, match="weight_decay"):
        config.load(str(file))


def test_json_round_trip_keeps_tuples_and_refuses_unknown_keys():
    pairs = "--config.optim.lr_mults=(('head/.*', 10.0),)"
    c = parse("--config=quickstart", "--config.model.image_size=(8,16)", pairs).config
    stored = json.loads(json.dumps(config.to_dict(c)))
    assert config.from_dict(stored).to_dict() == c.to_dict()
    with pytest.raises(UsageError, match=r"optim\.lrr"):
        config.from_dict({"optim": {"lrr": 1}})


def test_argument_parser():
    defaults = {"variant": "B/16", "aug": "none"}
    parsed = config.parse_argument("L/16,aug=medium1", defaults, positional="variant")
    assert parsed == {"variant": "L/16", "aug": "medium1"}
    for bad in ("augg=1", "L/16,B/16"):
        with pytest.raises(UsageError):
            config.parse_argument(bad, defaults, positional="variant")


def test_configs_are_found_inside_the_package_of_a_wheel(tmp_path, monkeypatch):
    package = tmp_path / "vit_jax"
    shutil.copytree(config.shipped_configs(), package / "configs")
    monkeypatch.setattr(config, "_PACKAGE", package)
    assert config.shipped_configs() == package / "configs"
    assert config.load("configs/quickstart.py").global_batch > 0


def test_configs_of_subfolders_have_names_too(tmp_path, monkeypatch):
    package = tmp_path / "vit_jax"
    (package / "configs" / "small").mkdir(parents=True)
    for name in ("base", "quickstart"):
        shutil.copy(config.shipped_configs() / f"{name}.py", package / "configs")
    shutil.copy(package / "configs" / "quickstart.py", package / "configs" / "small" / "study.py")
    monkeypatch.setattr(config, "_PACKAGE", package)
    monkeypatch.chdir(tmp_path)
    assert config.config_names() == ["base", "quickstart", "small/study"]
    for spec in ("small/study", "configs/small/study.py", f"{package}/configs/small/study.py"):
        assert config.load(spec).to_dict() == config.load("quickstart").to_dict()
    for spec, says in (
        ("study", "did you mean 'small/study'"),
        ("small/quickstart", "no shipped config"),
        ("configs/study.py", "no config file 'configs/study.py'"),
        ("small/study.py", "no config file"),
    ):
        with pytest.raises(UsageError, match=says):
            config.load(spec)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--config.checkpoint.keep=0", "checkpoint.keep is 0"),
        ("--config.seed=4294967296", "seed is 4294967296"),
        ("--config.mixup_alpha=-1", "mixup_alpha is -1"),
        ("--config.data.prefetch_batches=0", "data.prefetch_batches is 0"),
        ("--config.nonfinite_limit=0", "nonfinite_limit is 0"),
        ("--config.global_batch=0", "global_batch is 0"),
    ],
)
def test_numbers_outside_their_range_are_refused(word, says):
    with pytest.raises(UsageError, match=says.replace(".", r"\.")):
        parse("--config=quickstart", word)


def test_every_range_is_of_a_known_key():
    assert set(config.RANGES) <= set(config.keys(config.base_config()))
