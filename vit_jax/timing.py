"""Where the time goes: buckets, goodput, throughput, and a watchdog for a step that never ends."""

import contextlib
import faulthandler
import sys
import time
from collections.abc import Iterator

BUCKETS = ("start", "compile", "data", "step", "eval", "checkpoint")


class Buckets:
    """Wall-clock seconds by bucket. What no bucket claims counts as `other`.

    `start` is counted from construction to the first `with` of another bucket.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._seconds = dict.fromkeys(BUCKETS, 0.0)

    @contextlib.contextmanager
    def bucket(self, name: str) -> Iterator[None]:
        """Adds the time of the block to a bucket."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - begin

    def end_of_start(self) -> None:
        """Books everything so far, other buckets left out, as `start`."""
        self._seconds["start"] = time.monotonic() - self._begin - sum(self._seconds.values())

    def seconds(self) -> dict[str, float]:
        """Seconds by bucket, with `other` and `total`."""
        total = time.monotonic() - self._begin
        return {**self._seconds, "other": total - sum(self._seconds.values()), "total": total}

    def goodput(self) -> float:
        """Share of the time since construction that went into training steps, 0..1."""
        seconds = self.seconds()
        return seconds["step"] / seconds["total"] if seconds["total"] > 0 else 0.0


class Throughput:
    """Images per second and MFU between two log lines, time for evaluation and checkpoints left out."""

    def __init__(self, flops_per_image: float, peak_flops: float | None) -> None:
        """flops_per_image: of a training step; peak_flops: of all devices together, None if unknown."""
        self._flops_per_image = flops_per_image
        self._peak_flops = peak_flops
        self.restart()

    def restart(self) -> None:
        """Begins a new interval."""
        self._begin = time.monotonic()
        self._images = 0
        self._paused = 0.0

    def add(self, images: int) -> None:
        """Counts the images of a step."""
        self._images += images

    def pause(self, seconds: float) -> None:
        """Leaves out `seconds` that went into something else than training."""
        self._paused += seconds

    def values(self) -> dict[str, float | None]:
        """`img_per_sec`, and `mfu` (0..1; None where the peak is unknown)."""
        seconds = time.monotonic() - self._begin - self._paused
        rate = self._images / seconds if seconds > 0 else 0.0
        mfu = rate * self._flops_per_image / self._peak_flops if self._peak_flops else None
        return {"img_per_sec": rate, "mfu": mfu}


class Watchdog:
    """Prints the stacks of all threads to stderr when nothing was patted for `minutes`; the run goes on."""

    def __init__(self, minutes: float) -> None:
        self._seconds = minutes * 60

    def pat(self) -> None:
        """Something went on: starts the countdown anew."""
        if self._seconds > 0:
            faulthandler.dump_traceback_later(self._seconds, repeat=True, file=sys.__stderr__)

    def stop(self) -> None:
        """Ends the countdown."""
        faulthandler.cancel_dump_traceback_later()
