"""Checkpoints of a run: save any pytree of arrays without waiting, keep some, clear up after a killed save.

With `checkpoint_reader.py` the one place that knows orbax.
"""

import contextlib
import dataclasses
import logging
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from vit_jax import files, manifest
from vit_jax.checkpoint_reader import COMMIT_MARK, ITEM, CheckpointDamaged, Reader, StateMismatch, first_line
from vit_jax.digest import Started, finish_digests, start_digests
from vit_jax.errors import RunFailed, UsageError
from vit_jax.manifest import Damaged
from vit_jax.paths import named_leaves, nested

_log = logging.getLogger(__name__)

# orbax writes these after it has called us: they must be there in the end.
_WRITTEN_LATER = ("_CHECKPOINT_METADATA", COMMIT_MARK)


__all__ = [
    "CheckpointDamaged",
    "CheckpointFailed",
    "Checkpoints",
    "Reader",
    "StateMismatch",
    "free_disk_warning",
]


class CheckpointFailed(RunFailed):
    """A save failed: storage full or gone. Steps saved earlier are intact."""


class Checkpoints(Reader):
    """The checkpoints of a run of its own: saves, and clears up after a killed one."""

    def __init__(self, folder: str | epath.Path, *, keep: int, keep_every_steps: int | None) -> None:
        """Keeps the newest `keep` steps, and multiples of `keep_every_steps` (None: no more) for good."""
        super().__init__(folder)
        self._policy = _Keep(keep, keep_every_steps)
        self._orbax: _Manager | None = None
        self._pending: _Pending | None = None
        self._best: float | None = None

    def prepare(self, state: Any) -> None:
        """Compiles what a save needs, so that the first one is as quick as the others.

        It may have to fit into the seconds that are left after SIGTERM.
        """
        finish_digests(start_digests(state))
        self._manager()

    def save(self, step: int, state: Any) -> bool:
        """Save a pytree of arrays; returns once it may be donated, and writes on in the background.

        Waits for the save before, if it is still being written. False if the step is there already.

        Raises:
          CheckpointFailed: this save can't start, or the one before it failed.
          UsageError: the folder holds a newer step (retention would drop this one in silence).
        """
        started = start_digests(state)
        self.wait()
        steps = self.steps()
        if step in steps:
            return False
        if steps and steps[-1] > step:
            raise UsageError(
                f"{self.folder} holds step {steps[-1]}, newer than step {step} to be saved",
                "continue from its newest step, or choose another workdir",
            )
        self._write(step, state, started, value=None)
        return True

    def save_best(self, step: int, state: Any, value: float) -> bool:
        """Save as the only step of the folder if `value` (larger is better) beats the stored one.

        The value is stored with the step, so a restarted run goes on comparing. NaN is never best.
        """
        if self._best is None:
            self._best = self._stored_value()
        if not value > self._best:
            return False
        started = start_digests(state)
        self.wait()
        if step in self.step_folders():
            self._manager().delete(step)
        else:
            self._drop_unfinished()
        self._policy.only = step
        self._write(step, state, started, value=float(value))
        self._best = float(value)
        return True

    def wait(self) -> None:
        """Wait until the last save is complete.

        Raises:
          CheckpointFailed: it failed.
        """
        if self._orbax is not None:
            with self._failures():
                self._orbax.wait_until_finished()
        self._pending = None

    def check_errors(self) -> None:
        """Raise CheckpointFailed if a save in the background has failed by now; never waits."""
        if self._orbax is not None and not self._orbax.is_saving_in_progress():
            # orbax's own check_for_errors misses those that its last thread has picked up.
            self.wait()

    def close(self) -> None:
        """Wait for the last save, then free orbax's threads.

        Raises:
          CheckpointFailed: the save failed.
        """
        try:
            self.wait()
        finally:
            if self._orbax is not None:
                with contextlib.suppress(Exception):  # what failed was raised by wait
                    self._orbax.close()
            self._orbax = None

    def _write(self, step: int, state: Any, started: Started, *, value: float | None) -> None:
        leaves = named_leaves(state)
        described = {name: (tuple(np.shape(x)), str(np.dtype(x.dtype))) for name, x in leaves.items()}
        self._pending = _Pending(step, described, started, value)
        args = ocp.args.Composite(**{ITEM: ocp.args.PyTreeSave(nested(leaves))})
        with self._failures():
            self._manager().save(step, args=args, force=True)

    def _manager(self) -> "_Manager":
        if self._orbax is None:
            options = ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                lightweight_initialize=True,
                async_options=ocp.AsyncOptions(post_finalization_callback=self._record),
            )
            self._orbax = _Manager(self.folder, options=options)
        return self._orbax

    def _record(self) -> None:
        """Called by orbax on process 0 when all files are written, just before the folder gets its name.

        So a step never appears without its record, and older steps go only after that.
        """
        pending = self._pending
        arrays = {
            name: manifest.Array(*pending.described[name], digest)
            for name, digest in finish_digests(pending.started).items()
        }
        if files.is_remote(self.folder):  # without rename the mark commits, which orbax writes next
            folder = self.folder / str(pending.step)
        else:
            folder = max(self.unfinished()[pending.step], key=lambda path: path.stat().mtime)
            # Here the rename commits, and not every orbax leaves a mark besides; the record counts on one.
            (folder / COMMIT_MARK).touch()
        manifest.write(folder, step=pending.step, arrays=arrays, value=pending.value, later=_WRITTEN_LATER)

    @contextlib.contextmanager
    def _failures(self) -> Any:
        try:
            yield
        except Exception as error:
            step = self._pending.step if self._pending else None
            intact = [str(s) for s in self.steps() if s != step]
            raise CheckpointFailed(
                f"saving checkpoint step {step} to {self.folder} failed: {first_line(error)} "
                f"(saved before and intact: {', '.join(intact) or 'none'}; mend the storage and start again)"
            ) from error

    def _stored_value(self) -> float:
        values = []
        for step in self.steps():
            with contextlib.suppress(Damaged):
                values.append(manifest.read(self.folder / str(step)).value)
        return max((value for value in values if value is not None), default=-np.inf)

    def _tidy(self, damaged: list[int]) -> None:
        """Move damaged steps aside, so that the run saves them again; drop what killed saves left."""
        if jax.process_index() == 0:
            aside = self.folder.parent / f"{self.folder.name}_damaged"
            for step in damaged:
                there = [path.name for path in aside.iterdir()] if aside.exists() else []
                number = sum(name.startswith(f"{step}-") for name in there) + 1
                files.move_folder(self.folder / str(step), aside / f"{step}-{number}")
        self._drop_unfinished()
        if self._orbax is not None:
            self._orbax.reload()

    def _drop_unfinished(self) -> None:
        if jax.process_index() == 0:
            for paths in self.unfinished().values():
                for path in paths:
                    path.rmtree()
        _barrier("checkpoints_tidied")


def free_disk_warning(folder: str | epath.Path, state_bytes: int) -> str | None:
    """Warn, and return the warning, when a local disk has room for less than two checkpoints of this size."""
    path = epath.Path(folder)
    if files.is_remote(folder):
        return None
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free
    if free >= 2 * state_bytes:
        return None
    text = (
        f"{folder}: {free / 2**30:.2f} GiB free, less than two checkpoints of {state_bytes / 2**30:.2f} GiB; "
        "free some space, or lower checkpoint.keep"
    )
    _log.warning("%s", text)
    return text


class _Manager(ocp.CheckpointManager):
    def reached_preemption(self, step: int) -> bool:
        """Never: to ask jax with a step number would spoil the count of whoever else asks.

        jax compares the numbers of all callers with one sync point; `distributed.preempted` is the caller.
        """
        del step
        return False


@dataclasses.dataclass
class _Pending:
    step: int
    described: dict[str, tuple[tuple[int, ...], str]]  # path -> shape, dtype
    started: Started
    value: float | None


@dataclasses.dataclass
class _Keep:
    """orbax's preservation policy: the newest steps and multiples, or one step alone."""

    newest: int
    every: int | None
    only: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        del context
        steps = [info.step for info in checkpoints]
        if self.only is not None:
            return [step == self.only for step in steps]
        newest = set(sorted(steps)[-self.newest :])
        return [step in newest or (self.every is not None and step % self.every == 0) for step in steps]


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
