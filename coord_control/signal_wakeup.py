"""The main thread wakes for every signal, whichever thread of the process takes it.

Python runs signal handlers in the main thread, between two steps of its program. The kernel may give a signal to any
thread that does not block it: to another one when the main thread is just starting a thread, because it blocks all
signals meanwhile, or when it was just about to wait. If the main thread then waits without a timeout (for a lock, a
queue, a socket), nothing wakes it: the handler never runs, and the request to stop has no effect.

So each signal also writes a byte (``signal.set_wakeup_fd``), and a thread that reads it interrupts the main thread
until that has run its handlers. It does so by SIGURG, which does nothing by default.

Threads: the main thread enters and leaves; one thread reads.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

__all__ = ["signals_wake_main_thread"]

_NUDGE: Final = signal.SIGURG
_PAUSE_SECONDS: Final = 0.05


@contextlib.contextmanager
def signals_wake_main_thread() -> Iterator[None]:
    """Have the main thread run the handlers of all signals soon while the block runs, also where it waits.

    A program that sets its own wakeup descriptor meanwhile replaces this one.
    """
    reading, writing = socket.socketpair()
    with reading, writing:
        writing.setblocking(False)
        nudger = _Nudger(reading)
        handler = signal.signal(_NUDGE, nudger.handlers_ran)
        descriptor = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=nudger.run, name="coord-signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            writing.close()
            thread.join()
            signal.signal(_NUDGE, handler)


class _Nudger:
    def __init__(self, reading: socket.socket) -> None:
        self._reading = reading
        self._main = threading.get_ident()
        self._have_run = False

    def handlers_ran(self, signum: int, frame: FrameType | None) -> None:
        """The handler of SIGURG: Python runs all that are due at once, this one among them."""
        self._have_run = True

    def run(self) -> None:
        while received := self._reading.recv(256):
            if any(number != _NUDGE for number in received):
                self._nudge()

    def _nudge(self) -> None:
        self._have_run = False
        while not self._have_run:  # more than once: the main thread may be about to wait
            signal.pthread_kill(self._main, _NUDGE)
            time.sleep(_PAUSE_SECONDS)
