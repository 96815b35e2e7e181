"""A profiler window: a few steps, recorded for TensorBoard or Perfetto."""

import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
from etils import epath

from vit_jax import files

_log = logging.getLogger(__name__)


class Profile:
    """Traces `num_steps` steps from `start_step` on into `folder`; does nothing if `start_step` is None."""

    def __init__(self, folder: Path, start_step: int | None, num_steps: int) -> None:
        self._folder = folder
        self._start = start_step
        self._end = None if start_step is None else start_step + num_steps
        self._running = False

    def before_step(self, step: int) -> None:
        """To be called before the step that makes step + 1 batches seen."""
        if self._start is not None and step == self._start:
            self._local = tempfile.mkdtemp() if files.is_remote(self._folder) else str(self._folder)
            jax.profiler.start_trace(self._local)
            self._running = True

    def after_step(self, step: int, result: Any) -> None:
        """To be called with the number of batches seen; `result` is waited for before the trace ends."""
        if self._running and step >= self._end:
            jax.block_until_ready(result)
            self.stop()

    def stop(self) -> None:
        """Ends a trace that is still running."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
            if files.is_remote(self._folder):  # the profiler writes local files only
                files.upload(Path(self._local), epath.Path(self._folder))
                shutil.rmtree(self._local)
            _log.info("profile written to %s", self._folder)
