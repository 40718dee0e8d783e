"""The people who work through the alerts: from shift to shift they can handle more or fewer of them.

The desk changes the budget, a live value, whenever a shift begins; the next epoch of the alerts has it. ``coordctl set
flights budget alerts_per_day=50`` does the same from any terminal.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Final

import coord_control as cc
from coord_control.errors import JobClosed
from examples.flights.alerts import Budget

__all__ = ["Desk"]

_SHIFTS: Final = (1.0, 1.4, 0.6)  # factors of the budget; 1 on average


class Desk(threading.Thread):
    """Changes the budget every ``seconds``, on its own thread; never if ``seconds`` is 0."""

    def __init__(self, budget: cc.Live[Budget], alerts_per_day: float, seconds: float) -> None:
        super().__init__(name="desk", daemon=True)
        self._budget = budget
        self._alerts_per_day = alerts_per_day
        self._seconds = seconds
        self._stop_requested = threading.Event()

    def run(self) -> None:
        for shift in itertools.cycle(_SHIFTS if self._seconds else _SHIFTS[:1]):
            with contextlib.suppress(JobClosed):  # it was stopped from outside
                self._budget.set(alerts_per_day=round(self._alerts_per_day * shift, 1))
            if self._stop_requested.wait(self._seconds or None):
                return

    def stop(self) -> None:
        """Make no further change, and wait until the thread has ended."""
        self._stop_requested.set()
        self.join()
