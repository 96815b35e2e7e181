"""Work in threads that a person can watch and stop."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

_WAKE_S = 0.1


class Stopped(Exception):
    """The work was broken off on request; what is finished stays."""


@dataclass
class Progress:
    """How much is done, counted by all threads.

    total: of the whole work.
    """

    total: int
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count


def as_they_end(
    futures: Sequence[Future], stop: threading.Event, show: Callable[[], None]
) -> Iterator[Future]:
    """The futures as they end; `show` is called about ten times a second meanwhile.

    Raises:
      Stopped: `stop` was set before the last one ended; those that haven't begun are cancelled.
    """
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_WAKE_S, return_when=FIRST_COMPLETED)
        show()
        yield from done
        if stop.is_set() and pending:
            for future in pending:
                future.cancel()
            raise Stopped
