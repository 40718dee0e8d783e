"""How the queries of a job end: at the end of their epochs, with a savepoint when one is wanted.

Threads: called by whoever stops the job; one thread per query waits for the end of its epoch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from coord_control.errors import CoordControlError
from coord_control.spark.checkpoint_handle import CheckpointHandle, CompletedCheckpoint
from coord_control.spark.query import ManagedQuery

__all__ = ["savepoint_and_hold", "stop_queries"]

_log = logging.getLogger("coord_control.job")

_CLOSE_SECONDS: Final = 5.0


def stop_queries(queries: Sequence[ManagedQuery], deadline: float) -> None:
    """Stop every query at the end of its running epoch, or at ``deadline`` (monotonic seconds) in the middle of it."""
    stops = [threading.Thread(target=query.request_stop, args=(deadline,), daemon=True) for query in queries]
    for thread in stops:
        thread.start()
    for query, thread in zip(queries, stops, strict=True):
        thread.join(max(0.0, deadline - time.monotonic()) + _CLOSE_SECONDS)
        query.join(_CLOSE_SECONDS)


def savepoint_and_hold(
    queries: Sequence[ManagedQuery], submit: Callable[[], CheckpointHandle], timeout_seconds: float
) -> CompletedCheckpoint:
    """Take a savepoint after which nothing is processed any more, exactly; afterwards stop the queries.

    Queries with operators are held: the running epoch ends, hellos of the next one wait. The others are stopped at the
    end of their epoch before the savepoint is taken. When there is no savepoint in the end, all of them go on.

    Raises:
        CheckpointNotCompleted: the savepoint failed; the job runs on.
        TimeoutError: it was not complete within the time and has been given up; the job runs on.
    """
    held = [query for query in queries if query.is_active and query.has_operators]
    stopped = [query for query in queries if query.is_active and not query.has_operators]
    try:
        for query in held:
            query.hold()
        stop_queries(stopped, time.monotonic() + timeout_seconds)
        handle = submit()
        try:
            return handle.wait(timeout_seconds)
        except TimeoutError:
            handle.abort()
            return handle.wait()  # that it was given up, or that it was complete after all
    except BaseException:
        _go_on(held, stopped)
        raise


def _go_on(held: Sequence[ManagedQuery], stopped: Sequence[ManagedQuery]) -> None:
    for query in held:
        try:
            query.release()
        except CoordControlError as error:
            _log.warning("= query %s cannot go on: %s", query.name, error)
    for query in stopped:
        query.start_again()
