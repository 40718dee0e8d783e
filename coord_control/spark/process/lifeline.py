"""The driver's end of the lifeline: it ends with the supervisor, and takes reports for it.

Threads: opened by the main thread before any other is started; reports come from any thread.
"""

from __future__ import annotations

import contextlib
import os
import socket

from coord_control.driver_process import LIFELINE_VARIABLE
from coord_control.driver_report import DriverReport, encode_report

__all__ = ["Lifeline", "open_lifeline", "report"]


class Lifeline:
    """The lifeline of this driver."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def wait_for_end(self) -> None:
        """Wait for the end of the supervisor."""
        with contextlib.suppress(OSError):
            while self._end.recv(64):
                pass

    def report(self, report: DriverReport) -> None:
        """Leave a report for the supervisor, without waiting for it."""
        with contextlib.suppress(OSError):
            self._end.send(encode_report(report), socket.MSG_DONTWAIT)


_lifeline: Lifeline | None = None


def open_lifeline() -> Lifeline | None:
    """Open the lifeline of the supervisor, if there is one, and do not let processes of the script inherit it."""
    global _lifeline
    number = os.environ.pop(LIFELINE_VARIABLE, None)
    if number is not None:
        end = socket.socket(fileno=int(number))
        end.set_inheritable(False)
        _lifeline = Lifeline(end)
    return _lifeline


def report(report: DriverReport) -> None:
    """Leave a report for the supervisor, if there is one."""
    if _lifeline is not None:
        _lifeline.report(report)
