"""The events from outside of one operator, between their receiver and the coordinator's thread.

The rules are those of :mod:`coord_control.protocol.control_events`; here is the lock that lets three threads use them:
events are accepted from any thread, applied on the coordinators' thread, and found to be durable on the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from coord_control.ids import OperatorUid
from coord_control.protocol.control_events import EventFeed, Numbered
from coord_control.protocol.job_facts import FeedStatus, JobListener
from coord_control.protocol.records import EventBatch

__all__ = ["ControlFeed", "WaitingEvent"]

# Far below what may wait for a subtask: an epoch that never comes must not let events from outside fail the query.
_MAX_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class WaitingEvent:
    """As bytes, because a coordinator that is given it twice may have changed what it was given first."""

    batch: EventBatch
    subtask: int | None


class ControlFeed:
    """The feed of one operator.

    Args:
        news: notified of the outcomes of events, without the lock.
    """

    def __init__(self, operator: OperatorUid, news: JobListener) -> None:
        self._operator = operator
        self._news = news
        self._lock = threading.Lock()
        self._feed: EventFeed[WaitingEvent] = EventFeed(_MAX_BYTES)

    @property
    def is_open(self) -> bool:
        """Whether it is known how far the coordinator is."""
        return self._feed.applied is not None

    def status(self) -> FeedStatus:
        with self._lock:
            return FeedStatus(self._feed.applied, self._feed.durable, self._feed.waiting, self._feed.refused)

    def accept(self, number: int, event: WaitingEvent) -> bool:
        """Take an event; False: it is here already, or applied."""
        with self._lock:
            return self._feed.accept(number, event, len(event.batch.payload))

    def recovered(self, number: int, refused: Collection[int] = ()) -> None:
        """Start from a recovered coordinator at this number; ``refused`` are the numbers that are recorded as
        refused."""
        with self._lock:
            self._feed.recovered(number, refused)
        self._news.on_feed_open(self._operator, number)
        if number:
            self._news.on_events_durable(self._operator, number)

    def take(self) -> Numbered[WaitingEvent] | None:
        """Return the next event to apply, as :meth:`.EventFeed.take` does."""
        with self._lock:
            return self._feed.take()

    def applied(self, number: int, error: Exception | None, subtasks: tuple[int, ...] = ()) -> None:
        """Record that an event was passed to the coordinator: what it raised, and to which subtasks it sent
        something."""
        if error is None:
            self._news.on_event_applied(self._operator, number, subtasks)
            return
        with self._lock:
            self._feed.refuse(number)
        self._news.on_event_refused(self._operator, number, error)

    def refused(self) -> tuple[int, ...]:
        """Return the numbers that are to be recorded as refused."""
        with self._lock:
            return self._feed.refused

    def forget(self, refused: Collection[int]) -> None:
        """Stop recording these refused events: their outcomes are durable."""
        with self._lock:
            self._feed.forget(refused)

    def recorded(self, number: int) -> bool:
        """Note that a record with this number is durable. Return False if that was known."""
        with self._lock:
            is_news = self._feed.recorded(number)
        if is_news:
            self._news.on_events_durable(self._operator, number)
        return is_news
