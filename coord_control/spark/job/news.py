"""Notify listeners of what happens in a job.

Threads: listeners are added and removed on any thread; they are called one after the other, on the thread of each
event, and what one of them raises is logged and does not affect the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from coord_control.ids import CheckpointId, OperatorUid
from coord_control.protocol.job_facts import JobListener, RecoveryFact
from coord_control.protocol.statistics import CheckpointStatistics

__all__ = ["News"]

_log = logging.getLogger("coord_control.news")


class News(JobListener):
    """A :class:`JobListener` that passes everything on to others."""

    def __init__(self) -> None:
        self._listeners: tuple[JobListener, ...] = ()  # replaced, never changed: it is read without a lock

    def subscribe(self, listener: JobListener) -> Callable[[], None]:
        """Tell ``listener`` from now on; returns what ends that."""
        self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

        return unsubscribe

    def on_checkpoint(self, statistics: CheckpointStatistics) -> None:
        self._tell(lambda listener: listener.on_checkpoint(statistics))

    def on_checkpoint_discarded(self, checkpoint: CheckpointId) -> None:
        self._tell(lambda listener: listener.on_checkpoint_discarded(checkpoint))

    def on_recovery(self, fact: RecoveryFact) -> None:
        self._tell(lambda listener: listener.on_recovery(fact))

    def on_query_changed(self) -> None:
        self._tell(lambda listener: listener.on_query_changed())

    def on_feed_open(self, operator: OperatorUid, applied: int) -> None:
        self._tell(lambda listener: listener.on_feed_open(operator, applied))

    def on_event_applied(self, operator: OperatorUid, number: int, subtasks: tuple[int, ...] = ()) -> None:
        self._tell(lambda listener: listener.on_event_applied(operator, number, subtasks))

    def on_event_refused(self, operator: OperatorUid, number: int, error: Exception) -> None:
        self._tell(lambda listener: listener.on_event_refused(operator, number, error))

    def on_events_durable(self, operator: OperatorUid, number: int) -> None:
        self._tell(lambda listener: listener.on_events_durable(operator, number))

    def _tell(self, call: Callable[[JobListener], None]) -> None:
        for listener in self._listeners:
            try:
                call(listener)
            except Exception:
                _log.exception("x a listener of the job failed")
