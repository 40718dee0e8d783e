"""Recoveries: what resumed from where, why, and how long it took.

Threads: any.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, select, update

from coord_control.storage import tables
from coord_control.storage.database import Database, Transaction
from coord_control.storage.jobs import find
from coord_control.storage.records import RecoveryRecord
from coord_control.storage.sequences import take_sequence

__all__ = ["Recoveries", "read_recoveries", "recovery_record"]

_recoveries = tables.recoveries.c
_GIVEN = ("id", "job_id", "query", "sequence")
_IDENTITY = ("job_id", "generation", "query", "cause", "started_at")


class Recoveries:
    """The recoveries of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, recovery: RecoveryRecord) -> None:
        """Write a recovery; the same one again (by generation, query, cause and start) replaces it.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._database.transaction() as transaction:
            values = {name: getattr(recovery, name) for name in _recoveries.keys() if name not in _GIVEN}
            values["job_id"] = find(transaction, recovery.job, self._database.display_url)
            values["query"] = recovery.query or ""
            insert = transaction.insert(tables.recoveries).values(values)
            changing = {name: insert.excluded[name] for name in values if name not in _IDENTITY}
            upsert = insert.on_conflict_do_update(index_elements=list(_IDENTITY), set_=changing)
            row = transaction.execute(upsert.returning(_recoveries.id, _recoveries.sequence)).one()
            if row.sequence is None:
                sequence = take_sequence(transaction)
                transaction.execute(update(tables.recoveries).where(_recoveries.id == row.id).values(sequence=sequence))

    def list(self, job: str, limit: int = 100, before_id: int | None = None) -> tuple[RecoveryRecord, ...]:
        """Return the recoveries of a job, newest record first.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._database.reading() as transaction:
            job_id = find(transaction, job, self._database.display_url)
            return read_recoveries(transaction, job, job_id, limit, before_id)


def read_recoveries(
    transaction: Transaction, job: str, job_id: int, limit: int, before_id: int | None = None
) -> tuple[RecoveryRecord, ...]:
    """Return the recoveries of a job, newest record first."""
    query = select(tables.recoveries).where(_recoveries.job_id == job_id)
    if before_id is not None:
        query = query.where(_recoveries.id < before_id)
    rows = transaction.execute(query.order_by(_recoveries.id.desc()).limit(limit))
    return tuple(recovery_record(job, row) for row in rows)


def recovery_record(job: str, row: Row[Any]) -> RecoveryRecord:
    """Return the record of a row."""
    values = {name: row._mapping[name] for name in _recoveries.keys() if name not in ("job_id", "query")}
    return RecoveryRecord(**values, job=job, query=row.query or None)
