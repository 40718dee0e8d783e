"""Removing the older savepoints of a schedule after it has taken a new one.

A savepoint belongs to the schedule that requested it (``requested_by``), whatever its label; savepoints that users
requested are never removed. Kept are the newest ``count``, those at most ``max_age_hours`` older than the newest,
always the newest complete one, and any named by an unfinished command or by the newest recovery. The driver has the
last word: it refuses to remove a savepoint that is being read. A savepoint that cannot be removed is logged and tried
again after the next one; the run does not fail, because its own savepoint is complete.

Threads: blocks the step's thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import dagster as dg

from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import reads
from coord_control.dagster.runs.own_runs import schedule_actor
from coord_control.dagster.spec import RetainSpec
from coord_control.errors import CoordControlError, DatabaseError, JobNotRunning
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    CommandRecord,
    CommandState,
)

__all__ = ["dispose_old", "superfluous"]

#: The most savepoints that one run removes, and the time limit for all of them: the savepoint itself is complete.
_AT_ONCE: Final = 50
_SECONDS: Final = 120.0
_PAGE: Final = 200
_PAGES: Final = 25


def superfluous(
    savepoints: Sequence[CheckpointRecord], retain: RetainSpec, in_use: Collection[int] = ()
) -> list[CheckpointRecord]:
    """Return the savepoints to remove, oldest first.

    Their age is relative to the newest one. Each has its time from the clock of its driver, so after a move to another
    machine the age is off by the difference of two clocks; how many are kept at least does not depend on any.

    Args:
        savepoints: the complete savepoints of one schedule, in any order.
        in_use: ids of savepoints that must be kept.
    """
    newest_first = sorted(savepoints, key=lambda each: each.id, reverse=True)
    kept = max(1, retain.count or 0)
    young = timedelta.min if retain.max_age_hours is None else timedelta(hours=retain.max_age_hours)
    doomed = [
        each for each in newest_first[kept:] if _ended(newest_first[0]) - _ended(each) > young and each.id not in in_use
    ]
    return doomed[::-1]


def _ended(savepoint: CheckpointRecord) -> datetime:
    return savepoint.finished_at or savepoint.triggered_at


def dispose_old(
    context: dg.AssetExecutionContext, client: ControlClient, job: str, schedule_name: str, retain: RetainSpec
) -> list[int]:
    """Remove the savepoints that a schedule does not retain. Errors of this library are logged, not raised.

    Returns:
        The ids of the removed savepoints.
    """
    try:
        savepoints = list(_completed(client, job, schedule_actor(schedule_name)))
        doomed = superfluous(savepoints, retain, _in_use(client, job, savepoints))
        asked = [(each, _ask(context, client, each)) for each in doomed[:_AT_ONCE]]
    except CoordControlError as error:
        context.log.warning(f"the old savepoints of {schedule_name} could not all be removed: {error}")
        return []
    deadline = time.monotonic() + _SECONDS
    return [
        each.id for each, command in asked if command is not None and _gone(context, client, each, command, deadline)
    ]


def _completed(client: ControlClient, job: str, actor: str) -> Iterator[CheckpointRecord]:
    before = None
    for _ in range(_PAGES):
        kind, state = CheckpointKind.SAVEPOINT, CheckpointState.COMPLETED
        page = client.checkpoints(job, kind=kind, state=state, requested_by=actor, limit=_PAGE, before=before)
        yield from page
        if len(page) < _PAGE:
            return
        before = page[-1].id


def _in_use(client: ControlClient, job: str, savepoints: Sequence[CheckpointRecord]) -> set[int]:
    """Return the ids of savepoints that unfinished commands read, or that the newest recovery names."""
    named: set[str] = set()
    for state in (CommandState.PENDING, CommandState.CLAIMED):
        for command in client.commands(job, state=state, limit=_PAGE):
            named |= _named(command)
    for recovery in client.recoveries(job, limit=1):
        named |= {recovery.path or "", str(recovery.from_checkpoint)}
    return {each.id for each in savepoints if named & {str(each.id), each.label, each.path}}


def _named(command: CommandRecord) -> set[str]:
    if not reads(command.kind):
        return set()
    progress = command.progress or {}
    return {str(each) for each in (command.payload.get("ref"), progress.get("path"), progress.get("checkpoint"))}


def _ask(context: dg.AssetExecutionContext, client: ControlClient, savepoint: CheckpointRecord) -> CommandRecord | None:
    # The run is part of the key: a savepoint that is in use today may be removed tomorrow.
    key = f"dagster:{context.run.run_id}:dispose:{savepoint.id}"
    try:
        return client.dispose(savepoint.job, str(savepoint.id), key=key)
    except (DatabaseError, JobNotRunning):
        raise  # the next savepoint would fail in the same way
    except CoordControlError as error:
        context.log.warning(f"savepoint {savepoint.id} is kept: {error}")
        return None


def _gone(
    context: dg.AssetExecutionContext,
    client: ControlClient,
    savepoint: CheckpointRecord,
    command: CommandRecord,
    deadline: float,
) -> bool:
    try:
        client.wait(command, max(0.0, deadline - time.monotonic()))
    except CoordControlError as error:
        context.log.warning(f"savepoint {savepoint.id} in {savepoint.path} is kept: {error}")
        return False
    context.log.info(f"savepoint {savepoint.id} of {savepoint.triggered_at:%Y-%m-%d %H:%M %Z} was removed")
    return True
