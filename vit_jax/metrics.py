"""Training metrics, fetched one step late so that the device never waits for the log."""

import logging
import os
from collections.abc import Callable
from typing import Any, TextIO

import jax
from tqdm import tqdm

from vit_jax.errors import RunFailed
from vit_jax.timing import Throughput
from vit_jax.writers import Writer

_log = logging.getLogger(__name__)


class NonFinite(RunFailed):
    """Too many updates in a row were not finite."""


def shows_bars(stream: TextIO) -> bool:
    """Whether a progress bar can be seen: a terminal, and not one of zero columns."""
    try:
        return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError):
        return False


class StepLog:
    """Takes each step's metrics as device arrays and handles them when the next step has been dispatched.

    Waiting for step N-1 while N runs also keeps the host from running ahead without bound.
    """

    def __init__(
        self,
        writer: Writer,
        throughput: Throughput,
        *,
        total_steps: int,
        start_step: int,
        every_steps: int,
        images_per_step: int,
        nonfinite_limit: int,
        describe_batch: Callable[[int], str],
        show_bar: bool,
    ) -> None:
        """Makes the log.

        Args:
          writer: where the lines go.
          throughput: counts images.
          total_steps, start_step: of the run.
          every_steps: between lines; the first step of a run and the last are always logged.
          images_per_step: the global batch.
          nonfinite_limit: skipped updates in a row that end the run.
          describe_batch: what batch (0-based) was made of, for the message.
          show_bar: a progress bar instead of log lines, for a terminal.
        """
        self._writer = writer
        self._throughput = throughput
        self._total = total_steps
        self._every = every_steps
        self._images = images_per_step
        self._limit = nonfinite_limit
        self._describe_batch = describe_batch
        self._pending: tuple[int, dict[str, jax.Array]] | None = None
        self._warned = 0.0
        self._bar = tqdm(
            total=total_steps, initial=start_step, unit="step", dynamic_ncols=True, disable=not show_bar
        )
        self.last: dict[str, float | None] = {}

    def push(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Takes the metrics of the step that makes `step` batches seen; handles those of the step before.

        Raises:
          NonFinite: after `nonfinite_limit` skipped updates in a row.
        """
        former, self._pending = self._pending, (step, metrics)
        if former is not None:
            self._handle(*former)

    def flush(self) -> None:
        """Handles the step still pending, waiting for it, and leaves the line free for what is logged next."""
        former, self._pending = self._pending, None
        if former is not None:
            self._handle(*former)
        self._bar.clear()

    def close(self) -> None:
        """Takes the progress bar away."""
        self._bar.close()

    def _handle(self, step: int, metrics: dict[str, jax.Array]) -> None:
        in_a_row = float(jax.device_get(metrics["skipped_in_a_row"]))  # waits for the step
        self._throughput.add(self._images)
        self._bar.update(1)
        if in_a_row > self._warned:
            _log.warning(
                "step %d: loss or gradient not finite, update skipped (%d in a row)", step, int(in_a_row)
            )
        self._warned = in_a_row
        due = step % self._every == 0 or step == self._total or not self.last
        if due or in_a_row >= self._limit:
            self._write(step, {name: float(v) for name, v in jax.device_get(metrics).items()})
        if in_a_row >= self._limit:
            raise NonFinite(
                f"{int(in_a_row)} updates in a row were not finite, the last one for step {step} "
                "(lower optim.lr, set optim.clip_norm, or look at the examples named above)\n"
                f"examples of that step: {self._describe_batch(step - 1)}"
            )

    def _write(self, step: int, values: dict[str, Any]) -> None:
        rate = self._throughput.values()
        self._throughput.restart()
        self.last = {f"train/{name}": value for name, value in (values | rate).items()}
        self._writer.write(step, self.last)
        shown = {"loss": f"{values['loss']:.4g}", "img/s": f"{rate['img_per_sec']:.4g}"}
        self._bar.set_postfix(shown, refresh=False)
        if self._bar.disable:
            left = (self._total - step) * self._images / rate["img_per_sec"] if rate["img_per_sec"] else 0.0
            _log.info(
                "step %d/%d  loss %.4f  lr %.3g  grad_norm %.3g  %.1f img/s  eta %s",
                step, self._total, values["loss"], values["lr"], values["grad_norm"],
                rate["img_per_sec"], tqdm.format_interval(left),
            )  # fmt: skip
