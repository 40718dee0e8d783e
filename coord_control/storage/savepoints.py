"""Savepoints: their paths, their contents, and the results of their last verification.

Savepoints of other databases can be imported, which records the path and copies nothing. A savepoint outlives its job
here, as it does on the storage.

Threads: any.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, delete, select, update

from coord_control.errors import RecordNotFound
from coord_control.storage import tables
from coord_control.storage.database import Database, Transaction
from coord_control.storage.records import SavepointRecord, to_json

__all__ = ["Savepoints"]

_savepoints = tables.savepoints.c


class Savepoints:
    """The savepoints in a control database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, savepoint: SavepointRecord, *, imported: bool | None = None) -> SavepointRecord:
        """Write a savepoint, or update the one at the same path; return the resulting record.

        A savepoint that a job of this database has taken does not become an imported one, and keeps its label unless a
        new one is given.
        """
        is_imported = savepoint.imported if imported is None else imported
        with self._database.transaction() as transaction:
            insert = transaction.insert(tables.savepoints).values(
                path=savepoint.path,
                job_name=savepoint.job,
                checkpoint=savepoint.checkpoint,
                label=savepoint.label,
                imported=is_imported,
                size=savepoint.size,
                created_at=savepoint.created_at,
                recorded_at=transaction.now,
                applied_numbers=savepoint.applied_numbers,
                verified_at=savepoint.verified_at,
                verified_ok=savepoint.verified_ok,
                problems=to_json(savepoint.problems),
            )
            new = {name: insert.excluded[name] for name in ("size", "created_at", "applied_numbers")}
            if not is_imported:
                new |= {"imported": insert.excluded.imported}
            if savepoint.label is not None:
                new |= {"label": insert.excluded.label}
            if savepoint.job is not None:
                new |= {"job_name": insert.excluded.job_name, "checkpoint": insert.excluded.checkpoint}
            transaction.execute(insert.on_conflict_do_update(index_elements=["path"], set_=new))
            return _record(self._row(transaction, savepoint.path))

    def get(self, path: str) -> SavepointRecord:
        """Return the savepoint at a path.

        Raises:
            RecordNotFound: none is recorded; the message names similar paths.
        """
        with self._database.reading() as transaction:
            return _record(self._row(transaction, path))

    def list(
        self, job: str | None = None, limit: int = 100, before_id: int | None = None
    ) -> tuple[SavepointRecord, ...]:
        """Return savepoints, newest record first.

        Args:
            before_id: only those recorded before the one with this ``SavepointRecord.id``.
        """
        query = select(tables.savepoints).order_by(_savepoints.id.desc()).limit(limit)
        if job is not None:
            query = query.where(_savepoints.job_name == job)
        if before_id is not None:
            query = query.where(_savepoints.id < before_id)
        with self._database.reading() as transaction:
            return tuple(_record(row) for row in transaction.execute(query))

    def forget(self, path: str) -> None:
        """Remove a savepoint from the database; its files stay.

        Raises:
            RecordNotFound: none is recorded.
        """
        with self._database.transaction() as transaction:
            row = self._row(transaction, path)
            transaction.execute(delete(tables.savepoints).where(_savepoints.id == row.id))

    def mark_verified(self, path: str, problems: Sequence[str] = ()) -> SavepointRecord:
        """Record a verification of all files of a savepoint, with the problems found.

        Raises:
            RecordNotFound: none is recorded.
        """
        with self._database.transaction() as transaction:
            changes = {
                "verified_at": transaction.now,
                "verified_ok": not problems,
                "problems": to_json(list(problems[:100])),
            }
            return self._change(transaction, path, changes)

    def _change(self, transaction: Transaction, path: str, values: dict[str, Any]) -> SavepointRecord:
        row = self._row(transaction, path)
        transaction.execute(update(tables.savepoints).where(_savepoints.id == row.id).values(values))
        return _record(self._row(transaction, path))

    def _row(self, transaction: Transaction, path: str) -> Row[Any]:
        row = transaction.execute(select(tables.savepoints).where(_savepoints.path == path)).one_or_none()
        if row is None:
            recent = select(_savepoints.path).order_by(_savepoints.id.desc()).limit(1000)
            paths = transaction.execute(recent).scalars().all()
            raise RecordNotFound(f"savepoint {path}", None, difflib.get_close_matches(path, paths, n=3))
        return row


def _record(row: Row[Any]) -> SavepointRecord:
    values = dict(row._mapping)
    del values["job_name"]
    return SavepointRecord(**{**values, "job": row.job_name, "problems": tuple(row.problems)})
