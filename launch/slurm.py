"""Jobs on GPU machines under SLURM.

    python -m launch.slurm submit --name=l16 --nodes=4 --gpus-per-node=8 -- python -m vit_jax.train …
    python -m launch.slurm script … -- COMMAND …      prints the batch script, to be kept and given to sbatch

The command runs from the folder where it was submitted, which all machines must see, with the environment of that
moment (an activated virtual environment comes along). One process per GPU, or one a machine: --tasks-per-node=1.
SLURM's SIGTERM, --grace-seconds before the time limit, makes the processes save and leave with 42. The job is
queued again, at most --max-restarts times, when the first process that failed did so with 42, 134, 137 or 143.
Variables with secrets aren't written into the script: sbatch takes them from the environment.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .accelerators import check_name
from .command import (
    RESTART_CODES,
    Failed,
    Parser,
    Refused,
    add_run_flags,
    at_least,
    environment,
    heredoc,
    is_secret,
    need_program,
    parse,
    run,
    run_id_env,
    with_cache,
)
from .shell import SUPERVISE
from .xla_flags import gpu_env

# Notes the code of a process that is the first to fail: srun tells the highest one only, which after a failure is
# that of the processes that were stopped because of it.
_TASK = f"""\
{SUPERVISE}\
if [ "$code" -ne 0 ]; then (set -C; echo "$code" > "$FIRST_CODE") 2>/dev/null; fi
exit "$code"
"""


@dataclass(frozen=True)
class Spec:
    """A job. tasks_per_node: gpus_per_node, or 1. directives: more options of sbatch; setup: lines of shell."""

    name: str
    command: tuple[str, ...]
    nodes: int = 1
    gpus_per_node: int = 8
    tasks_per_node: int = 8
    cpus_per_task: int = 12
    grace_seconds: int = 300
    max_restarts: int = 50
    directives: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def script(spec: Spec) -> str:
    """The batch script; it holds no secret."""
    directives = [
        f"--job-name={spec.name}",
        f"--nodes={spec.nodes}",
        f"--ntasks-per-node={spec.tasks_per_node}",
        # All GPUs of a machine are visible to all its processes, and each takes the one of its number there;
        # --gpus-per-task would show each a single one, numbered 0.
        f"--gres=gpu:{spec.gpus_per_node}",
        "--exclusive",
        "--mem=0",
        f"--cpus-per-task={spec.cpus_per_task}",
        "--requeue",
        "--open-mode=append",
        f"--signal=TERM@{spec.grace_seconds}",  # to the processes; B: would reach this script alone
        "--output=%x-%j.log",
        "--export=ALL",
        *spec.directives,
    ]
    env = dict(spec.env)
    if spec.tasks_per_node == 1 and spec.gpus_per_node > 1:
        env["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(spec.gpus_per_node)))
    exports = [
        f': "${{{name}:?export it before sbatch}}"'
        if is_secret(name)
        else f"export {name}={shlex.quote(value)}"
        for name, value in env.items()
    ]
    lines = [
        "#!/usr/bin/env bash",
        *(f"#SBATCH {shlex.quote(directive)}" for directive in directives),
        *spec.setup,
        "set -u",
        *exports,
        'export FIRST_CODE="$SLURM_SUBMIT_DIR/$SLURM_JOB_NAME-$SLURM_JOB_ID.code"',
        'rm -f "$FIRST_CODE"',
        # A step takes no CPUs of the job's by itself.
        f"srun --cpus-per-task={spec.cpus_per_task} --kill-on-bad-exit=1 bash -c {shlex.quote(_TASK)} "
        f"task {shlex.join(spec.command)}",
        "code=$?",
        'if [ -s "$FIRST_CODE" ]; then code=$(cat "$FIRST_CODE"); fi',
        'rm -f "$FIRST_CODE"',
        'case "$code" in',
        f"  {' | '.join(map(str, RESTART_CODES))})",
        f'    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {spec.max_restarts} ]; then',
        '      echo "launch: exit code $code: queued again"',
        '      scontrol requeue "$SLURM_JOB_ID"',
        "    else",
        f'      echo "launch: exit code $code after {spec.max_restarts} restarts"',
        "    fi",
        "    ;;",
        "esac",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    """Runs a subcommand; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        print("Each subcommand has a --help of its own.")
        return 0
    name, *rest = argv
    if name not in ("submit", "script"):
        raise Refused(f"unknown subcommand {name!r}", "one of submit, script")
    spec, flags = _parse(name, rest)
    if name == "script":
        sys.stdout.write(script(spec))
        return 0
    sbatch = ["sbatch", "--parsable"]
    if flags.dry_run:
        print(heredoc(sbatch, script(spec)))
        return 0
    need_program("sbatch", "submit from a login node of the cluster")
    secrets = {n: value for n, value in spec.env.items() if is_secret(n)}
    done = subprocess.run(
        sbatch, input=script(spec), text=True, stdout=subprocess.PIPE, check=False, env=os.environ | secrets
    )
    if done.returncode:
        raise Failed(f"sbatch ended with {done.returncode}", "its own message is above")
    print(f"job {done.stdout.strip()}: log in {spec.name}-{done.stdout.strip().split(';')[0]}.log")
    return 0


def _parse(name: str, argv: Sequence[str]) -> tuple[Spec, Any]:
    parser = Parser(f"python -m launch.slurm {name}", __doc__)
    parser.add_argument("--name", required=True, help="of the job")
    parser.add_argument("--nodes", type=int, default=1, help="machines (default 1)")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="(default 8)")
    parser.add_argument("--tasks-per-node", type=int, default=0, help="as many as GPUs (default), or 1")
    parser.add_argument("--cpus-per-task", type=int, default=12, help="(default 12)")
    parser.add_argument("--partition", default="", help="SLURM's (default: the cluster's)")
    parser.add_argument("--account", default="", help="SLURM's (default: yours)")
    parser.add_argument("--time", default="", help="limit, such as 24:00:00 (default: the partition's)")
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="one more option of sbatch"
    )
    parser.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="a line of shell before the run: module load cuda",
    )
    parser.add_argument("--flags", default="", help="sets of GPU flags, by comma: deterministic, fsdp")
    parser.add_argument("--max-restarts", type=int, default=50, help="(default 50)")
    parser.add_argument(
        "--grace-seconds",
        type=int,
        default=300,
        help="from SIGTERM to the end: must cover a save (default 300)",
    )
    add_run_flags(parser)
    flags, command = parse(parser, argv)
    at_least(
        flags, nodes=1, gpus_per_node=1, tasks_per_node=0, cpus_per_task=1, max_restarts=0, grace_seconds=0
    )
    check_name(flags.name, 60, "it becomes the name of files")
    tasks = flags.tasks_per_node or flags.gpus_per_node
    if tasks not in (1, flags.gpus_per_node):
        raise Refused(f"--tasks-per-node={tasks}", f"1, or one per GPU: {flags.gpus_per_node}")
    named = [
        f"--{key}={getattr(flags, key)}" for key in ("partition", "account", "time") if getattr(flags, key)
    ]
    for option in [*named, *flags.sbatch]:
        if not option.startswith("-") or "\n" in option:
            raise Refused(
                f"--sbatch={option!r}", "give an option with its dashes, such as --sbatch=--qos=high"
            )
    env = run_id_env(flags.name) | environment(flags.env, flags.compile_cache)
    spec = Spec(
        flags.name, with_cache(command, flags.compile_cache), flags.nodes, flags.gpus_per_node, tasks,
        flags.cpus_per_task, flags.grace_seconds, flags.max_restarts, (*named, *flags.sbatch), tuple(flags.setup),
        gpu_env([s for s in flags.flags.split(",") if s], env),
    )  # fmt: skip
    return spec, flags


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
