"""Trains the runs of a study one after the other: what is through is left alone, what fails is named."""

import logging
import traceback
from collections.abc import Callable, Sequence

import jax
from etils import epath
from ml_collections import ConfigDict

from vit_jax import cli, files
from vit_jax.errors import UsageError
from vit_jax.loop import Outcome
from vit_jax.studies.plan import Cell
from vit_jax.studies.results import ended

_log = logging.getLogger(__name__)


def is_through(path: epath.Path, config: ConfigDict) -> bool:
    """Whether the folder holds this run, as long as it is asked for, and it came to its end."""
    stored = ended(path)
    return stored is not None and all(
        stored[key] == config[key] for key in ("seed", "total_steps", "total_epochs", "total_examples")
    )


def run(
    todo: Sequence[tuple[Cell, ConfigDict]],
    root: epath.Path,
    train: Callable[[ConfigDict, epath.Path], Outcome],
    failed: dict[str, str],
    *,
    debug: bool = False,
) -> bool:
    """Trains what isn't through yet; True if it was told to stop before the end.

    Args:
      todo: runs and their configs, in order.
      train: trains a config in a folder, or goes on there.
      failed: gets name -> why of those that fail.
      debug: show tracebacks.

    Raises:
      UsageError: the very first run was refused before any work.
    """
    started = False
    for number, (cell, config) in enumerate(todo, 1):
        path = root / cell.name
        if is_through(path, config):
            continue
        _log.info("run %d of %d: %s", number, len(todo), cell.name)
        try:
            if not started:
                outcome = train(config, path)
            else:
                with cli.work():
                    outcome = train(config, path)
        except Exception as error:
            if isinstance(error, UsageError) and not started:
                raise
            if debug:
                traceback.print_exc()
            failed[cell.name] = files.line(error)
            _log.error("%s failed: %s", cell.name, failed[cell.name])
            continue
        finally:
            started = True
            jax.clear_caches()  # each run compiles its own programs: they would add up
        if outcome.preempted:
            return True
    return False
