"""Ctrl-C while a job ends: the first one waits for the end, the second one does not.

Python raises KeyboardInterrupt in the main thread, wherever that is. Half-way through the end of a job the claim would
not be released, and the last records would be missing.

Threads: any; Python runs signal handlers in the main thread, and only that one can be interrupted.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

__all__ = ["InterruptsWait"]

_log = logging.getLogger("coord_control.job")

_NOTE: Final = "= the job is stopping; press Ctrl-C again to end without waiting for that"


class InterruptsWait:
    """Hold the first SIGINT back until the block has ended; the program's handler then gets it.

    Nothing changes on other threads, and where SIGINT is ignored or ends the process.
    """

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._is_held = False

    def __enter__(self) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._hold)

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._is_held:
                self._handler(signal.SIGINT, None)

    def _hold(self, signum: int, frame: FrameType | None) -> None:
        if self._is_held and self._handler is not None:
            self._handler(signum, frame)
        self._is_held = True
        # The main thread may hold any lock, those of logging as well.
        threading.Thread(target=_log.warning, args=(_NOTE,), name="coord-interrupt", daemon=True).start()
