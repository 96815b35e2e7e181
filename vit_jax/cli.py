"""What all commands share: flags and config overrides, one-line errors, exit codes, and `vit-jax`."""

import argparse
import ast
import contextlib
import errno
import importlib
import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from absl import flags as absl_flags
from ml_collections import ConfigDict, config_flags

from vit_jax import config as config_lib
from vit_jax import distributed
from vit_jax.distributed import EXIT_FAILED, EXIT_OK, EXIT_REFUSED
from vit_jax.errors import RunFailed, UsageError, known_names

# Command -> module with `main(argv) -> exit code`. Only what exists.
COMMANDS = {
    "train": "vit_jax.train",
    "evaluate": "vit_jax.evaluate",
    "vtab": "vit_jax.vtab",
    "study": "vit_jax.study",
    "predict": "vit_jax.predict",
    "visualize": "vit_jax.visualize",
    "convert": "vit_jax.convert",
    "prepare": "vit_jax.prepare",
    "plan": "vit_jax.plan",
    "bench": "vit_jax.bench",
    "launch": "vit_jax.launch",
}


# What an accelerator, or a host that stands in for one, can be spared.
MORE_MEMORY = (
    "lower global_batch, raise accum_steps, shard with mesh.fsdp, set model.remat=full or take smaller images"
)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of printing its usage and exiting."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog, description=description, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see {self.prog} --help")

    def flag_names(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]


def add_fields(parser: Parser) -> None:
    """The flag `--field=NAME=VALUE`, for what a file of weights can't tell of its model."""
    parser.add_argument(
        "--field", action="append", default=[], metavar="NAME=VALUE",
        help="a model field that the weights can't tell, such as num_heads=12, pool=gap or posemb=sincos2d",
    )  # fmt: skip


def model_fields(words: Sequence[str]) -> dict[str, Any]:
    """The values of `--field` flags: Python literals, else words as they are.

    Raises:
      UsageError: no NAME=VALUE.
    """
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"--field={word}", "write --field=NAME=VALUE")
        try:
            fields[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            fields[name] = value
    return fields


@dataclass(frozen=True)
class Parsed:
    """Parsed command line: the command's own flags, the config with its overrides, and which keys they set."""

    flags: argparse.Namespace
    config: ConfigDict | None
    overrides: tuple[str, ...]


def parse(parser: Parser, argv: Sequence[str], *, config_required: bool = True) -> Parsed:
    """Parses the command's flags, `--config=FILE[:ARG]` and `--config.KEY=VALUE`.

    Raises:
      UsageError: unknown flag, file, config key or name; a value of the wrong type; a left-over word.
    """
    parser.add_argument(
        "--config", metavar="FILE[:ARG]", required=config_required,
        help="config file or shipped name, with its argument; --config.KEY=VALUE overrides a key",
    )  # fmt: skip
    flags, rest = parser.parse_known_args(list(argv))
    _refuse_flags(parser, [word for word in rest if not word.startswith("--config.")])
    if flags.config is None:
        if rest:
            raise UsageError(f"{rest[0]} without --config", "give --config=FILE too")
        return Parsed(flags, None, ())
    config = config_lib.load(flags.config)
    overrides = _override(config, rest)
    config_lib.clear_other_units(config, overrides)
    config_lib.check_finite(config)
    config_lib.check_ranges(config)
    return Parsed(flags, config, overrides)


def parse_words(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses the flags of a command that takes words (such as paths) and no config, in any order.

    All words after `--` are taken as they are, for those that begin with a dash.

    Raises:
      UsageError: unknown flag, or a value of the wrong type.
    """
    argv = list(argv)
    end = argv.index("--") if "--" in argv else len(argv)
    flags, words = parser.parse_known_args(argv[:end])
    _refuse_flags(parser, words)
    return flags, words + argv[end + 1 :]


def _refuse_flags(parser: Parser, left_over: Sequence[str]) -> None:
    for word in left_over:
        name = word.split("=", 1)[0]
        if name.startswith("-"):
            raise UsageError(f"unknown flag {name}", known_names(name, parser.flag_names()))


def _override(config: ConfigDict, words: Sequence[str]) -> tuple[str, ...]:
    """Applies `--config.KEY=VALUE` words to the config; returns the keys that were set.

    KEY=None unsets a key whose default is None; the last word on a key counts.
    """
    last: dict[str, str] = {}
    kept: list[tuple[str | None, str]] = []
    for word in words:
        key = None
        if word.startswith("--config."):
            key, _, value = word.removeprefix("--config.").partition("=")
            config_lib.check_key(config, key)
            last[key] = value
            if value == "None":
                continue
        kept.append((key, word))
    unset = [key for key, value in last.items() if value == "None"]
    for key in unset:
        config_lib.unset(config, key)
    argv = ["vit_jax", *(word for key, word in kept if key not in unset)]
    values = absl_flags.FlagValues()
    config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=argv)
    try:
        left_over = values(argv)[1:]
    except (absl_flags.Error, TypeError, ValueError) as e:
        raise UsageError(str(e).strip(), "configs/base.py has every key and its type") from e
    if left_over:
        raise UsageError(f"unexpected {left_over[0]!r}", "options are --name=value")
    return (*unset, *values["config"].override_values)


@contextlib.contextmanager
def work() -> Iterator[None]:
    """Marks where work starts: from here on even a user's mistake is a failed run (exit 1), not a refusal."""
    try:
        yield
    except UsageError as e:
        raise RunFailed(str(e)) from e


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a command's main and exits: 0 done, 1 failed, 2 refused before work started, or what it returns.

    The last line of stderr is `error: <what> (<remedy>)`; the traceback is shown with --debug only.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    set_up_logging()
    message = ""
    try:
        code = main(argv)
    except SystemExit as e:  # argparse's --help
        code = e.code if isinstance(e.code, int) else EXIT_FAILED
    except (Exception, KeyboardInterrupt) as e:
        if "--debug" in argv:
            traceback.print_exc()
        distributed.blame_peers(e)
        code, message = _explain(e, debug="--debug" in argv)
        _report(message, code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    if message:
        distributed.depart(code, message.strip().splitlines()[0])
    sys.exit(code)


def _explain(error: BaseException, *, debug: bool) -> tuple[int, str]:
    """The exit code, and what is said of an error."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted (the same command goes on from the last checkpoint; SIGTERM saves one first)"
    if isinstance(error, UsageError):
        return EXIT_REFUSED, str(error)
    message = explain(error)
    known = isinstance(error, RunFailed) or debug
    return EXIT_FAILED, message if known else f"{message} (--debug shows the traceback)"


def explain(error: BaseException) -> str:
    """What is said of an error; the remedy in brackets at the end of its first line, where one is known."""
    if isinstance(error, UsageError | RunFailed):
        return str(error)
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if "RESOURCE_EXHAUSTED" in message:
        return f"out of memory: {message.splitlines()[0]} ({MORE_MEMORY})"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full: {message.splitlines()[0]} (free some space; the same command goes on)"
    return message


def _report(message: str, code: int) -> int:
    """Prints the details of a message of several lines first, and its first line last, as the error."""
    first, *details = message.strip().splitlines()
    for line in details:
        print(line, file=sys.stderr)
    print(f"error: {first}", file=sys.stderr, flush=True)
    return code


def set_up_logging() -> None:
    """Log lines of ours from INFO, of libraries from ERROR: what concerns the user is said by us, once."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.ERROR, format="%(asctime)s %(message)s", datefmt="%H:%M:%S",
        force=True,  # some libraries install a handler of their own when imported
    )  # fmt: skip
    logging.getLogger("vit_jax").setLevel(logging.INFO)
    logging.getLogger("absl").setLevel(logging.ERROR)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's C++ log: warnings and errors only


def main() -> NoReturn:
    """The `vit-jax` command: `vit-jax train …` is `python -m vit_jax.train …`."""
    argv = sys.argv[1:]
    listing = "commands: " + ", ".join(COMMANDS)
    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: vit-jax COMMAND …\n{listing}\nvit-jax COMMAND --help says more")
        sys.exit(EXIT_OK)
    command, *rest = argv
    if command not in COMMANDS:
        sys.exit(
            _report(
                str(UsageError(f"unknown command {command!r}", known_names(command, COMMANDS))), EXIT_REFUSED
            )
        )
    if command == "launch":
        find_launch()
    run(importlib.import_module(COMMANDS[command]).main, rest)


def find_launch() -> None:
    """Makes vit_jax.launch of the `launch` folder of a clone; in a wheel it is there.

    An editable install may know another clone's: the one beside this very package counts.
    """
    package = Path(__file__).parent
    folder = package.parent / "launch"
    if (package / "launch").is_dir():
        return
    spec = importlib.util.spec_from_file_location(
        COMMANDS["launch"], folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    module = sys.modules[COMMANDS["launch"]] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
