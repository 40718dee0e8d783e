"""Record why the queries of a job had to recover from durable facts, and how long it took.

A recovery begins when a failure is noticed, or when a driver takes a query up that has run before. It ends with the
first epoch that is committed after it; one that fails before that has no duration, and the next one begins.

Threads: any; each query reports from one thread at a time.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from coord_control.durable.job_folder.lineage import Lineage
from coord_control.ids import NO_EPOCH, Epoch, Generation, QueryName
from coord_control.protocol.job_facts import JobListener, RecoveryCause, RecoveryFact

__all__ = ["RecoveryLog"]


@dataclass(frozen=True, slots=True)
class _Open:
    fact: RecoveryFact
    since: float  # monotonic seconds


class RecoveryLog:
    """The recoveries of one driver.

    Args:
        cause: why this driver takes up queries that have run before.
        news: notified of each recovery that has ended.
    """

    def __init__(self, generation: Generation, cause: RecoveryCause, news: JobListener) -> None:
        self._generation = generation
        self._news = news
        self._lock = threading.Lock()
        self._open: dict[QueryName, _Open] = {}
        self._cause = cause

    @property
    def under_way(self) -> int:
        """The number of recoveries in progress."""
        return len(self._open)

    def driver_started(self, lineage: Lineage, committed: Epoch, planned: Epoch) -> None:
        """Record that this driver starts a query in a lineage in which it has run before, or that was restored."""
        query, restored = lineage.query, lineage.restored
        if restored is not None:
            what = f"{query} resumes from checkpoint {restored.checkpoint} at epoch {committed}"
            # What had run after the checkpoint is run again, too.
            reached = planned if lineage.earlier is None else max(planned, lineage.earlier.planned)
            fact = self._fact(RecoveryCause.RESTORE, what, query, committed, reached)
            self._begin(replace(fact, checkpoint=restored.checkpoint, path=restored.path))
        elif planned != NO_EPOCH:
            what = f"{query} is taken up by a new driver after epoch {committed}"
            self._begin(self._fact(self._cause, what, query, committed, planned))

    def query_failed(self, query: QueryName, message: str) -> None:
        """Record that a query has failed, and will be restarted in place."""
        self._begin(self._fact(RecoveryCause.QUERY_FAILED, f"{query} failed", query, NO_EPOCH, NO_EPOCH, message))

    def restarts(self, query: QueryName, committed: Epoch, planned: Epoch) -> None:
        """Record where the query that failed resumes."""
        with self._lock:
            if (current := self._open.get(query)) is not None:
                what = f"{query} failed and is restarted in place after epoch {committed}"
                again = max(0, planned - committed)
                fact = replace(current.fact, what=what, from_epoch=committed, epochs_again=again)
                self._open[query] = replace(current, fact=fact)

    def committed(self, query: QueryName, epoch: Epoch) -> None:
        """End the recovery of a query, because Spark has committed an epoch."""
        with self._lock:
            current = self._open.get(query)
            if current is None or epoch <= current.fact.from_epoch:
                return
            del self._open[query]
            fact = replace(current.fact, duration_seconds=time.monotonic() - current.since)
        self._news.on_recovery(fact)

    def close(self) -> None:
        """End all recoveries with the driver: nothing more will be committed."""
        with self._lock:
            left = [each.fact for each in self._open.values()]
            self._open.clear()
        for fact in left:
            self._news.on_recovery(fact)

    def _fact(
        self, cause: RecoveryCause, what: str, query: QueryName, committed: Epoch, planned: Epoch, message: str = ""
    ) -> RecoveryFact:
        return RecoveryFact(
            cause=cause,
            what=what,
            query=query,
            generation=self._generation,
            from_epoch=committed,
            epochs_again=max(0, planned - committed),
            started_at_seconds=time.time(),
            message=message,
        )

    def _begin(self, fact: RecoveryFact) -> None:
        with self._lock:
            before = self._open.pop(fact.query, None)
            self._open[fact.query] = _Open(fact, time.monotonic())
        if before is not None:
            self._news.on_recovery(before.fact)
