"""The audit trail: who requested what, when, from where, and the outcome.

The entries of a command are written in the same transaction as the command itself. They never contain payloads of
control events.

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
        """Write an entry for an action without a command, such as an import or a restore of a stopped job."""
        with self._database.transaction() as transaction:
            write(transaction, record)

    def list(
        self, job: str | None = None, *, subject: str | None = None, limit: int = 100, before_id: int | None = None
    ) -> tuple[AuditRecord, ...]:
        """Return entries, newest first; only those older than ``before_id``, if given."""
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
