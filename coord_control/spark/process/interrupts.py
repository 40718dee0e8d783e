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
    """Hold the first SIGINT back until the block has ended, if Python or PySpark would raise KeyboardInterrupt.

    Nothing changes on other threads, nor for a program with a handler of its choice: that decides by itself.
    """

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._is_held = False

    def __enter__(self) -> None:
        handler = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and callable(handler) and _raises(handler):
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


def _raises(handler: Callable[[int, FrameType | None], Any]) -> bool:
    # PySpark's cancels all of Spark's jobs before it raises.
    return handler is signal.default_int_handler or str(handler.__module__).startswith("pyspark.")
