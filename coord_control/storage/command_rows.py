"""The rows of commands: conversion to records, and recording outcomes together with their audit entries.

Threads: any; within a transaction.
"""

from __future__ import annotations

import secrets
import uuid
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, and_, select, update

from coord_control.conversion import convert
from coord_control.errors import JobNotRunning
from coord_control.storage import audit, tables
from coord_control.storage.database import Transaction
from coord_control.storage.records import (
    AuditRecord,
    CommandError,
    CommandKind,
    CommandRecord,
    CommandState,
    Outcome,
    to_json,
)

__all__ = [
    "DATABASE",
    "NEED_DRIVER",
    "conclude",
    "fail_claimed",
    "fulfil_restarts",
    "least_id",
    "new_id",
    "not_running",
    "record",
    "refuse_pending",
    "selected",
    "tell_restarts",
    "write_audit",
]


#: What has no meaning without a driver.
NEED_DRIVER: Final = (
    CommandKind.ASK,
    CommandKind.GET_LIVE,
    CommandKind.RESTART,
    CommandKind.STOP,
    CommandKind.STOP_WITH_SAVEPOINT,
)
#: The actor of outcomes that no user or driver caused.
DATABASE: Final = "control database"

_commands = tables.commands.c


def new_id(now: datetime) -> str:
    """Return an id that sorts by time: a version 7 UUID with microseconds."""
    return _id(now, secrets.randbits(62))


def least_id(now: datetime) -> str:
    """Return the lowest id of a time: all ids of earlier times, and no others, are below it."""
    return _id(now, 0)


def _id(now: datetime, rest: int) -> str:
    millis, micros = divmod(int(now.timestamp() * 1_000_000), 1000)
    high = millis << 16 | 0x7000 | micros * 4096 // 1000
    return str(uuid.UUID(int=high << 64 | 0x8000000000000000 | rest))


def selected() -> Select[Any]:
    """Return the query for commands with the names of their jobs; columns as in ``record``."""
    return select(tables.commands, tables.jobs.c.name.label("job_name")).join(
        tables.jobs, tables.jobs.c.id == _commands.job_id
    )


def record(row: Row[Any]) -> CommandRecord:
    """Return the record of a row of ``selected``."""
    values = dict(row._mapping)
    for name in ("job_id", "job_name", "cancel_requested_at", "error", "kind", "state"):
        del values[name]
    return CommandRecord(
        **values,
        job=row.job_name,
        kind=CommandKind(row.kind),
        state=CommandState(row.state),
        error=None if row.error is None else convert(row.error, CommandError),
        cancel_requested=row.cancel_requested_at is not None,
    )


def conclude(
    transaction: Transaction, command: Row[Any], outcome: Outcome, allowed: ColumnElement[bool], actor: str
) -> bool:
    """Write the outcome of a command and its audit entry, if ``allowed`` still holds for its row.

    Returns:
        Whether it held; if not, nothing was written.
    """
    values: dict[str, Any] = {"state": outcome.state, "finished_at": transaction.now}
    values["result"] = None if outcome.result is None else to_json(outcome.result)
    values["error"] = None if outcome.error is None else to_json(outcome.error)
    if outcome.checkpoint is not None:
        values["checkpoint"] = outcome.checkpoint
    changed = transaction.execute(update(tables.commands).where(_commands.id == command.id, allowed).values(values))
    if changed.rowcount == 0:
        return False
    details = {} if outcome.error is None else {"code": outcome.error.code, "message": outcome.error.message}
    write_audit(transaction, command, actor, outcome.state, details)
    return True


def not_running(job: Row[Any]) -> CommandError:
    """Return the error of a command to a job that no driver runs, and that none is about to run."""
    since = (job.ended_at or job.heartbeat_at).isoformat(timespec="seconds")
    reason = job.end_reason or ("" if job.ended_at else "its driver's last heartbeat")
    return CommandError(
        code="JOB_NOT_RUNNING",
        message=str(JobNotRunning(job.name, since, reason)),
        retry=True,
        fields=({"since": since, "reason": reason},),
    )


def refuse_pending(transaction: Transaction, job: Row[Any]) -> None:
    """Refuse the commands that wait for a driver of ``job``, as those are refused that are requested from now on."""
    is_pending = _commands.state == CommandState.PENDING
    refusal = Outcome(state=CommandState.REFUSED, error=not_running(job))
    for row in transaction.execute(selected().where(_commands.job_id == job.id, is_pending)).all():
        conclude(transaction, row, refusal, is_pending, DATABASE)


def fail_claimed(transaction: Transaction, job: Row[Any]) -> None:
    """Fail what a driver of ``job`` had claimed and only the next one, which does not start, could finish.

    What leaves a trace on the storage (checkpoints, restores, live values, events) has the outcome that a later driver
    finds there.
    """
    is_claimed = and_(_commands.job_id == job.id, _commands.state == CommandState.CLAIMED)
    failure = Outcome(state=CommandState.FAILED, error=not_running(job))
    for row in transaction.execute(selected().where(is_claimed, _commands.kind.in_(NEED_DRIVER))).all():
        conclude(transaction, row, failure, is_claimed, DATABASE)


def tell_restarts(transaction: Transaction, job: Row[Any], message: str) -> None:
    """Show why a next driver of ``job`` has not started in the progress of the restarts that wait for it."""
    values = {"progress": {"message": message}}
    transaction.execute(update(tables.commands).where(_is_restarting(job)).values(values))


def _is_restarting(job: Row[Any]) -> ColumnElement[bool]:
    is_restart = and_(_commands.kind == CommandKind.RESTART, _commands.state == CommandState.CLAIMED)
    return and_(_commands.job_id == job.id, is_restart)


def fulfil_restarts(transaction: Transaction, job: int, generation: int, seconds: float) -> None:
    """Hand the restarts that are older than the process of a job's next driver to the last one: it has ended for them.

    Args:
        generation: of the last driver.
        seconds: how long the process of the next one has run.
    """
    is_older = (
        _commands.job_id == job,
        _commands.kind == CommandKind.RESTART,
        _commands.state == CommandState.PENDING,
        _commands.requested_at <= transaction.now - timedelta(seconds=seconds),
        _commands.expires_at > transaction.now,
    )
    values = {"state": CommandState.CLAIMED, "generation": generation, "claimed_at": transaction.now}
    transaction.execute(update(tables.commands).where(*is_older).values(values))


def write_audit(
    transaction: Transaction, command: Row[Any], actor: str, outcome: str, details: dict[str, Any] | None = None
) -> None:
    """Add an audit entry for a command."""
    entry = AuditRecord(
        actor=actor,
        host=command.requested_from if actor == command.requested_by else "",
        action=command.kind,
        job=command.job_name,
        subject=command.id,
        outcome=outcome,
        details={"key": command.key, **(details or {})},
    )
    audit.write(transaction, entry)
