"""Who asked for what, when, from where, and what came of it.

The trail of a command is written in the transaction of the command itself: there is none without the other. Payloads
of control events are never part of it.

Threads: any.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, select

from coord_control.storage import tables
from coord_control.storage.database import Database, Transaction
from coord_control.storage.records import AuditRecord, to_json

__all__ = ["Audit", "write"]


class Audit:
    """The audit trail of a control database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, record: AuditRecord) -> None:
        """Write an entry for something that is no command, such as an import or a restore of a stopped job."""
        with self._database.transaction() as transaction:
            write(transaction, record)

    def list(
        self, job: str | None = None, *, subject: str | None = None, limit: int = 100, before_id: int | None = None
    ) -> tuple[AuditRecord, ...]:
        """Return entries, newest first; those older than ``before_id`` only."""
        query = select(tables.audit).order_by(tables.audit.c.id.desc()).limit(limit)
        if job is not None:
            query = query.where(tables.audit.c.job == job)
        if subject is not None:
            query = query.where(tables.audit.c.subject == subject)
        if before_id is not None:
            query = query.where(tables.audit.c.id < before_id)
        with self._database.reading() as transaction:
            return tuple(_record(row) for row in transaction.execute(query))


def write(transaction: Transaction, record: AuditRecord) -> None:
    """Write an entry within a transaction."""
    values = {
        "at": record.at or transaction.now,
        "actor": record.actor,
        "host": record.host,
        "action": record.action,
        "job": record.job,
        "subject": record.subject,
        "outcome": record.outcome,
        "details": to_json(record.details),
    }
    transaction.execute(tables.audit.insert(), values)


def _record(row: Row[Any]) -> AuditRecord:
    return AuditRecord(**row._mapping)
