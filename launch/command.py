"""What all launchers share: flags, the command after `--`, its environment, one-line errors, exit codes."""

import argparse
import difflib
import os
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

EXIT_OK, EXIT_FAILED, EXIT_REFUSED, EXIT_PREEMPTED = 0, 1, 2, 42
# The command asks to be started again: it was preempted and saved (42), or its process was taken away: abort after
# a lost peer (134), SIGKILL (137), SIGTERM (143). Any other code but 0 is a mistake that a restart repeats.
RESTART_CODES = (EXIT_PREEMPTED, 134, 137, 143)

# Values of variables with such names are never printed.
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
_MASK = "***"


class Refused(ValueError):
    """Something given can't be used, and nothing was started: exit code 2."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} ({remedy})")


class Failed(RuntimeError):
    """What was started failed: exit code 1."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} ({remedy})")


def known_names(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name: the nearest known ones, and all."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = "did you mean " + " or ".join(map(repr, near)) + "? " if near else ""
    return f"{hint}known: {', '.join(known)}"


class Parser(argparse.ArgumentParser):
    """Raises Refused in place of printing its usage and exiting; `--help` keeps the layout of the description."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog, description=description, allow_abbrev=False, usage=f"{prog} [FLAGS] -- COMMAND …",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def error(self, message: str) -> NoReturn:
        raise Refused(message, f"see {self.prog} --help")


def parse(
    parser: Parser, argv: Sequence[str], *, takes_command: bool = True
) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The flags, and the words after the first `--`: what to run on every process.

    Raises:
      Refused: an unknown flag, a value of the wrong type, no command, or one where none belongs.
    """
    argv = list(argv)
    end = argv.index("--") if "--" in argv else len(argv)
    flags, words = parser.parse_known_args(argv[:end])
    command = tuple(argv[end + 1 :])
    for word in words:
        name = word.split("=", 1)[0]
        if name.startswith("-"):
            flag_names = [option for action in parser._actions for option in action.option_strings]
            raise Refused(f"unknown flag {name}", known_names(name, flag_names))
        raise Refused(f"unexpected {word!r}", "flags are --name=value, the command to run comes after --")
    if takes_command and not command:
        raise Refused("no command to run", "give it after --, such as -- python -m vit_jax.train --config=…")
    if command and not takes_command:
        raise Refused(f"a command to run, {command[0]!r}", "leave out -- and what follows here")
    return flags, command


def add_run_flags(parser: Parser) -> None:
    """The flags of every launcher that says what runs and in which environment; see `environment`, `with_cache`."""
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]",
        help="variable of every process; NAME alone takes the value it has here. Values of names with TOKEN, KEY, "
        "SECRET or PASSWORD are never printed",
    )  # fmt: skip
    parser.add_argument(
        "--compile-cache", default="", metavar="FOLDER",
        help="folder or URL of compiled programs, kept across restarts: adds --config.compile_cache to the command",
    )  # fmt: skip
    add_dry_run(parser)


def add_dry_run(parser: Parser) -> None:
    """The flag that all launchers have."""
    parser.add_argument("--dry-run", action="store_true", help="print what would be run, and do nothing")


def environment(
    words: Sequence[str], compile_cache: str, here: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables of `--env`, secrets included, and what a compile cache needs.

    Raises:
      Refused: a name that is none, is given twice, or alone and unset here.
    """
    env: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise Refused(f"--env={name!r} is no name of a variable", "write --env=NAME=VALUE")
        if name in env:
            raise Refused(f"--env={name} is given twice", "give it once")
        if not equals and name not in here:
            raise Refused(
                f"--env={name}: no such variable here", f"export {name}, or write --env={name}=VALUE"
            )
        env[name] = value if equals else here[name]
    if "://" in compile_cache:
        # XLA's own caches below jax's can't write to an object store.
        env.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")
    return env


def with_cache(command: Sequence[str], compile_cache: str) -> tuple[str, ...]:
    """The command with its compile cache.

    Raises:
      Refused: it names one itself.
    """
    flag = "--config.compile_cache"
    if not compile_cache:
        return tuple(command)
    if any(word.split("=")[0] == flag for word in command):
        raise Refused(f"--compile-cache and {flag} in the command", "give one of them")
    return (*command, f"{flag}={compile_cache}")


def run_id_env(name: str) -> dict[str, str]:
    """Variables that make all starts of a job one run for Weights & Biases, if the job logs there."""
    return {"WANDB_RUN_ID": name, "WANDB_RESUME": "allow"}


def at_least(flags: argparse.Namespace, **least: float) -> None:
    """Checks numbers.

    Raises:
      Refused: one is smaller.
    """
    for name, minimum in least.items():
        value = getattr(flags, name)
        if not value >= minimum:
            flag = "--" + name.replace("_", "-")
            raise Refused(f"{flag}={value}", f"{flag} is at least {minimum}")


def need_program(name: str, remedy: str, path: str | None = None) -> None:
    """Looks for a program; path: of folders, the environment's when None.

    Raises:
      Refused: it isn't there.
    """
    if shutil.which(name, path=path) is None:
        raise Refused(f"no program {name!r}", remedy)


def is_secret(name: str) -> bool:
    """Whether the value of a variable of this name must not be shown."""
    return _SECRET.search(name) is not None


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The variables as they may be printed."""
    return {name: _MASK if is_secret(name) else value for name, value in env.items()}


def heredoc(argv: Sequence[str], text: str) -> str:
    """A line of shell that gives the command a text to read."""
    end = "EOF"
    while end in text.splitlines():
        end += "_"
    return f"{shlex.join(argv)} <<'{end}'\n{text.rstrip(chr(10))}\n{end}"


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Runs a launcher's main; returns its exit code, 2 when refused, 1 when failed.

    The last line of stderr is then `error: <what> (<remedy>)`; the traceback is shown with --debug only.
    """
    argv = list(argv)
    own = argv[: argv.index("--")] if "--" in argv else argv
    try:
        return main(argv)
    except SystemExit as e:  # argparse's --help
        return e.code if isinstance(e.code, int) else EXIT_FAILED
    except KeyboardInterrupt:
        print("error: interrupted (what runs elsewhere goes on)", file=sys.stderr, flush=True)
        return 130
    except Exception as e:
        if "--debug" in own:
            traceback.print_exc()
        known = isinstance(e, (Refused, Failed, OSError))
        message = str(e) if known else f"{type(e).__name__}: {e} (--debug shows the traceback)"
        print(f"error: {message}", file=sys.stderr, flush=True)
        return EXIT_REFUSED if isinstance(e, Refused) else EXIT_FAILED
