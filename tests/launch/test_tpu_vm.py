"""Queued resources: command lines as golden files, and the commands with a stand-in for gcloud."""

import os
import re
import shlex
import tarfile

import pytest

from launch import tpu_commands
from launch.accelerators import tpu_slice
from tests.launch.commands import HARD_COMMAND, SECRET, call, check_golden, check_shell, dry_run, refusal

PLACE = ["--name=l16", "--zone=us-west4-a", "--project=p"]
V5E = [*PLACE, "--accelerator=v5litepod-16"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tpu_up", ["up", *V5E, "--spot"]),
        ("tpu_up_slices", ["up", *PLACE, "--accelerator=v5p-32", "--slices=2", "--reserved",
                           "--valid-until-duration=6h", "--compile-cache=gs://b/cache", "--grace-seconds=60"]),
    ],
)  # fmt: skip
def test_dry_run_of_up(name, words, clone):
    text = dry_run("tpu_vm", *words, f"--code={clone}")
    check_golden(f"{name}.sh", text)
    check_shell(text)


def test_dry_run_of_the_rest():
    lines = []
    for words in (
        ["create", *V5E], ["wait", *PLACE], ["describe", *PLACE], ["tail", *PLACE],
        ["tail", *PLACE, "--worker=all"], ["tail", *PLACE, "--slices=2"],
        ["stop", *PLACE, "--slices=2"], ["delete", *PLACE],
    ):  # fmt: skip
        done = call("tpu_vm", *words, "--dry-run")
        assert done.returncode == 0, done.stderr
        lines.append(done.stdout)
    check_golden("tpu_rest.sh", "".join(lines))
    check_shell("".join(lines))


@pytest.mark.parametrize(
    ("accelerator", "type_", "runtime"),
    [
        ("v4-32", "v4-32", "tpu-ubuntu2204-base"),
        ("v5litepod-16", "v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5e-16", "v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5p-32", "v5p-32", "v2-alpha-tpuv5"),
        ("v6e-16", "v6e-16", "v2-alpha-tpuv6e"),
    ],
)
def test_names_of_each_generation(accelerator, type_, runtime):
    argv = tpu_commands.create(tpu_commands.Spec("l16", "z", "p", tpu_slice(accelerator)))
    assert f"--accelerator-type={type_}" in argv and f"--runtime-version={runtime}" in argv
    assert "--node-id=l16" in argv and not {"--spot", "--reserved"} & set(argv)


def test_several_slices_are_numbered_and_all_workers_are_meant():
    spec = tpu_commands.Spec("l16", "z", "p", tpu_slice("v5e-16"), slices=3, capacity="spot")
    argv = tpu_commands.create(spec)
    assert {"--node-count=3", "--node-prefix=l16", "--spot"} < set(argv) and "--node-id=l16" not in argv
    lines = tpu_commands.ssh(spec, "true") + tpu_commands.scp(spec, "f")
    assert [line[5] for line in lines[:3]] == ["l16-0", "l16-1", "l16-2"]
    assert [line[6] for line in lines[3:]] == ["l16-0:", "l16-1:", "l16-2:"]
    assert all("--worker=all" in line for line in lines)


@pytest.mark.parametrize("accelerator", ["v4-8", "v5p-8", "v5e-8", "v6e-8"])
def test_older_generations_are_bound_to_the_socket_of_their_chips(accelerator):
    spec = tpu_commands.Spec("l16", "z", "p", tpu_slice(accelerator), command=("train",))
    bound = "numactl --membind=0 --cpunodebind=0 train" in tpu_commands.run_scripts(spec)["run.sh"]
    installed = "install --yes --quiet numactl" in tpu_commands.setup_script(spec)
    assert bound == installed == (accelerator[:3] in ("v4-", "v5p"))


@pytest.fixture
def gcloud(tmp_path):
    """A stand-in on the PATH that notes its arguments, keeps what it copies, and ends with a code."""
    program = tmp_path / "bin" / "gcloud"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$4 $5" >> {tmp_path}/calls\n[ "$5" != l16-code.tgz ] || exit 1\n'
        f'case "$4" in scp) cp "$5" {tmp_path}/;; esac\nexit "${{GCLOUD_CODE:-0}}"\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_run_sends_the_scripts_and_starts_them(gcloud, tmp_path):
    done = call("tpu_vm", "run", *V5E, f"--env=HF_TOKEN={SECRET}", "--", *HARD_COMMAND, env=gcloud)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr and "+ gcloud compute tpus tpu-vm scp" in done.stderr
    assert re.fullmatch(r"scp \S+/l16-run\.tgz\nssh l16\n", (tmp_path / "calls").read_text())
    with tarfile.open(tmp_path / "l16-run.tgz") as tar:
        assert f"export HF_TOKEN={SECRET}\n" in tar.extractfile("env.sh").read().decode()
        assert shlex.join(HARD_COMMAND) in tar.extractfile("run.sh").read().decode()
    # Nothing of it stays here.
    assert not os.path.exists((tmp_path / "calls").read_text().split()[1])


def test_setup_sends_the_code(gcloud, tmp_path, clone):
    done = call("tpu_vm", "setup", *V5E, f"--code={clone}", env=gcloud)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "l16-code.tgz") as tar:
        assert "code/vit_jax/a.py" in tar.getnames() and "setup.sh" in tar.getnames()


@pytest.mark.parametrize("name", ["create", "describe", "delete", "stop", "setup"])
def test_a_failing_gcloud_is_a_failure(gcloud, name):
    words = V5E if name in ("create", "setup") else PLACE
    done = call("tpu_vm", name, *words, env=gcloud | {"GCLOUD_CODE": "3"})
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: "), done.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["create", *V5E, "--accelerator=tpu7x-128"], "7x is on GKE only"),
        (["create", *V5E, "--accelerator=7x-128"], "7x is on GKE only"),
        (["create", *V5E, "--accelerator=v7-8"], "unknown accelerator 'v7-8' (did you mean 'v4-N'? known: v4-N,"),
        (["create", "--name=a", "--accelerator=v4-8", "--zone=z"], "required: --project"),
        (["create", "--name=a", "--accelerator=v4-8", "--project=p"], "required: --zone"),
        (["create", *PLACE], "required: --accelerator"),
        (["create", *V5E, "--name=" + "n" * 51], "has 51 characters (at most 50"),
        (["create", *V5E, "--spot", "--reserved"], "not allowed with argument"),
        (["create", *V5E, "--slices=0"], "--slices is at least 1"),
        (["creat", *V5E], "unknown subcommand 'creat' (did you mean 'create'"),
        (["describe", *PLACE, "--spot"], "unknown flag --spot"),
        (["describe", *PLACE, "--", "x"], "a command to run, 'x' (leave out -- "),
        (["run", *V5E], "no command to run ("),
        (["setup", *V5E, "--code=/nowhere"], "no code in /nowhere (give --code=CLONE or"),
        (["setup", *V5E, "--file=nowhere.py"], "--file=nowhere.py (give a file below"),
    ],
)  # fmt: skip
def test_refusals(words, error):
    assert error in refusal("tpu_vm", *words)


def test_without_gcloud_nothing_is_started(tmp_path):
    assert refusal("tpu_vm", "create", *V5E, env={"PATH": str(tmp_path)}).startswith("no program 'gcloud' (")


def test_help_of_all():
    for words in (["--help"], ["up", "--help"], ["delete", "--help"]):
        assert call("tpu_vm", *words).returncode == 0
