"""The people who work through the alerts: from shift to shift they can handle more or fewer of them.

The desk does not wait for the end of an epoch. So its changes arrive in the middle of epochs, and the resulting events
are blocked at the gateways of subtasks that have not passed the epoch's barrier.
"""

from __future__ import annotations

import itertools
import threading
from typing import Final

from examples.flights.alerts import ThresholdCoordinator

__all__ = ["Desk"]

_SHIFTS: Final = (1.0, 1.4, 0.6)  # factors of the budget; 1 on average


class Desk(threading.Thread):
    """Changes the budget every ``seconds``, on its own thread; never if ``seconds`` is 0."""

    def __init__(self, coordinator: ThresholdCoordinator, alerts_per_day: float, seconds: float) -> None:
        super().__init__(name="desk", daemon=True)
        self._coordinator = coordinator
        self._alerts_per_day = alerts_per_day
        self._seconds = seconds
        self._stop_requested = threading.Event()

    def run(self) -> None:
        for shift in itertools.cycle(_SHIFTS if self._seconds else _SHIFTS[:1]):
            self._coordinator.change_budget(round(self._alerts_per_day * shift, 1))
            if self._stop_requested.wait(self._seconds or None):
                return

    def stop(self) -> None:
        """Make no further change, and wait until the thread has ended."""
        self._stop_requested.set()
        self.join()
