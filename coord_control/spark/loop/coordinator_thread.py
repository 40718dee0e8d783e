"""The one thread on which every callback of a job's coordinators runs, one at a time (rule C1).

What coordinators do (send, complete, fail) is posted to the job's first-in-first-out inbox, from whatever thread it
comes: that queue is the order of the protocol (rule C2). Callbacks arrive here in the order in which the core decided
them.

A callback that raises fails its query and silences the coordinator until its next reset (C16, C17). One that takes
long is reported while it runs, with its name, because everything else waits for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["CoordinatorThread", "SlowCallback"]

_BACKGROUND_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class SlowCallback:
    """A callback that has been running for too long."""

    operator: str
    callback: str
    seconds: float


class CoordinatorThread:
    """Runs callbacks one at a time, in order."""

    def __init__(self, slow_seconds: float = 1.0) -> None:
        self._slow_seconds = slow_seconds
        self._calls: queue.SimpleQueue[tuple[str, str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._current: tuple[str, str, float] | None = None
        self._reported: float | None = None
        self.slow_callbacks = 0
        self._thread = threading.Thread(target=self._run, name="coord-coordinators", daemon=True)
        # Not an executor: the interpreter's exit waits for the threads of one, whatever hangs in them.
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._background = [
            threading.Thread(target=self._run_background, name=f"coord-background_{number}", daemon=True)
            for number in range(_BACKGROUND_THREADS)
        ]

    def start(self) -> None:
        for thread in (self._thread, *self._background):
            thread.start()

    def is_current(self) -> bool:
        """Return whether the caller is a callback."""
        return threading.current_thread() is self._thread

    @property
    def waiting(self) -> int:
        """The approximate number of callbacks that wait for the one that runs."""
        return self._calls.qsize()

    def submit(self, operator: str, callback: str, call: Callable[[], None]) -> None:
        """Run ``call`` after everything that was submitted before."""
        self._calls.put((operator, callback, call))

    def submit_background(self, work: Callable[[], None]) -> None:
        """Run ``work``, which does not raise, on one of a few other threads; after :meth:`close` not any more."""
        self._work.put(work)

    def drain(self, timeout_seconds: float) -> bool:
        """Wait until everything submitted so far has run. False: it has not within the time."""
        done = threading.Event()
        self.submit("", "drain", done.set)
        return done.wait(timeout_seconds)

    def close(self, timeout_seconds: float) -> None:
        """Run the callbacks that wait, then end the threads; whatever hangs is left behind."""
        self._calls.put(None)
        self._thread.join(timeout_seconds)
        self._is_closed = True
        for _ in self._background:
            self._work.put(None)

    def slow(self) -> SlowCallback | None:
        """Return a callback that has been running too long, each only once; poll this from another thread."""
        current = self._current
        if current is None or self._reported == current[2]:
            return None
        operator, callback, since = current
        seconds = time.monotonic() - since
        if seconds < self._slow_seconds:
            return None
        self._reported = since
        self.slow_callbacks += 1
        return SlowCallback(operator, callback, seconds)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            operator, callback, function = call
            self._current = (operator, callback, time.monotonic())
            function()
            self._current = None

    def _run_background(self) -> None:
        while (work := self._work.get()) is not None and not self._is_closed:
            work()
