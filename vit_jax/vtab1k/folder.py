"""Whose table a workdir holds: `vtab.json` has the config, the checkpoint and the data of the first command."""

import fnmatch
import json
import os
from collections.abc import Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax import distributed, files
from vit_jax.errors import UsageError
from vit_jax.vtab1k.results import write_whole
from vit_jax.workdir import differences, plain

FILE = "vtab.json"
# Config keys that change nothing that a trial finds; more seeds are more runs beside those there are.
MAY_DIFFER = (
    "config.checkpoint.*", "config.log_*", "config.profile.*", "config.tensorboard", "config.watchdog_minutes",
    "config.compile_cache", "config.mesh.*", "config.fsdp_min_size", "config.distributed.*", "config.data.num_*",
    "config.data.prefetch_*", "config.data.on_bad_image",  # every result says how many it counted
    "config.eval.*", "config.vtab.seeds", "config.vtab.keep_*",
)  # fmt: skip
_SHOWN = 8


def open_folder(workdir: epath.Path, config: ConfigDict, data_dir: str) -> None:
    """Makes the folder, or goes on in that of an earlier command.

    Args:
      config: settled; `init` is the checkpoint.

    Raises:
      UsageError: it holds another table, or something else; names the keys that differ.
    """
    mine = plain({"data_dir": _spelled(data_dir), "config": config_lib.to_dict(config)})
    path = workdir / FILE
    if workdir.exists() and not workdir.is_dir():
        raise UsageError(f"the workdir {workdir} is a file", "choose a folder")
    if path.exists():
        _compare(path, mine)
        return
    if (workdir / "config.json").exists() or (workdir / "results").exists():
        raise UsageError(
            f"the workdir {workdir} holds something else: it has no {FILE}", "choose another --workdir"
        )
    if not distributed.is_main():
        return
    try:
        files.make_folder(workdir)
        write_whole(path, json.dumps(mine, indent=1, allow_nan=False) + "\n")
    except Exception as error:  # OSError, or a storage layer's own kinds
        raise UsageError(
            f"can't write to the workdir {workdir}: {files.line(error)}", "choose another --workdir"
        ) from None


def _spelled(data_dir: str) -> str:
    """A folder's one spelling, so that `data` and `data/` are the same."""
    return data_dir if not data_dir or files.is_remote(data_dir) else os.path.abspath(data_dir)


def _compare(path: epath.Path, mine: dict[str, Any]) -> None:
    try:
        stored = json.loads(path.read_text())
        stored["data_dir"] = _spelled(stored["data_dir"])
        found = differences(stored, mine, {"config": config_lib.to_dict(config_lib.base_config())})
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"can't read {path}: {files.line(error)}", "choose another --workdir") from None
    other = {key: pair for key, pair in found.items() if not _matches(key, MAY_DIFFER)}
    if other:
        shown = [
            f"{key.removeprefix('config.')} is {old!r} there, {new!r} here"
            for key, (old, new) in other.items()
        ]
        more = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
        raise UsageError(
            f"the workdir {path.parent} holds another table: " + "; ".join(shown[:_SHOWN] + more),
            "choose another --workdir, or give the config and checkpoint it was started with",
        )


def _matches(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)
