"""What is sent to the workers."""

import tarfile

import pytest

from launch import bundle, tpu_commands
from launch.accelerators import tpu_slice
from launch.command import Refused
from tests.launch.commands import check_shell


def test_the_bundle_has_the_working_tree_and_the_configs_of_the_command(clone, tmp_path):
    files = bundle.code_files(clone)
    assert sorted(files) == [".gitignore", "configs/mine.py", "setup.py", "vit_jax/a.py"]
    (tmp_path / "my configs").mkdir()
    (tmp_path / "my configs/l16.py").write_text("config")
    configs = bundle.config_files(["train", "--config=my configs/l16.py:a=b.py", "--x"], tmp_path)
    assert list(configs) == ["my configs/l16.py"]
    assert bundle.config_files(["train", "--config", "my configs/l16.py"], tmp_path) == configs
    assert bundle.config_files(["train", "--config=quickstart", "--config.total_steps=3"], tmp_path) == {}
    target = tmp_path / "b.tgz"
    bundle.pack(target, files | configs, {"setup.sh": "é"})
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as tar:
        assert tar.extractfile("code/vit_jax/a.py").read() == b"edited"
        assert tar.extractfile("code/my configs/l16.py").read() == b"config"
        assert tar.extractfile("setup.sh").read() == "é".encode()
    wheel = tmp_path / "vit_jax-0.1.0-py3-none-any.whl"
    wheel.write_text("")
    assert list(bundle.code_files(wheel)) == [wheel.name]
    with pytest.raises(Refused, match="no code in"):
        bundle.code_files(tmp_path)
    with pytest.raises(Refused, match="outside of this folder"):
        bundle.config_files([f"--config={tmp_path}/my configs/l16.py"], tmp_path)


def test_a_wheel_is_installed_from_the_bundle():
    spec = tpu_commands.Spec("l16", "z", "p", tpu_slice("v5e-8"))
    text = tpu_commands.setup_script(spec, "vit_jax-0.1.0-py3-none-any.whl")
    assert "'./vit_jax-0.1.0-py3-none-any.whl[tpu]'" in text and "-e" not in text.split()
    check_shell(text)
    check_shell(tpu_commands.setup_script(spec))
