"""How the queries of a job end: at the end of their epochs, with a savepoint when one is wanted.

Stop first, then save: for a savepoint after which nothing is processed, every query pauses at the end of its epoch. The
savepoint is taken while nothing runs, and may take as long as it needs: no epoch waits for it, and no sink is given one
that it does not contain. Then the job ends; without a savepoint, the queries go on.

Threads: called by whoever stops the job; one thread per query waits for the end of its epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from coord_control.errors import CheckpointNotCompleted
from coord_control.ids import Epoch, QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.query_state import QueryState
from coord_control.protocol.scheduler.tickets import Outcome
from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle, CompletedCheckpoint
from coord_control.spark.queries.query import ManagedQuery

__all__ = ["savepoint_and_pause", "stop_queries"]

_CLOSE_SECONDS: Final = 5.0
# How long the end of a savepoint that was given up is waited for. What was copied may have to be removed first.
_ABORT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5


def stop_queries(queries: Sequence[ManagedQuery], deadline: float) -> None:
    """Stop every query at the end of its running epoch, or at ``deadline`` (monotonic seconds) in the middle of it."""
    stops = [threading.Thread(target=query.request_stop, args=(deadline,), daemon=True) for query in queries]
    for thread in stops:
        thread.start()
    for query, thread in zip(queries, stops, strict=True):
        thread.join(max(0.0, deadline - time.monotonic()) + _CLOSE_SECONDS)
        query.join(_CLOSE_SECONDS)


def savepoint_and_pause(
    queries: Sequence[ManagedQuery],
    submit: Callable[[], CheckpointHandle],
    is_wanted: Callable[[], bool],
    epochs_in: Callable[[CompletedCheckpoint], Mapping[QueryName, Epoch]],
    timeout_seconds: float,
) -> CompletedCheckpoint:
    """Take a savepoint after which nothing is processed any more, exactly; afterwards stop the queries.

    When there is no savepoint in the end, all queries go on.

    Args:
        submit: asks for the savepoint; called when nothing runs any more.
        is_wanted: whether it still is; asked until then.
        epochs_in: the last epochs that a savepoint holds; asked of one that an earlier request has made.

    Raises:
        CheckpointNotCompleted: the savepoint failed, or is not wanted any more; the job runs on.
        TimeoutError: an epoch has not ended, or the savepoint was not complete, within the time; the job runs on.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        _pause(queries, deadline, is_wanted, timeout_seconds)
        handle = submit()
        completed = _wait(handle, queries, deadline, timeout_seconds)
        if not handle.was_started:
            _check_last(completed, queries, epochs_in(completed))
        return completed
    except BaseException:
        for query in queries:
            query.go_on()
        raise


def _pause(
    queries: Sequence[ManagedQuery], deadline: float, is_wanted: Callable[[], bool], timeout_seconds: float
) -> None:
    if not queries:
        return
    with ThreadPoolExecutor(len(queries), thread_name_prefix="coord-pause") as pool:
        paused = list(pool.map(lambda query: query.pause(deadline, is_wanted), queries))
    if not is_wanted():
        unwanted = Outcome(FailureReason.ABORTED)
        raise CheckpointNotCompleted("savepoint", FailureReason.ABORTED.code, unwanted.message)
    if late := [query.name for query, is_paused in zip(queries, paused, strict=True) if not is_paused]:
        raise TimeoutError(
            f"query {late[0]!r} has not ended its epoch within {timeout_seconds:g} s, so there is no savepoint; the "
            "job runs on. Ask again with more time"
        )


def _wait(
    handle: CheckpointHandle, queries: Sequence[ManagedQuery], deadline: float, timeout_seconds: float
) -> CompletedCheckpoint:
    while True:
        try:
            return handle.wait(max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic())))
        except TimeoutError:
            if time.monotonic() >= deadline:
                late = TimeoutError(
                    f"the savepoint was not complete within {timeout_seconds:g} s and has been given up; the job runs "
                    "on. Ask again with more time"
                )
                return _ended(handle, late)
        # It waits for the pause to end, and the savepoint, if it has not begun, for it.
        if failed := [query.name for query in queries if query.state is QueryState.RESTARTING]:
            reason = FailureReason.QUERY_RESTARTING
            message = Outcome(reason, f"query {failed[0]!r} failed while it paused").message
            return _ended(handle, CheckpointNotCompleted("savepoint", reason.code, message))


def _check_last(
    completed: CompletedCheckpoint, queries: Sequence[ManagedQuery], epochs: Mapping[QueryName, Epoch]
) -> None:
    """Refuse the savepoint of an earlier request with the same key, unless nothing was processed since."""
    if newer := [query for query in queries if query.last_committed != epochs.get(query.name)]:
        reason = FailureReason.KEY_REUSED
        found = f"it is that of savepoint {completed.id}, and query {newer[0].name!r} has processed epochs since"
        raise CheckpointNotCompleted("savepoint", reason.code, Outcome(reason, found).message)


def _ended(handle: CheckpointHandle, otherwise: Exception) -> CompletedCheckpoint:
    """How a savepoint has ended that is given up: it may have been complete before."""
    handle.abort()
    try:
        return handle.wait(_ABORT_SECONDS)
    except (CheckpointNotCompleted, TimeoutError):
        raise otherwise from None
