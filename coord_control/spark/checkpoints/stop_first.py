"""Stops the queries of a job at the end of their epochs, on request with a savepoint.

Stop first, then save: for a savepoint after which nothing is processed, every query pauses at the end of its epoch. The
savepoint is taken while nothing runs, and may take as long as it needs: no epoch waits for it, and no sink receives an
epoch that it does not contain. Then the job ends; if the savepoint fails, the queries resume.

Threads: runs on the thread that stops the job; one thread per query waits for the end of its epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from coord_control.errors import CheckpointNotCompleted
from coord_control.ids import QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.query_state import QueryState
from coord_control.protocol.scheduler.tickets import CheckpointOutcome
from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle, CompletedCheckpoint
from coord_control.spark.queries.query import ManagedQuery

__all__ = ["CLOSE_SECONDS", "STOP_SECONDS", "savepoint_and_pause", "savepoint_at_end", "stop_queries"]

#: How long a job may take to end by default.
STOP_SECONDS: Final = 30.0
#: How long the end of a job waits for each of its threads.
CLOSE_SECONDS: Final = 5.0
# How long to wait for the end of an aborted savepoint; its copies may have to be removed first.
_ABORT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5


def stop_queries(queries: Sequence[ManagedQuery], deadline: float) -> None:
    """Stop every query at the end of its running epoch; at ``deadline`` (monotonic seconds) interrupt the epoch."""
    stops = [threading.Thread(target=query.request_stop, args=(deadline,), daemon=True) for query in queries]
    for thread in stops:
        thread.start()
    for query, thread in zip(queries, stops, strict=True):
        thread.join(max(0.0, deadline - time.monotonic()) + CLOSE_SECONDS)
        query.join(CLOSE_SECONDS)


def savepoint_and_pause(
    queries: Sequence[ManagedQuery],
    submit: Callable[[], CheckpointHandle],
    is_wanted: Callable[[], bool],
    moved_since: Callable[[CompletedCheckpoint], QueryName | None],
    timeout_seconds: float,
) -> CompletedCheckpoint:
    """Pause all queries at the end of their epochs and take a savepoint. If it fails, all queries resume.

    Args:
        submit: requests the savepoint; called once all queries are paused.
        is_wanted: returns whether the savepoint is still wanted; polled until then.
        moved_since: returns a query that does not stand where a savepoint has it, or None; called if an earlier request
            with the same key made the savepoint.

    Raises:
        CheckpointNotCompleted: the savepoint failed, or is no longer wanted; the job keeps running.
        TimeoutError: an epoch did not end, or the savepoint did not complete, in time; the job keeps running.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        _pause(queries, deadline, is_wanted, timeout_seconds)
        handle = submit()
        completed = _wait(handle, queries, deadline, timeout_seconds)
        if not handle.was_started and (moved := moved_since(completed)) is not None:
            raise _key_reused(completed, moved)
        return completed
    except BaseException as error:
        for query in queries:
            query.resume()
        if isinstance(error, TimeoutError):
            raise TimeoutError(f"{error}; the job keeps running. Try again with a longer timeout") from error
        raise


def savepoint_at_end(
    queries: Sequence[ManagedQuery], submit: Callable[[], CheckpointHandle], timeout_seconds: float
) -> CompletedCheckpoint:
    """Pause all queries and take a savepoint of a job that ends in any case: they do not resume.

    Raises:
        CheckpointNotCompleted: the savepoint failed.
        TimeoutError: an epoch did not end, or the savepoint did not complete, in time.
    """
    deadline = time.monotonic() + timeout_seconds
    _pause(queries, deadline, lambda: True, timeout_seconds)
    return _wait(submit(), queries, deadline, timeout_seconds)


def _pause(
    queries: Sequence[ManagedQuery], deadline: float, is_wanted: Callable[[], bool], timeout_seconds: float
) -> None:
    if not queries:
        return
    with ThreadPoolExecutor(len(queries), thread_name_prefix="coord-pause") as pool:
        paused = list(pool.map(lambda query: query.pause(deadline, is_wanted), queries))
    if not is_wanted():
        unwanted = CheckpointOutcome(FailureReason.ABORTED)
        raise CheckpointNotCompleted("savepoint", FailureReason.ABORTED.code, unwanted.message)
    if late := [query.name for query, is_paused in zip(queries, paused, strict=True) if not is_paused]:
        raise TimeoutError(
            f"query {late[0]!r} did not end its epoch within {timeout_seconds:g} s: there is no savepoint"
        )


def _wait(
    handle: CheckpointHandle, queries: Sequence[ManagedQuery], deadline: float, timeout_seconds: float
) -> CompletedCheckpoint:
    while True:
        try:
            return handle.wait(max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic())))
        except TimeoutError:
            if time.monotonic() >= deadline:
                late = TimeoutError(f"the savepoint did not complete within {timeout_seconds:g} s and was aborted")
                return _ended(handle, late)
        # The query restarts only after the pause, and a savepoint that has not started yet waits for the query.
        if failed := [query.name for query in queries if query.state is QueryState.RESTARTING]:
            reason = FailureReason.QUERY_RESTARTING
            message = CheckpointOutcome(reason, f"query {failed[0]!r} failed while it paused").message
            return _ended(handle, CheckpointNotCompleted("savepoint", reason.code, message))


def _key_reused(completed: CompletedCheckpoint, moved: QueryName) -> CheckpointNotCompleted:
    reason = FailureReason.KEY_REUSED
    found = f"it is that of savepoint {completed.id}, and query {moved!r} has processed epochs, or was restored, since"
    return CheckpointNotCompleted("savepoint", reason.code, CheckpointOutcome(reason, found).message)


def _ended(handle: CheckpointHandle, otherwise: Exception) -> CompletedCheckpoint:
    """Abort a savepoint, and return it if it completed before that; otherwise raise ``otherwise``."""
    handle.abort()
    try:
        return handle.wait(_ABORT_SECONDS)
    except (CheckpointNotCompleted, TimeoutError):
        raise otherwise from None
