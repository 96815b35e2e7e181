"""Notices that another process of the run has failed or is gone, says so on stderr, and ends this one.

Without it the others wait in a collective for a process that never comes, or jax aborts them (134) with a C++ stack
and no word of who was lost. Each process raises a counter in the key-value store of jax's coordination service, and
leaves a word there when it ends.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_BEATS, _ENDS = "vit_jax/beat/", "vit_jax/end/"

# As when jax aborts: launchers start all processes again on it.
EXIT_PEER_LOST = 134
# A process whose peer has failed often fails of the same in this moment: it should say so itself.
_OWN_WORDS_S = 1.0


class PeerWatch:
    """Watches the other processes from a thread, from construction to `stop`."""

    def __init__(
        self,
        client: Any,
        *,
        process: int,
        count: int,
        coordinator: str,
        heartbeat_s: float,
        remedy: Callable[[], str],
    ) -> None:
        """Starts to watch.

        Args:
          client: of jax's coordination service.
          process, count: this one, of how many.
          coordinator: host:port of the service, which lives in process 0.
          heartbeat_s: a process silent for so long is gone.
          remedy: what to do when a process is gone, for the message.
        """
        self._client, self._process, self._count = client, process, count
        self._coordinator, self._heartbeat_s, self._remedy = coordinator, heartbeat_s, remedy
        self._interval_s = min(5.0, heartbeat_s / 5)
        self._leaving = threading.Event()
        self._said = threading.Lock()  # taken for good by whoever ends this process: there is one last line
        self._on_abort = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._aborted)
        # jax's own threads abort the process when the service is gone; no handler of Python's would run then.
        ctypes.CDLL(None).signal(signal.SIGABRT, self._on_abort)
        self._thread = threading.Thread(target=self._watch, name="peer-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch of a run that ended well; the others know by it that silence is no loss."""
        self._publish(0, "")
        self._leaving.set()
        self._thread.join()

    def await_verdict(self) -> None:
        """Waits as long as it takes to find out who is gone; returns if nobody is.

        For the thread whose collective has failed: it knows that something is wrong before anybody knows what.
        """
        self._leaving.wait(self._heartbeat_s + 2 * self._interval_s + _OWN_WORDS_S)

    def depart(self, code: int, message: str) -> None:
        """Tells the others why this process ends, and ends it, without the meeting that jax would wait for."""
        self._leaving.set()
        self._publish(code, message)
        if self._process == 0:  # the service dies with this process: the others need a moment to read
            end = time.monotonic() + 2 * self._interval_s + _OWN_WORDS_S
            while time.monotonic() < end and len(self._read(_ENDS)) < self._count:
                time.sleep(0.1)
        self._said.acquire()
        os._exit(code)

    def _watch(self) -> None:
        beat, seen, answered = 0, {}, time.monotonic()
        while not self._leaving.wait(self._interval_s):
            beat, now = beat + 1, time.monotonic()
            try:
                self._client.key_value_set(f"{_BEATS}{self._process}", str(beat), True)
                beats, ends = self._read(_BEATS), self._read(_ENDS)
                answered = now
            except Exception:  # jax's own kinds
                if now - answered > self._heartbeat_s:
                    self._lost(0, f"no answer for {self._heartbeat_s:g} s")
                continue
            for other in set(range(self._count)) - {self._process}:
                if other in ends:
                    end = json.loads(ends[other])
                    if end["code"]:
                        self._failed(other, end["code"], end["message"])
                elif seen.setdefault(other, (None, now))[0] != beats.get(other):
                    seen[other] = (beats.get(other), now)
                elif now - seen[other][1] > self._heartbeat_s:
                    self._lost(other, f"no heartbeat for {self._heartbeat_s:g} s")

    def _read(self, folder: str) -> dict[int, str]:
        return {int(key.rpartition("/")[2]): value for key, value in self._client.key_value_dir_get(folder)}

    def _publish(self, code: int, message: str) -> None:
        with contextlib.suppress(Exception):  # the service may be gone
            end = json.dumps({"code": code, "message": message})
            self._client.key_value_set(f"{_ENDS}{self._process}", end, True)

    def _failed(self, other: int, code: int, message: str) -> None:
        if not self._leaving.wait(_OWN_WORDS_S):
            self._publish(code, f"process {other} failed")
            self._end(code, f"process {other} of {self._count} failed: {message}")

    def _lost(self, other: int, why: str) -> None:
        self._publish(EXIT_PEER_LOST, f"process {other} of {self._count} is gone: {why} ({self._remedy()})")
        if self._process == 0:
            time.sleep(2 * self._interval_s)  # the others read it before the service dies with this process
        self._end(EXIT_PEER_LOST, f"process {other} of {self._count} is gone: {why} ({self._remedy()})")

    def _aborted(self, number: int) -> None:
        """In the thread that called abort()."""
        del number
        if self._process and not self._coordinator_answers():
            what = f"process 0 of {self._count} is gone: the connection to it broke"
        else:
            what = "jax ended this process, as the lines above tell"
        self._end(EXIT_PEER_LOST, f"{what} ({self._remedy()})")

    def _coordinator_answers(self) -> bool:
        host, _, port = self._coordinator.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=2):
            return True
        return False

    def _end(self, code: int, message: str) -> None:
        self._said.acquire()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(code)
