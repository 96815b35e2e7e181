"""Manifests and command lines for GKE: golden files, and each field that matters by itself."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from launch import gke, jobset
from launch.accelerators import accelerator
from tests.launch.commands import HARD_COMMAND, HARD_ENV, ROOT, SECRET, call, check_golden, dry_run, refusal

TPU = ["--name=l16", "--accelerator=v5litepod-256", "--image=registry/vit:1"]
GPU = ["--name=l16", "--accelerator=h100-80gb-8", "--image=registry/vit:1"]
XPK = ["--cluster=c", "--zone=us-east5-b", "--project=p"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gke_tpu", ["submit", *TPU, "--queue=multislice-queue"]),
        ("gke_multislice", ["submit", *TPU, "--slices=2", "--max-restarts=3", "--grace-seconds=60"]),
        ("gke_gpu", ["submit", *GPU, "--nodes=4", "--flags=fsdp", "--priority=high", "--context=c"]),
    ],
)
def test_dry_run_of_submit(name, words):
    check_golden(f"{name}.txt", dry_run("gke", *words, "--compile-cache=gs://b/cache"))


def test_dry_run_of_xpk():
    plain = ["--env=OPTIONS=a=b $HOME 'c'"]
    check_golden(
        "gke_xpk.txt", dry_run("gke", "xpk", *XPK, *TPU, "--slices=2", "--priority=medium", env=plain)
    )
    check_golden("gke_xpk_secret.txt", dry_run("gke", "xpk", *XPK, *TPU))


@pytest.mark.parametrize("name", ["logs", "delete"])
def test_dry_run_of_the_rest(name):
    done = call("gke", name, "--name=l16", "--namespace=n", "--dry-run")
    assert done.returncode == 0
    check_golden(f"gke_{name}.txt", done.stdout)


def build(name="v5litepod-256", **options):
    return jobset.manifest(jobset.Spec("l16", ("train", "a b"), "image", accelerator(name), **options))


def pod_of(manifest):
    (job,) = manifest["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]["spec"]


def test_only_codes_that_ask_for_it_restart_the_job():
    spec = build(max_restarts=7)["spec"]
    (rule,) = spec["failurePolicy"]["rules"]
    assert spec["failurePolicy"]["maxRestarts"] == 7
    assert rule["action"] == "FailJobSet" and rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0  # else single pods would be started again, without their peers
    (rule,) = job["podFailurePolicy"]["rules"]
    container = job["template"]["spec"]["containers"][0]["name"]
    codes = {"containerName": container, "operator": "NotIn", "values": [42, 134, 137, 143]}
    assert rule == {"action": "FailJob", "onExitCodes": codes}
    assert job["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("name", "label", "topology", "hosts", "chips"),
    [
        ("v5litepod-256", "tpu-v5-lite-podslice", "16x16", 64, 4),
        ("v5e-16", "tpu-v5-lite-podslice", "4x4", 4, 4),
        ("v5e-1", "tpu-v5-lite-podslice", "1x1", 1, 1),
        ("v4-32", "tpu-v4-podslice", "2x2x4", 4, 4),
        ("v5p-128", "tpu-v5p-slice", "4x4x4", 16, 4),
        ("v6e-64", "tpu-v6e-slice", "8x8", 16, 4),
        ("tpu7x-128", "tpu7x", "4x4x4", 16, 4),
    ],
)
def test_shape_of_a_slice(name, label, topology, hosts, chips):
    manifest = build(name, count=3)
    (slices,) = manifest["spec"]["replicatedJobs"]
    assert slices["replicas"] == 3
    assert slices["template"]["spec"]["parallelism"] == slices["template"]["spec"]["completions"] == hosts
    assert pod_of(manifest)["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    assert pod_of(manifest)["containers"][0]["resources"] == {"limits": {"google.com/tpu": chips}}


def test_gpu_machines_are_told_about_each_other():
    manifest = build("h100-80gb-8", count=4)
    (nodes,) = manifest["spec"]["replicatedJobs"]
    assert (nodes["name"], nodes["replicas"], nodes["template"]["spec"]["parallelism"]) == ("node", 1, 4)
    assert nodes["template"]["spec"]["completionMode"] == "Indexed"  # the index is the process's number
    env = {v["name"]: v.get("value", v.get("valueFrom")) for v in pod_of(manifest)["containers"][0]["env"]}
    assert env["JAX_COORDINATOR_ADDRESS"] == "l16-node-0-0.l16:6002"
    assert env["JAX_NUM_PROCESSES"] == "4"
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert env["JAX_PROCESS_ID"] == {"fieldRef": {"fieldPath": index}}
    assert pod_of(manifest)["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}


def kubernetes_expands(text, env):
    """Kubernetes' rule for commands and values: $$ is $, $(NAME) the variable if there is one."""
    out, i = "", 0
    while i < len(text):
        if text.startswith("$$", i):
            out, i = out + "$", i + 2
        elif text.startswith("$(", i) and text[i + 2 : text.find(")", i)] in env:
            out, i = out + env[text[i + 2 : text.find(")", i)]], text.find(")", i) + 1
        else:
            out, i = out + text[i], i + 1
    return out


def test_arguments_and_values_arrive_as_they_were_given():
    hard = ("printf", "%s\\n", "a b", "it's", "$HOME", "$(HOME)", "$$", '"q"', "", "new\nline", "*")
    env = {"HOME": "/root", "OPTIONS": "a=b $(HOME) $$ $x"}
    manifest = jobset.manifest(jobset.Spec("l16", hard, "image", accelerator("v5e-4"), env=env))
    (container,) = pod_of(manifest)["containers"]
    values = {v["name"]: kubernetes_expands(v["value"], env) for v in container["env"]}
    assert values["OPTIONS"] == env["OPTIONS"]
    argv = [kubernetes_expands(word, env) for word in container["command"]]
    assert argv[2].startswith("exec ")  # SIGTERM reaches the program, not a shell
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert out == "".join(f"{word}\n" for word in hard[2:])


def test_a_secret_is_only_in_its_secret():
    spec = jobset.Spec("l16", ("x",), "i", accelerator("v5e-4"), env={"WANDB_API_KEY": SECRET, "A": "b"})
    assert SECRET not in json.dumps(jobset.manifest(spec))
    (variable, _) = pod_of(jobset.manifest(spec))["containers"][0]["env"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "l16-env", "key": "WANDB_API_KEY"}}
    own = jobset.secret(spec)
    assert own["metadata"]["name"] == "l16-env" and own["stringData"] == {"WANDB_API_KEY": SECRET}
    assert jobset.secret(jobset.Spec("l16", ("x",), "i", accelerator("v5e-4"), env={"A": "b"})) is None


@pytest.fixture
def kubectl(tmp_path):
    """A stand-in on the PATH that notes its arguments and input, and says what it is told to."""

    def make(says="jobset.jobset.x-k8s.io/l16 created", name="kubectl"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/called\ncat >> {tmp_path}/input\necho {says}\n'
        )
        program.chmod(0o755)
        return {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    return make


def test_submit_applies_the_secret_then_the_job(kubectl, tmp_path):
    done = call("gke", "submit", *TPU, *HARD_ENV, "--", *HARD_COMMAND, env=kubectl())
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "called").read_text() == "apply --server-side -f -\napply -f -\n"
    text = (tmp_path / "input").read_text()
    first, end = json.JSONDecoder().raw_decode(text)
    assert first["kind"] == "Secret" and first["stringData"] == {"HF_TOKEN": SECRET}
    assert json.loads(text[end:])["kind"] == "JobSet" and SECRET not in text[end:] + done.stdout + done.stderr


def test_submit_of_a_job_that_is_there_says_that_nothing_was_started(kubectl):
    env = kubectl("jobset.jobset.x-k8s.io/l16 unchanged")
    done = call("gke", "submit", *TPU, "--", "x", env=env)
    assert done.returncode == 1
    assert "error: a JobSet l16 was there before (it starts nothing new" in done.stderr


def test_xpk_gets_secrets_in_a_private_file_that_is_gone_after(kubectl, tmp_path):
    env = kubectl(name="xpk")
    script = tmp_path / "bin" / "xpk"
    script.write_text(
        "#!/bin/sh\nfor word; do case $word in --env-file=*) file=${word#--env-file=};; esac; done\n"
        f'stat -c %a "$file" > {tmp_path}/mode; cat "$file" > {tmp_path}/text; echo "$file" > {tmp_path}/path\n'
    )
    done = call("gke", "xpk", *XPK, *TPU, f"--env=HF_TOKEN={SECRET}", "--", "x", env=env)
    assert done.returncode == 0, done.stderr
    assert f"HF_TOKEN={SECRET}" in (tmp_path / "text").read_text()
    assert int((tmp_path / "mode").read_text(), 8) == stat.S_IRUSR | stat.S_IWUSR
    assert not Path((tmp_path / "path").read_text().strip()).exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["submit", *TPU, "--name=" + "n" * 29], "has 29 characters (at most 28: "),
        (["submit", *TPU, "--name=Bad_Name"], "the name 'Bad_Name' (lower-case letters"),
        (["submit", *TPU, "--accelerator=v5litpod-256"], "unknown accelerator 'v5litpod-256' (did you mean"),
        (["submit", *TPU, "--accelerator=h200-8"], "known: v4-N, v5litepod-N, v5p-N, v6e-N, tpu7x-N, l4-N"),
        (["submit", *TPU, "--accelerator=v5p-7"], "half a chip"),
        (["submit", *TPU, "--topology=4x4"], "--topology=4x4 isn't 256 chips"),
        (["submit", *TPU, "--nodes=2"], "(they are for GPUs; give --slices)"),
        (["submit", *GPU, "--slices=2"], "--slices with GPUs (give --nodes)"),
        (["submit", *GPU, "--flags=speed"], "--flags=speed (known: deterministic, fsdp)"),
        (["submit", *TPU, "--slices=0"], "--slices is at least 1"),
        (["submit", "--name=a", "--accelerator=v5e-4"], "required: --image"),
        (["xpk", "--cluster=c", *TPU], "required: --zone, --project"),
        (
            ["xpk", *XPK, *TPU, '--env=A="'],
            "a quote, backslash or line break (xpk can't carry it; use submit)",
        ),
        (["xpk", *XPK, *GPU], "xpk with GPUs (use submit"),
        (["apply"], "unknown subcommand 'apply' (one of submit, manifest"),
    ],
)
def test_refusals(words, error):
    assert error in refusal("gke", *words, "--dry-run", "--", "train")


def test_without_kubectl_nothing_is_started(tmp_path):
    assert refusal("gke", "submit", *TPU, "--", "x", env={"PATH": str(tmp_path)}).startswith(
        "no program 'kubectl'"
    )


def test_a_line_break_is_no_matter_for_our_own_jobset_only():
    assert "a line break" in refusal("gke", "xpk", *XPK, *TPU, "--dry-run", "--", "a\nb")
    manifest = call("gke", "manifest", *TPU, "--", "a\nb", cwd=ROOT)
    command = pod_of(json.loads(manifest.stdout))["containers"][0]["command"]
    assert command == ["bash", "-c", "exec 'a\nb'"]


def test_help_of_all():
    assert call("gke", "--help").returncode == 0
    for name in gke._SUBCOMMANDS:
        done = call("gke", name, "--help")
        assert done.returncode == 0 and "--name" in done.stdout
