"""Removing the older savepoints of a schedule after it has taken a new one.

A savepoint belongs to the schedule that requested it (``requested_by``), whatever its label; savepoints that users
requested are never removed. :mod:`coord_control.control.client.superfluous_savepoints` decides which of them go. A
savepoint that cannot be removed is logged and tried again after the next one; the run does not fail, because its own
savepoint is complete.

Threads: blocks the step's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import dagster as dg

from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.superfluous_savepoints import Retention, TakenSavepoint, names_in_use, superfluous
from coord_control.dagster.runs.own_runs import schedule_actor
from coord_control.dagster.spec import RetainSpec
from coord_control.errors import CoordControlError, DatabaseError, JobNotRunning
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    CommandRecord,
)

__all__ = ["dispose_old", "retention_of"]

#: The most savepoints that one run removes, and the time limit for all of them: the savepoint itself is complete.
_AT_ONCE: Final = 50
_SECONDS: Final = 120.0
_PAGE: Final = 200
_PAGES: Final = 25


def retention_of(retain: RetainSpec) -> Retention:
    """Return the rule that a schedule's settings mean."""
    older_than = None if retain.max_age_hours is None else timedelta(hours=retain.max_age_hours)
    return Retention(retain.count or 1, older_than)


def dispose_old(
    context: dg.AssetExecutionContext, client: ControlClient, job: str, schedule_name: str, retain: RetainSpec
) -> list[int]:
    """Remove the savepoints that a schedule does not retain. Errors of this library are logged, not raised.

    Returns:
        The ids of the removed savepoints.
    """
    try:
        savepoints = {each.id: each for each in _completed(client, job, schedule_actor(schedule_name))}
        taken = map(TakenSavepoint.of_record, savepoints.values())
        doomed = superfluous(taken, retention_of(retain), names_in_use(client, job))
        asked = [(savepoints[each.id], _ask(context, client, savepoints[each.id])) for each in doomed[:_AT_ONCE]]
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
