"""Waits until a trigger of a run finds no new data.

Spark's events come ten seconds late, and not at all for a query that is asked in its first seconds of silence
(spark.sql.streaming.noDataProgressEventInterval). ``processAllAvailable`` returns as soon as a trigger that began after
the call has found nothing, in every source and release.

Threads: one per watch, a daemon, because the call ends only with the silence or the run.
"""

from __future__ import annotations

import logging
import threading

from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["IdleWatch"]

_log = logging.getLogger("coord_control.query")


class IdleWatch:
    """Watches one run of a query from now on.

    Attributes:
        run: the run.
        has_been_idle: whether a trigger since has found no new data.
    """

    def __init__(self, run: StreamingQuery) -> None:
        self.run = run
        self.has_been_idle = False
        threading.Thread(target=self._wait, name="coord-idle", daemon=True).start()

    def _wait(self) -> None:
        try:
            self.run.processAllAvailable()
            self.has_been_idle = self.run.isActive  # it returns at the run's end as well
        except Exception as error:  # of the run, which its query sees by itself
            _log.debug("x a run that failed was not idle: %s", error)
