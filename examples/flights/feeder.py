"""Replays the flights as files, one per day, as an upstream system would deliver them.

A file appears under its name with all its rows or not at all, and never changes: that is what Spark's file source needs
to read every row once. An existing day is left alone, so that an interrupted replay resumes.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from examples.flights.data import flights_of_day

__all__ = ["Feeder"]


class Feeder(threading.Thread):
    """Writes the days ``1 .. days`` into ``folder``, on its own thread.

    Args:
        days_per_second: the speed of the replay, or 0 for as fast as possible.
    """

    def __init__(self, flights: pa.Table, folder: Path, days: int, days_per_second: float = 0.0) -> None:
        super().__init__(name="feeder", daemon=True)
        self.fed = 0  #: days that exist
        self._flights = flights
        self._folder = folder
        self._days = days
        self._pause = 1 / days_per_second if days_per_second else 0.0
        self._stop_requested = threading.Event()

    def run(self) -> None:
        began = time.time() - self._days
        for day in range(1, self._days + 1):
            path = self._folder / f"day-{day:03}.parquet"
            is_new = not path.exists()
            if is_new:
                # Spark reads files in the order of their times, and file system clocks are coarse.
                self._write(day, path, began + day)
            self.fed = day  # before the pause: Spark may read the file even if the pause is cut short
            if is_new and self._stop_requested.wait(self._pause):
                return

    def stop(self) -> None:
        """Write no further day, and wait until the thread has ended."""
        self._stop_requested.set()
        self.join()

    def _write(self, day: int, path: Path, modified: float) -> None:
        # Spark ignores names that begin with a dot.
        hidden = path.with_name(f".{path.name}.tmp")
        pq.write_table(flights_of_day(self._flights, day), hidden)
        os.utime(hidden, (modified, modified))
        hidden.replace(path)
