"""Lets the queries of a job read what their sources have, before a stop with savepoint.

Every query keeps running until the last one is drained (:mod:`coord_control.spark.queries.drain`), and reads what comes
meanwhile as well. One that is being restarted is waited for.

Threads: runs on the thread that stops the job; each run of a query has a thread that waits for its silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from coord_control.errors import CheckpointNotCompleted, StoreError
from coord_control.ids import Epoch
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.query_state import QueryState
from coord_control.protocol.scheduler.tickets import CheckpointOutcome
from coord_control.spark.queries.drain import QueryDrain
from coord_control.spark.queries.idle_watch import IdleWatch
from coord_control.spark.queries.query import ManagedQuery

__all__ = ["drain"]

_LOOK_SECONDS: Final = 0.1
_TELL_SECONDS: Final = 1.0


def drain(
    queries: Sequence[ManagedQuery], tell: Callable[[str], None], check: Callable[[], None], timeout_seconds: float
) -> None:
    """Wait until every query has read what its sources have now.

    Args:
        tell: called with what is waited for, once a second at most.
        check: called all the time; raises what ends the waiting.

    Raises:
        CheckpointNotCompleted: a query has failed for good.
        TimeoutError: a query was not drained within the time.
    """
    deadline = time.monotonic() + timeout_seconds
    draining = [_Draining(query) for query in queries]
    told, next_telling = "", 0.0
    while True:
        check()
        draining = [each for each in draining if not each.look()]
        if not draining:
            return
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError(f"after {timeout_seconds:g} s of draining, {draining[0].text()}: there is no savepoint")
        if now >= next_telling and (text := "; ".join(each.text() for each in draining)) != told:
            tell(f"draining: {text}")
            told, next_telling = text, now + _TELL_SECONDS
        time.sleep(_LOOK_SECONDS)


class _Draining:
    """One query."""

    def __init__(self, query: ManagedQuery) -> None:
        self._query = query
        self._drain: QueryDrain | None = None  # until its position is known
        self._watch: IdleWatch | None = None

    def look(self) -> bool:
        """Return whether it is drained.

        Raises:
            CheckpointNotCompleted: it has failed for good.
        """
        query = self._query
        if query.error is not None:
            reason = FailureReason.QUERY_FAILED
            message = CheckpointOutcome(reason, f"query {query.name!r} failed while it was drained").message
            raise CheckpointNotCompleted("savepoint", reason.code, message)
        if self._drain is None and (committed := self._position()) is not None:
            self._drain = QueryDrain(committed)
        if (drain := self._drain) is None:
            return False
        if query.state is QueryState.RUNNING:
            self._see(drain)
        elif not query.is_active:
            drain.found_nothing()
        return drain.is_drained

    def _see(self, drain: QueryDrain) -> None:
        run = self._query.spark_query
        if self._watch is None or self._watch.run is not run:
            self._watch = IdleWatch(run)
        if self._watch.has_been_idle:
            drain.found_nothing()
        status = self._query.status()
        drain.heard(status.progress, Epoch(status.committed))

    def _position(self) -> Epoch | None:
        try:
            return self._query.look()
        except StoreError:  # looked at again
            return None

    def text(self) -> str:
        """Return what it waits for."""
        name = f"query {self._query.name!r}"
        if self._query.state is QueryState.RESTARTING:
            return f"{name} is being restarted"
        left = None if self._drain is None else self._drain.left
        return f"{name} still finds new data" if left is None else f"{name} has {left:,} records left"
