"""Jobs on a GKE cluster: TPU slices or GPU machines, as a JobSet of ours or through xpk.

    python -m launch.gke submit   --name=l16 --accelerator=v5litepod-256 --image=IMAGE -- python -m vit_jax.train …
    python -m launch.gke manifest … -- COMMAND …      prints the JobSet (JSON, which kubectl reads like YAML)
    python -m launch.gke xpk      --cluster=C --zone=Z --project=P … -- COMMAND …     the same through xpk (TPU)
    python -m launch.gke logs     --name=l16          follows the log of the first process
    python -m launch.gke delete   --name=l16          stops the job and removes it

The image holds the code, its configs and `pip install '.[tpu]'` (or '.[cuda]'). The job starts again, from its
last checkpoint, after exit codes 42, 134, 137 and 143, at most --max-restarts times; any other code ends it.
Variables with secrets travel in a Kubernetes Secret of their own, NAME-env. xpk has no such thing: it gets them in
a file that only you can read, and writes them into the description of the job.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .accelerators import Slice, accelerator, check_name
from .command import (
    Failed,
    Parser,
    Refused,
    add_dry_run,
    add_run_flags,
    at_least,
    environment,
    heredoc,
    is_secret,
    masked,
    need_program,
    parse,
    run,
    run_id_env,
    with_cache,
)
from .jobset import Spec, literal, manifest, secret, secret_name, shell_line
from .xla_flags import gpu_env, tpu_env

# Kueue and JobSet add prefixes and suffixes to the name; all must fit into 63 characters.
_NAME_LIMIT = 28


def xpk_argv(spec: Spec, *, cluster: str, zone: str, project: str, env_file: str) -> list[str]:
    """xpk's command line; env_file: has the variables, "" to write them into the line.

    Raises:
      Refused: machines with GPUs, or text that xpk would garble.
    """
    if not isinstance(spec.machine, Slice):
        raise Refused("xpk with GPUs", "use submit, which writes its own JobSet")
    line = shell_line(spec.command)
    if "\n" in line:
        raise Refused("a line break in the command", "xpk can't carry it; use submit")
    variables = [f"--env-file={env_file}"] if env_file else [f"--env={v}" for v in _xpk_env(spec.env)]
    return [
        "xpk", "workload", "create",
        f"--cluster={cluster}", f"--zone={zone}", f"--project={project}", f"--workload={spec.name}",
        f"--tpu-type={spec.machine.accelerator_type}", f"--num-slices={spec.count}",
        f"--docker-image={spec.image}", f"--command={literal(line)}",
        f"--max-restarts={spec.max_restarts}", *([f"--priority={spec.priority}"] if spec.priority else []),
        *variables,
        f"--termination-grace-period-seconds={spec.grace_seconds}", "--restart-on-exit-codes=42",
    ]  # fmt: skip


def _xpk_env(env: Mapping[str, str]) -> list[str]:
    """The variables as NAME=VALUE.

    Raises:
      Refused: a value that xpk, which puts it between double quotes as it is, would garble.
    """
    for name, value in env.items():
        if any(c in value for c in '"\\\n'):
            raise Refused(
                f"--env={name} with a quote, backslash or line break", "xpk can't carry it; use submit"
            )
    return [f"{name}={literal(value)}" for name, value in env.items()]


def kubectl(flags: Any, *words: str) -> list[str]:
    """kubectl's command line for the chosen cluster and namespace."""
    return [
        "kubectl",
        *([f"--context={flags.context}"] if flags.context else []),
        *([f"--namespace={flags.namespace}"] if flags.namespace else []),
        *words,
    ]


def main(argv: Sequence[str]) -> int:
    """Runs a subcommand; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        print("Each subcommand has a --help of its own.")
        return 0
    name, *rest = argv
    if name not in _SUBCOMMANDS:
        raise Refused(f"unknown subcommand {name!r}", "one of " + ", ".join(_SUBCOMMANDS))
    return _SUBCOMMANDS[name](name, rest)


def _submit(name: str, argv: Sequence[str]) -> int:
    spec, flags = _parse_spec(name, argv)
    own_secret = secret(spec)
    # Server-side, as kubectl would else keep a copy of the values in an annotation.
    with_secret = kubectl(flags, "apply", "--server-side", "-f", "-")
    with_job = kubectl(flags, "apply", "-f", "-")
    if flags.dry_run:
        if own_secret is not None:
            shown = {**own_secret, "stringData": masked(own_secret["stringData"])}
            print(heredoc(with_secret, json.dumps(shown, indent=2)))
        print(heredoc(with_job, json.dumps(manifest(spec), indent=2)))
        return 0
    need_program("kubectl", "install kubectl and `gcloud container clusters get-credentials CLUSTER`")
    if own_secret is not None:
        _call(with_secret, own_secret)
    if "created" not in _call(with_job, manifest(spec)):
        raise Failed(
            f"a JobSet {spec.name} was there before",
            "it starts nothing new: delete it first, or give another name",
        )
    return 0


def _manifest(name: str, argv: Sequence[str]) -> int:
    spec, _ = _parse_spec(name, argv)
    print(json.dumps(manifest(spec), indent=2))
    return 0


def _xpk(name: str, argv: Sequence[str]) -> int:
    spec, flags = _parse_spec(name, argv)
    where = dict(cluster=flags.cluster, zone=flags.zone, project=flags.project)
    # Arguments of a program can be read by all users of a machine: secrets go by a file.
    by_file = any(map(is_secret, spec.env))
    if flags.dry_run:
        if by_file:
            print(heredoc(["tee", "env.txt"], "\n".join(_xpk_env(masked(spec.env)))))
        print(shlex.join(xpk_argv(spec, **where, env_file="env.txt" if by_file else "")))
        return 0
    with _private_file("\n".join(_xpk_env(spec.env)) if by_file else "") as path:
        line = xpk_argv(spec, **where, env_file=path)
        need_program("xpk", "pip install xpk")
        return _checked(line)


def _logs(name: str, argv: Sequence[str]) -> int:
    parser = _parser(name)
    _add_cluster_flags(parser)
    parser.add_argument("--all", action="store_true", help="of all processes, not of the first alone")
    add_dry_run(parser)
    flags, _ = parse(parser, argv, takes_command=False)
    labels = [f"jobset.sigs.k8s.io/jobset-name={flags.name}"]
    if not flags.all:
        labels += ["jobset.sigs.k8s.io/job-index=0", "batch.kubernetes.io/job-completion-index=0"]
    return _run_or_print(
        flags, kubectl(flags, "logs", "--follow", "--prefix", "--tail=-1", "--container=train",
                       "--max-log-requests=1024", f"--selector={','.join(labels)}"),
    )  # fmt: skip


def _delete(name: str, argv: Sequence[str]) -> int:
    parser = _parser(name)
    _add_cluster_flags(parser)
    add_dry_run(parser)
    flags, _ = parse(parser, argv, takes_command=False)
    job = _run_or_print(flags, kubectl(flags, "delete", "jobset", flags.name, "--ignore-not-found"))
    return job or _run_or_print(
        flags, kubectl(flags, "delete", "secret", secret_name(flags.name), "--ignore-not-found")
    )


_SUBCOMMANDS = {"submit": _submit, "manifest": _manifest, "xpk": _xpk, "logs": _logs, "delete": _delete}


def _parser(name: str) -> Parser:
    return Parser(f"python -m launch.gke {name}", __doc__)


def _add_cluster_flags(parser: Parser) -> None:
    parser.add_argument("--name", required=True, help=f"of the job: at most {_NAME_LIMIT} characters")
    parser.add_argument("--context", default="", help="of kubectl (default: the current one)")
    parser.add_argument("--namespace", default="", help="of kubectl (default: the context's)")


def _parse_spec(name: str, argv: Sequence[str]) -> tuple[Spec, Any]:
    parser = _parser(name)
    if name == "xpk":
        for flag, what in (
            ("cluster", "GKE cluster"),
            ("zone", "its zone"),
            ("project", "its Google Cloud project"),
        ):
            parser.add_argument(f"--{flag}", required=True, help=what)
        parser.add_argument(
            "--name", required=True, help=f"of the workload: at most {_NAME_LIMIT} characters"
        )
        parser.set_defaults(queue="")
    else:
        _add_cluster_flags(parser)
        parser.add_argument("--queue", default="", help="Kueue's local queue (default: none)")
    parser.add_argument(
        "--accelerator", required=True, help="v5litepod-256, v5p-128, tpu7x-128, h100-80gb-8 …"
    )
    parser.add_argument("--image", required=True, help="container image with vit_jax")
    parser.add_argument("--slices", type=int, default=1, help="TPU slices (default 1)")
    parser.add_argument("--nodes", type=int, default=1, help="machines with GPUs (default 1)")
    parser.add_argument("--topology", default="", help="of a slice, such as 4x4x8 (default: the usual one)")
    parser.add_argument(
        "--chips-per-host", type=int, default=0, help="of the node pool (default 4, single chips 1)"
    )
    parser.add_argument("--flags", default="", help="sets of GPU flags, by comma: deterministic, fsdp")
    parser.add_argument(
        "--priority", default="", help="priority class of the pods (xpk: very-low … very-high)"
    )
    parser.add_argument("--max-restarts", type=int, default=50, help="of the whole job (default 50)")
    parser.add_argument(
        "--grace-seconds",
        type=int,
        default=300,
        help="from SIGTERM to SIGKILL: must cover a save (default 300)",
    )
    add_run_flags(parser)
    flags, command = parse(parser, argv)
    at_least(flags, slices=1, nodes=1, chips_per_host=0, max_restarts=0, grace_seconds=0)
    check_name(flags.name, _NAME_LIMIT, "Kueue and JobSet add to it, and 63 is the limit")
    machine = accelerator(flags.accelerator, flags.topology, flags.chips_per_host)
    env = run_id_env(flags.name) | environment(flags.env, flags.compile_cache)
    sets = [s for s in flags.flags.split(",") if s]
    if isinstance(machine, Slice):
        if flags.nodes != 1 or sets:
            raise Refused("--nodes or --flags with TPUs", "they are for GPUs; give --slices")
        env, count = tpu_env(machine.generation.alias, flags.slices, env), flags.slices
    else:
        if flags.slices != 1:
            raise Refused("--slices with GPUs", "give --nodes")
        env, count = gpu_env(sets, env), flags.nodes
    spec = Spec(
        flags.name, with_cache(command, flags.compile_cache), flags.image, machine, count, env,
        flags.queue, flags.priority, flags.max_restarts, flags.grace_seconds,
    )  # fmt: skip
    return spec, flags


def _call(argv: Sequence[str], document: Mapping[str, Any]) -> str:
    done = subprocess.run(argv, input=json.dumps(document), text=True, stdout=subprocess.PIPE, check=False)
    sys.stdout.write(done.stdout)
    if done.returncode:
        raise Failed(f"{shlex.join(argv)} ended with {done.returncode}", "its own message is above")
    return done.stdout


def _run_or_print(flags: Any, argv: Sequence[str]) -> int:
    if flags.dry_run:
        print(shlex.join(argv))
        return 0
    need_program("kubectl", "install kubectl and `gcloud container clusters get-credentials CLUSTER`")
    return _checked(argv)


def _checked(argv: Sequence[str]) -> int:
    code = subprocess.run(argv, check=False).returncode
    if code:
        raise Failed(f"{argv[0]} ended with {code}", "its own message is above")
    return 0


@contextlib.contextmanager
def _private_file(text: str) -> Iterator[str]:
    """Path of a file that only this user can read; "" for no text."""
    if not text:
        yield ""
        return
    descriptor, path = tempfile.mkstemp(prefix="vit_jax_env_")
    try:
        with os.fdopen(descriptor, "w") as f:
            f.write(text)
        yield path
    finally:
        os.unlink(path)


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
