"""Counts of events over all jobs, in one statement each for any number of jobs.

Totals are read from their table; the rest is counted over a window, using an index that begins with time or state, so
that a long history costs nothing.

Threads: any; functions within a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, func, select

from coord_control.storage import tables
from coord_control.storage.command_rows import least_id
from coord_control.storage.database import Transaction
from coord_control.storage.records import (
    FINISHED_COMMAND_STATES,
    CheckpointCount,
    CheckpointState,
    CommandCount,
    CommandState,
    FleetCounts,
    ReasonCount,
)

__all__ = ["read_counts"]

_jobs, _checkpoints, _recoveries = tables.jobs.c, tables.checkpoints.c, tables.recoveries.c
_counts, _commands = tables.checkpoint_counts.c, tables.commands.c

_OPEN: Final = tuple(state for state in CommandState if state not in FINISHED_COMMAND_STATES)


def read_counts(transaction: Transaction, wanted: Sequence[ColumnElement[bool]], since: datetime) -> FleetCounts:
    """Return the counts.

    Args:
        wanted: the condition that selects jobs.
        since: start of the window.
    """
    return FleetCounts(
        checkpoints=_totals(transaction, wanted),
        failures=_failures(transaction, wanted, since),
        recoveries=_recovered(transaction, wanted, since),
        open_commands=_by_state(transaction, [*wanted, _commands.state.in_(_OPEN)]),
        ended_commands=_by_state(
            transaction,
            [*wanted, _commands.id >= least_id(since), _commands.state.in_(FINISHED_COMMAND_STATES)],
        ),
    )


def _totals(transaction: Transaction, wanted: Sequence[ColumnElement[bool]]) -> tuple[CheckpointCount, ...]:
    query = (
        select(_jobs.name, _counts.kind, _counts.state, _counts.checkpoints)
        .join(tables.jobs, _counts.job_id == _jobs.id)
        .where(*wanted)
        .order_by(_jobs.name, _counts.kind, _counts.state)
    )
    return tuple(
        CheckpointCount(job=row.name, kind=row.kind, state=row.state, count=row.checkpoints)
        for row in transaction.execute(query)
    )


def _failures(
    transaction: Transaction, wanted: Sequence[ColumnElement[bool]], since: datetime
) -> tuple[ReasonCount, ...]:
    query = (
        select(_jobs.name, _checkpoints.kind, _checkpoints.reason, func.count().label("number"))
        .join(tables.jobs, _checkpoints.job_id == _jobs.id)
        .where(*wanted, _checkpoints.triggered_at >= since, _checkpoints.state == CheckpointState.FAILED)
        .group_by(_jobs.name, _checkpoints.kind, _checkpoints.reason)
        .order_by(_jobs.name, _checkpoints.kind, _checkpoints.reason)
    )
    return tuple(
        ReasonCount(job=row.name, kind=row.kind, reason=row.reason or "", count=row.number)
        for row in transaction.execute(query)
    )


def _recovered(
    transaction: Transaction, wanted: Sequence[ColumnElement[bool]], since: datetime
) -> tuple[ReasonCount, ...]:
    query = (
        select(_jobs.name, _recoveries.cause, func.count().label("number"))
        .join(tables.jobs, _recoveries.job_id == _jobs.id)
        .where(*wanted, _recoveries.started_at >= since)
        .group_by(_jobs.name, _recoveries.cause)
        .order_by(_jobs.name, _recoveries.cause)
    )
    return tuple(ReasonCount(job=row.name, reason=row.cause, count=row.number) for row in transaction.execute(query))


def _by_state(transaction: Transaction, where: Sequence[ColumnElement[bool]]) -> tuple[CommandCount, ...]:
    query = (
        select(
            _jobs.name,
            _commands.kind,
            _commands.state,
            func.count().label("number"),
            func.min(_commands.requested_at).label("oldest"),
        )
        .join(tables.jobs, _commands.job_id == _jobs.id)
        .where(*where)
        .group_by(_jobs.name, _commands.kind, _commands.state)
        .order_by(_jobs.name, _commands.kind, _commands.state)
    )
    return tuple(
        CommandCount(job=row.name, kind=row.kind, state=row.state, count=row.number, oldest_at=row.oldest)
        for row in transaction.execute(query)
    )
