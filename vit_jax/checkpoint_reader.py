"""Reading checkpoints: find the newest intact step, restore it onto any mesh, verify every array.

orbax notices neither a flipped bit nor a missing file it can do without, so a step counts as complete only by
its own `digests.json` (`manifest.py`), and what is restored is compared with it, array by array.
"""

import errno
import logging
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from vit_jax import files, manifest
from vit_jax.digest import tree_digests
from vit_jax.errors import UsageError
from vit_jax.manifest import Damaged
from vit_jax.paths import named_leaves, nested

_log = logging.getLogger(__name__)

ITEM = "state"  # the subfolder of a step with the arrays
COMMIT_MARK = "commit_success.txt"  # orbax's last file
_UNFINISHED = re.compile(r"(\d+)\.orbax-checkpoint-tmp")


class CheckpointDamaged(UsageError):
    """No intact step is left to restore."""


class StateMismatch(UsageError):
    """The saved arrays aren't those of this model and optimizer."""


class Reader:
    """The steps of a folder of checkpoints, read only. All processes must call its methods together."""

    def __init__(self, folder: str | epath.Path) -> None:
        """The folder holds one subfolder per step, such as WORKDIR/checkpoints; it need not exist."""
        self.folder = epath.Path(folder) if files.is_remote(folder) else epath.Path(folder).absolute()
        _quiet_orbax()

    def steps(self) -> list[int]:
        """Steps that were saved completely, in order; their content isn't checked."""
        return [step for step in self.step_folders() if (self.folder / str(step) / manifest.FILE).exists()]

    def latest_step(self) -> int | None:
        """The newest of `steps()`."""
        steps = self.steps()
        return steps[-1] if steps else None

    def restore(self, step: int, target: Any) -> Any:
        """Restore one step as the tree `target` of `jax.ShapeDtypeStruct` with shardings (or of arrays).

        Any mesh and process count will do. Returns the tree, bit for bit what was saved.

        Raises:
          CheckpointDamaged: the step is missing or damaged.
          StateMismatch: other paths, shapes or dtypes were saved.
        """
        try:
            return self._load(step, target)
        except Damaged as why:
            raise CheckpointDamaged(
                f"checkpoint step {step} of {self.folder} damaged: {why}", self._other_steps(step)
            ) from None

    def restore_latest(self, target: Any) -> tuple[int, Any] | None:
        """Restore the newest intact step: (step, tree), or None where nothing was ever saved completely.

        Each damaged step that is passed over is named by one warning line.

        Raises:
          CheckpointDamaged: there are steps, and none is intact.
          StateMismatch: other paths, shapes or dtypes were saved.
        """
        return self._newest(lambda step: self._load(step, target))

    def restore_arrays(self, step: int | None = None, *, subtree: str = "") -> tuple[int, dict[str, Any]]:
        """Read a step (the newest intact one by default) as nested dicts of numpy arrays, structure unknown.

        `subtree` such as "params" reads that part alone and returns it without the prefix. For one process.

        Raises:
          CheckpointDamaged: nothing intact.
          UsageError: nothing saved, or no such subtree.
        """
        if step is not None:
            try:
                return step, self._load_numpy(step, subtree)
            except Damaged as why:
                raise CheckpointDamaged(
                    f"checkpoint step {step} of {self.folder} damaged: {why}", self._other_steps(step)
                ) from None
        found = self._newest(lambda s: self._load_numpy(s, subtree))
        if found is None:
            raise UsageError(f"no checkpoint in {self.folder}", "give the folder of a run that has saved one")
        return found

    def _newest(self, load: Callable[[int], Any]) -> tuple[int, Any] | None:
        damaged: list[tuple[int, str]] = []
        found = None
        folders = self.step_folders()
        for step in reversed(folders):
            try:
                found = (step, load(step))
                break
            except Damaged as why:
                damaged.append((step, str(why)))
        if found is None and damaged:
            list_of = "; ".join(f"step {step}: {why}" for step, why in damaged)
            raise CheckpointDamaged(
                f"no intact checkpoint in {self.folder}: {list_of}",
                "move the folder away to start from the beginning, or restore it from a copy",
            )
        cut_off = [
            (step, "incomplete, its save was cut off")
            for step in self.unfinished()
            if step not in folders and (found is None or step > found[0])
        ]
        what_now = f"using step {found[0]}" if found else "no earlier step, starting from the beginning"
        if jax.process_index() == 0:
            for step, why in sorted(damaged + cut_off, reverse=True):
                _log.warning("checkpoint step %d damaged: %s; %s", step, why, what_now)
        self._tidy([step for step, _ in damaged])
        return found

    def _tidy(self, damaged: list[int]) -> None:
        """A reader leaves everything in its place."""

    def _load(self, step: int, target: Any) -> Any:
        wanted = named_leaves(target)
        record = self._checked_manifest(step)
        _compare(record, wanted, self.folder / str(step))
        arrays, why = None, None
        try:
            arrays = _read(self.folder / str(step), {name: _restore_args(x) for name, x in wanted.items()})
        except Exception as error:  # whatever a reader of broken files raises
            if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
                raise
            why = f"reading it failed: {first_line(error)}"
        _all_agree(why)
        _check_digests(record, arrays)
        return jax.tree.unflatten(jax.tree.structure(target), [arrays[name] for name in wanted])

    def _load_numpy(self, step: int, subtree: str) -> dict[str, Any]:
        record = self._checked_manifest(step)
        prefix = subtree + "/" if subtree else ""
        names = [name for name in record.arrays if name.startswith(prefix)]
        if not names:
            known = sorted({name.split("/")[0] for name in record.arrays})
            raise UsageError(f"{self.folder / str(step)} has no {subtree!r}", "it has: " + ", ".join(known))
        args = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        try:
            arrays = _read(self.folder / str(step), args)
        except Exception as error:  # as in _load
            raise Damaged(f"reading it failed: {first_line(error)}") from None
        _check_digests(record, arrays)
        return nested({name.removeprefix(prefix): array for name, array in arrays.items()})

    def _checked_manifest(self, step: int) -> manifest.Manifest:
        folder, record, why = self.folder / str(step), None, None
        try:
            record = manifest.read(folder)
            if not ocp.utils.is_checkpoint_finalized(folder):
                raise Damaged("incomplete, its commit mark is missing")
            if jax.process_index() == 0:  # one process reads the files through
                manifest.check_files(folder, record)
        except Damaged as damage:
            why = str(damage)
        except PermissionError as error:
            raise UsageError(
                f"can't read {folder}: {first_line(error)}", "check its owner and mode"
            ) from None
        _all_agree(why)
        return record

    def step_folders(self) -> list[int]:
        """All step folders, intact or not, in order; those of saves that were cut off are none."""
        if files.is_remote(self.folder):
            return sorted(step for step, path in self._numbered().items() if _committed(path))
        return sorted(self._numbered())

    def unfinished(self) -> dict[int, list[epath.Path]]:
        """Step -> folders that a killed save left behind."""
        if files.is_remote(self.folder):  # no rename there: a save writes where it stays, its mark comes last
            return {step: [path] for step, path in self._numbered().items() if not _committed(path)}
        found: dict[int, list[epath.Path]] = {}
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if match := _UNFINISHED.match(path.name):
                found.setdefault(int(match[1]), []).append(path)
        return found

    def _numbered(self) -> dict[int, epath.Path]:
        if not self.folder.exists():
            return {}
        return {int(path.name): path for path in self.folder.iterdir() if path.name.isdecimal()}

    def _other_steps(self, step: int) -> str:
        others = [str(s) for s in self.steps() if s != step]
        return "other steps: " + ", ".join(others) if others else "it has no other step"


def _committed(folder: epath.Path) -> bool:
    return (folder / COMMIT_MARK).exists()


def _restore_args(leaf: Any) -> ocp.ArrayRestoreArgs:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        raise ValueError(
            "every leaf of the target needs a sharding: jax.ShapeDtypeStruct(shape, dtype, sharding=…)"
        )
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def _read(folder: epath.Path, args: dict[str, ocp.RestoreArgs]) -> dict[str, Any]:
    """Path -> array.

    By the handler: unlike the manager it has no barrier, at which the others would wait forever for a process
    whose part of the files is broken.
    """
    restored = ocp.PyTreeCheckpointHandler().restore(
        folder / ITEM,
        args=ocp.args.PyTreeRestore(
            item=nested(dict.fromkeys(args, 0)), restore_args=nested(args), partial_restore=True
        ),
    )
    return named_leaves(restored)


def _compare(record: manifest.Manifest, wanted: dict[str, Any], folder: epath.Path) -> None:
    rows = []
    for name in sorted(record.arrays.keys() | wanted.keys()):
        saved, asked = record.arrays.get(name), wanted.get(name)
        if asked is None:
            rows.append(f"{name}: only in the checkpoint, {saved.dtype}{list(saved.shape)}")
        elif saved is None:
            rows.append(f"{name}: not in the checkpoint, needs {np.dtype(asked.dtype)}{list(asked.shape)}")
        elif (saved.shape, saved.dtype) != (tuple(asked.shape), str(np.dtype(asked.dtype))):
            rows.append(
                f"{name}: {saved.dtype}{list(saved.shape)} in the checkpoint, "
                f"needs {np.dtype(asked.dtype)}{list(asked.shape)}"
            )
    if rows:
        shown = rows[:8] + ([f"and {len(rows) - 8} more"] if len(rows) > 8 else [])
        raise StateMismatch(
            f"{folder} was saved by another model or optimizer: {len(rows)} arrays differ",
            "give the config it was saved with, or another workdir",
            details="\n".join(f"  {row}" for row in shown),
        )


def _check_digests(record: manifest.Manifest, arrays: dict[str, Any]) -> None:
    digests = tree_digests(arrays)
    wrong = [name for name in digests if digests[name] != record.arrays[name].digest]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise Damaged(f"the content of {wrong[0]}{more} differs from its digest")


def _all_agree(why: str | None) -> None:
    """Raise Damaged on every process if one of them has a reason."""
    if jax.process_count() > 1:
        failed = np.flatnonzero(multihost_utils.process_allgather(np.array(why is not None)))
        if failed.size and why is None:
            why = f"process {failed[0]} can't read it"
    if why is not None:
        raise Damaged(why)


def first_line(error: BaseException) -> str:
    """What an error says, short enough for one line; of a storage layer's long story the reason alone."""
    text = str(error).strip()
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES):
        if os.strerror(number) in text:
            return os.strerror(number)
    return (text.splitlines() or [type(error).__name__])[0][:300]


def _quiet_orbax() -> None:
    """What orbax logs, with tracebacks, is raised by this module as one clear error."""
    for name in ("absl", "asyncio"):
        logger = logging.getLogger(name)
        if _not_from_orbax not in logger.filters:
            logger.addFilter(_not_from_orbax)
    if not isinstance(sys.unraisablehook, _WithoutLateWrites):
        sys.unraisablehook = _WithoutLateWrites(sys.unraisablehook)


class _WithoutLateWrites:
    """Python's hook for exceptions nobody can catch, without those of writes that end after the save has failed."""

    def __init__(self, former: Callable[[Any], Any]) -> None:
        self._former = former

    def __call__(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._former(unraisable)


def _not_from_orbax(entry: logging.LogRecord) -> bool:
    if entry.name == "asyncio":  # of each array's write that failed, long after the first one was reported
        return "orbax" not in entry.getMessage()
    return "orbax" not in entry.pathname.replace("\\", "/").split("/")
