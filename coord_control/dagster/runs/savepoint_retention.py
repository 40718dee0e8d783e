"""Removing the older savepoints of a schedule, after a new one is complete.

A savepoint belongs to a schedule if that asked for it (``requested_by``), whatever its label; those of people are never
touched. What stays is decided here from facts alone: the newest ``count``, those at most ``max_age_hours`` older than
the newest, always the newest complete one, and any that an unfinished command or the newest recovery names. The driver
has the last word: it refuses to remove what is being read. What could not be removed is a line in the log and is tried
again after the next savepoint; it never fails the run whose savepoint is safe already.

Threads: the step's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import dagster as dg

from coord_control.control.client.control_client import ControlClient
from coord_control.dagster.runs.own_runs import schedule_actor
from coord_control.dagster.spec import RetainSpec
from coord_control.errors import CoordControlError, DatabaseError, JobNotRunning
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    CommandKind,
    CommandRecord,
    CommandState,
)

__all__ = ["dispose_old", "superfluous"]

#: At most so many with one run, and so many seconds for all of them: it comes after the savepoint, which is done.
_AT_ONCE: Final = 50
_SECONDS: Final = 120.0
_PAGE: Final = 200
_PAGES: Final = 25


def superfluous(
    savepoints: Sequence[CheckpointRecord], retain: RetainSpec, in_use: Collection[int] = ()
) -> list[CheckpointRecord]:
    """Those that may go, oldest first.

    Their age is measured from the newest one: its time was told by the same clock.

    Args:
        savepoints: the complete ones of one schedule, in any order.
        in_use: ids of savepoints that stay in any case.
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
    """Remove what a schedule does not keep. Raises nothing of ours: what goes wrong is logged.

    Returns:
        The ids of those that are gone.
    """
    try:
        savepoints = list(_completed(client, job, schedule_actor(schedule_name)))
        doomed = superfluous(savepoints, retain, _in_use(client, job, savepoints))
        asked = [(each, _ask(context, client, each)) for each in doomed[:_AT_ONCE]]
    except CoordControlError as error:
        context.log.warning(f"not all that {schedule_name} does not keep was removed: {error}")
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
    """What somebody is about to restore or to look at, and where the job itself came from last."""
    named: set[str] = set()
    for state in (CommandState.PENDING, CommandState.CLAIMED):
        for command in client.commands(job, state=state, limit=_PAGE):
            named |= _named(command)
    for recovery in client.recoveries(job, limit=1):
        named |= {recovery.path or "", str(recovery.from_checkpoint)}
    return {each.id for each in savepoints if named & {str(each.id), each.label, each.path}}


def _named(command: CommandRecord) -> set[str]:
    if command.kind not in (CommandKind.RESTORE, CommandKind.VERIFY):
        return set()
    progress = command.progress or {}
    return {str(each) for each in (command.payload.get("ref"), progress.get("path"), progress.get("checkpoint"))}


def _ask(context: dg.AssetExecutionContext, client: ControlClient, savepoint: CheckpointRecord) -> CommandRecord | None:
    # The run is part of the key: one that was in use today may go tomorrow.
    key = f"dagster:{context.run.run_id}:dispose:{savepoint.id}"
    try:
        return client.dispose(savepoint.job, str(savepoint.id), key=key)
    except (DatabaseError, JobNotRunning):
        raise  # the next one would meet the same
    except CoordControlError as error:
        context.log.warning(f"savepoint {savepoint.id} stays: {error}")
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
        context.log.warning(f"savepoint {savepoint.id} in {savepoint.path} stays: {error}")
        return False
    context.log.info(f"savepoint {savepoint.id} of {savepoint.triggered_at:%Y-%m-%d %H:%M %Z} was removed")
    return True
