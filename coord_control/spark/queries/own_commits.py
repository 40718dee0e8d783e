"""Which epochs this driver's own runs of a query have committed, by Spark's own word.

``commits/e`` does not say which driver has written it: a driver that was fenced and has not noticed yet writes to the
same Spark checkpoint. Spark's progress does: it names the run, and the duration of ``commitOffsets`` shows that the
epoch was really committed in it (an idle trigger reports the next epoch, which has not run). The stream's thread keeps
it before it plans the next epoch; the listener brings it a moment later.

Threads: any.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from coord_control.ids import NO_EPOCH, Epoch

__all__ = ["OwnCommits"]

_log = logging.getLogger("coord_control.query")

_POLL_SECONDS: Final = 0.05
# Only for a Spark that keeps no progress (spark.sql.streaming.numRecentProgressUpdates=0): then the listener tells it.
_REPORT_SECONDS: Final = 5.0
_COMMITTED: Final = "commitOffsets"


class OwnCommits:
    """What is known of one query.

    Attributes:
        newest: the newest epoch that was committed before the query was started, or by one of its runs since.
        is_interrupted: Spark's run may have been ended between its commit and the report of it.
    """

    def __init__(self) -> None:
        self.newest = NO_EPOCH
        self._proving = threading.Lock()
        self.is_interrupted = False
        self._query: StreamingQuery | None = None
        self._spark_run = ""
        self._is_reported = True

    def recovered(self, committed: Epoch) -> None:
        """Begin at ``committed``, which was read as a fact; only later commits have to be proved."""
        self.newest = committed
        self._query = None

    def started(self, query: StreamingQuery, *, is_reported: bool = True) -> None:
        """Record that Spark has started another run.

        Args:
            is_reported: whether its progress shows commits; continuous processing does not. Then the log of commits is
                all there is.
        """
        self.is_interrupted = False
        self._spark_run = str(query.runId)
        self._is_reported = is_reported
        self._query = query

    def hear(self, progress: Mapping[str, Any]) -> bool:
        """Take up a progress of Spark; return whether it shows a commit of any run."""
        if _COMMITTED not in progress.get("durationMs", {}):
            return False
        if progress.get("runId") == self._spark_run:
            self._prove(Epoch(progress["batchId"]))
        return True

    def look(self, epoch: Epoch) -> Epoch:
        """Return the newest of them up to ``epoch``; asks Spark if that is an earlier one."""
        query = self._query
        if not self._is_reported:
            self._prove(epoch)
        elif self.newest < epoch and query is not None:
            try:
                recent: Any = query._jsq.recentProgress()
                for position in reversed(range(len(recent))):
                    if self.hear(json.loads(recent[position].json())):
                        break
            except (Py4JError, OSError) as error:
                _log.debug("x a JVM that is gone reports nothing: %s", error)
        return min(self.newest, epoch)

    def may_have_committed(self, epoch: Epoch) -> bool:
        """Return whether the run, which has ended, can have made a commit that it has not reported.

        It must have been interrupted, and have planned the epoch: Spark's stream tells which one it was at.
        """
        if not self.is_interrupted or self._query is None:
            return False
        try:
            context: Any = self._query._jsq.streamingQuery().getLatestExecutionContext()
            newest, is_planned = int(context.batchId()), bool(context.isCurrentBatchConstructed())
        except (AttributeError, Py4JError, OSError) as error:
            _log.debug("x where the run has ended is not known: %s", error)
            return True
        return epoch < newest or (epoch == newest and is_planned)

    def _prove(self, epoch: Epoch) -> None:
        with self._proving:
            self.newest = max(self.newest, epoch)

    def wait(self, epoch: Epoch) -> Epoch:
        """As :meth:`look`, for a run that has ended: waits for a report that is a moment late.

        Where no run has been started since the facts were read, nothing has to be proved.
        """
        if self._query is None:
            return epoch
        deadline = time.monotonic() + _REPORT_SECONDS
        while self.look(epoch) < epoch and not self.is_interrupted and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return min(self.newest, epoch)
