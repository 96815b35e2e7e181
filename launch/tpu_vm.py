"""Runs on Cloud TPU slices, as queued resources.

    python -m launch.tpu_vm up --name=l16 --zone=Z --project=P --accelerator=v5litepod-256 --spot \\
        -- python -m vit_jax.train --config=configs/pretrain_i21k.py:L/16 --workdir=gs://bucket/l16

`up` does all: create, wait, setup, run, and then watches. It starts the run again, from its last checkpoint, after
exit codes 42, 134, 137 and 143 and when the slices were lost, at most --max-restarts times. The run itself is
detached: when `up` is interrupted it goes on, and the same `up` watches it again. By hand:

    create    asks for the slices        setup     copies the code to all workers and installs it
    wait      until they are there       run       starts the command on all workers, detached
    describe  their state                tail      follows the log       stop   saves and stops
    delete    gives them back

All take --name, --zone and --project; the workers' folder is ~/vit_jax_runs/NAME. Variables with secrets travel in
a file that only you can read. Data sets of TFDS: --env=TFDS_DATA_DIR=gs://….
"""

import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import bundle
from . import tpu_commands as commands
from .accelerators import check_name, tpu_slice
from .command import (
    Failed,
    Parser,
    Refused,
    add_dry_run,
    add_run_flags,
    at_least,
    environment,
    heredoc,
    known_names,
    masked,
    need_program,
    parse,
    run,
    run_id_env,
    with_cache,
)
from .tpu_commands import Spec
from .tpu_loop import Clock, Cloud, run_programs, up, wait_active
from .xla_flags import tpu_env

# Groups of flags that each subcommand takes, beside those of all.
_SUBCOMMANDS = {
    "up": ("machine", "slices", "capacity", "code", "command", "loop"),
    "create": ("machine", "slices", "capacity"),
    "wait": (),
    "describe": (),
    "setup": ("machine", "slices", "code"),
    "run": ("machine", "slices", "command"),
    "tail": ("slices", "worker"),
    "stop": ("slices",),
    "delete": (),
}


def main(argv: Sequence[str]) -> int:
    """Runs a subcommand; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        print("Each subcommand has a --help of its own.")
        return 0
    name, *rest = argv
    if name not in _SUBCOMMANDS:
        raise Refused(f"unknown subcommand {name!r}", known_names(name, _SUBCOMMANDS))
    job = _parse(name, rest)
    if job.flags.dry_run:
        print("\n".join(job.shown(name)))
        return 0
    need_program("gcloud", "install the Google Cloud CLI and log in")
    with tempfile.TemporaryDirectory(prefix="vit_jax_launch_") as folder:
        job.do(name, Path(folder))
    return 0


class Job:
    """What a command line asks for: shown, or done."""

    def __init__(self, spec: Spec, flags: Any) -> None:
        """Finds the code to send.

        Raises:
          Refused: there is none.
        """
        self.spec, self.flags = spec, flags
        self._files: dict[str, Path] = {}
        self._configs: dict[str, Path] = {}
        self._wheel = ""
        if "code" in flags:
            code = Path(flags.code) if flags.code else bundle.default_code()
            if code is None:
                raise Refused("no clone to send", "give --code=CLONE or --code=FILE.whl")
            self._files = bundle.code_files(code)
            self._wheel = code.name if code.suffix == ".whl" else ""
            self._configs = bundle.config_files(spec.command, Path.cwd())
            for config in (c for c in flags.file if not Path(c).is_file()):
                raise Refused(f"--file={config}", "give a file below this folder")
            self._configs |= {c: Path(c) for c in flags.file}

    @property
    def _bundles(self) -> tuple[str, str]:
        return f"{self.spec.name}-code.tgz", f"{self.spec.name}-run.tgz"

    def shown(self, name: str) -> list[str]:
        """What a subcommand would run, as lines of shell; `up` once through, without what comes of failures."""
        spec, (code, run_bundle) = self.spec, self._bundles
        if name == "up":
            watching = [shlex.join(argv) for argv in commands.ssh(spec, commands.status_line(spec))]
            steps = ("create", "wait", "setup", "run")
            return [line for step in steps for line in self.shown(step)] + watching
        if name == "setup":
            code_name = self._wheel or f"{len(self._files)} files of the clone"
            files = "".join(f", {config}" for config in self._configs)
            texts, note = self._setup_texts(), f"# {code} has setup.sh, and in code/: {code_name}{files}"
            argvs = [*commands.scp(spec, code), *commands.ssh(spec, commands.setup_line(spec, code))]
        elif name == "run":
            texts = commands.run_scripts(spec) | {"env.sh": commands.env_script(masked(spec.env))}
            note = f"# {run_bundle} has {', '.join(texts)}"
            argvs = [
                *commands.scp(spec, run_bundle),
                *commands.ssh(spec, commands.run_line(spec, run_bundle)),
            ]
        else:
            return list(map(shlex.join, self._simple(name)))
        written = [heredoc(["tee", path], text) for path, text in texts.items()]
        return [*written, note, *map(shlex.join, argvs)]

    def do(self, name: str, folder: Path) -> None:
        """Does what a subcommand says; bundles are packed in the folder.

        Raises:
          Failed: some program failed.
        """
        spec, cloud = self.spec, Cloud(self.spec, run_programs)
        if name == "up":
            self._pack_code(folder)  # once: all starts run the same
            self._pack_run(folder)

            def prepare() -> bool:
                return self._setup(cloud, folder) and self._run(cloud, folder)

            up(cloud, prepare, Clock(), max_restarts=self.flags.max_restarts)
        elif name == "wait":
            state = wait_active(cloud, Clock())
            if state != "ACTIVE":
                raise Failed(
                    f"{spec.name} is {state}", "it never becomes ACTIVE now: delete it and create it again"
                )
        elif name in ("setup", "run"):
            pack, send = {"setup": (self._pack_code, self._setup), "run": (self._pack_run, self._run)}[name]
            pack(folder)
            if not send(cloud, folder):
                raise Failed(f"{name} failed on some workers", "look at the messages above")
        else:
            cloud.must(self._simple(name), "look at its message above")

    def _simple(self, name: str) -> list[list[str]]:
        """Command lines of a subcommand that sends nothing."""
        spec = self.spec
        if name == "tail":
            lines = commands.ssh(spec, commands.tail_line(spec), self.flags.worker)
            return lines if self.flags.worker == "all" else lines[:1]
        if name == "stop":
            return commands.ssh(spec, commands.stop_line(spec))
        return [{"create": commands.create, "delete": commands.delete}.get(name, commands.describe)(spec)]

    def _setup_texts(self) -> dict[str, str]:
        return {"setup.sh": commands.setup_script(self.spec, self._wheel)}

    def _pack_code(self, folder: Path) -> None:
        bundle.pack(folder / self._bundles[0], self._files | self._configs, self._setup_texts())

    def _pack_run(self, folder: Path) -> None:
        bundle.pack(folder / self._bundles[1], {}, commands.run_scripts(self.spec))

    def _setup(self, cloud: Cloud, folder: Path) -> bool:
        name = self._bundles[0]
        return cloud.upload_and(str(folder / name), commands.setup_line(self.spec, name))

    def _run(self, cloud: Cloud, folder: Path) -> bool:
        name = self._bundles[1]
        return cloud.upload_and(str(folder / name), commands.run_line(self.spec, name))


def _parse(name: str, argv: Sequence[str]) -> Job:
    groups = _SUBCOMMANDS[name]
    parser = Parser(f"python -m launch.tpu_vm {name}", __doc__)
    parser.add_argument("--name", required=True, help="of the run, its queued resource and its slices")
    parser.add_argument("--zone", required=True, help="such as us-west4-a")
    parser.add_argument("--project", required=True, help="Google Cloud project")
    if "machine" in groups:
        parser.add_argument("--accelerator", required=True, help="v5litepod-256, v4-32 …")
        parser.add_argument("--runtime", default="", help="of the workers (default: the generation's)")
    if "slices" in groups:
        parser.add_argument("--slices", type=int, default=1, help="(default 1)")
    parser.set_defaults(
        slices=1,
        runtime="",
        env=[],
        compile_cache="",
        grace_seconds=300,
        spot=False,
        reserved=False,
        valid_for="",
    )
    if "capacity" in groups:
        kind = parser.add_mutually_exclusive_group()
        kind.add_argument("--spot", action="store_true", help="cheap, and may be taken away at any time")
        kind.add_argument("--reserved", action="store_true", help="of your reservation")
        parser.add_argument("--valid-until-duration", dest="valid_for", default="", metavar="6h",
                            help="give up waiting after so long (default: never)")  # fmt: skip
    if "code" in groups:
        parser.add_argument(
            "--code", default="", help="clone or wheel to install (default: the clone of launch/)"
        )
        parser.add_argument("--file", action="append", default=[], help="one more file below this folder to send; "
                            "the configs that the command names are sent anyway")  # fmt: skip
    if "command" in groups:
        parser.add_argument("--grace-seconds", type=int, default=300, help="an older run of this name gets so long "
                            "to save (default 300)")  # fmt: skip
        add_run_flags(parser)
    else:
        add_dry_run(parser)
    if "loop" in groups:
        parser.add_argument("--max-restarts", type=int, default=50, help="(default 50)")
    if "worker" in groups:
        parser.add_argument("--worker", default="0", help="its number in the first slice (default 0), or all")
    flags, command = parse(parser, argv, takes_command="command" in groups)
    at_least(flags, slices=1, grace_seconds=0, **({"max_restarts": 0} if "loop" in groups else {}))
    check_name(flags.name, 50, "the slices' names are made from it")
    machine, env = None, run_id_env(flags.name) | environment(flags.env, flags.compile_cache)
    if "machine" in groups:
        machine = tpu_slice(flags.accelerator)
        if machine.generation.runtime is None:
            raise Refused(
                f"{flags.accelerator} as a queued resource", "7x is on GKE only: python -m launch.gke"
            )
        env = tpu_env(machine.generation.alias, flags.slices, env)
    spec = Spec(
        flags.name, flags.zone, flags.project, machine, flags.slices, flags.runtime,
        "spot" if flags.spot else "reserved" if flags.reserved else "", flags.valid_for,
        with_cache(command, flags.compile_cache), env,
        flags.grace_seconds,
    )  # fmt: skip
    return Job(spec, flags)


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
