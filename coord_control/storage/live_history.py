"""Live values: what the driver of a job has accepted, and the history of their changes.

The log on the job's storage decides; these rows are its copy. A driver writes all of the log's changes when it has
registered, so nothing is missing after an outage, or after a driver that died between a change and its row.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, and_, delete, select, update

from coord_control.storage import tables
from coord_control.storage.database import Database, Transaction
from coord_control.storage.jobs import find, locked_generation
from coord_control.storage.records import LiveChangeRecord, LiveValueRecord, to_json

__all__ = ["LiveHistory"]

_values, _changes = tables.live_values.c, tables.live_changes.c


class LiveHistory:
    """The live values of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(
        self, job: str, generation: int, values: Sequence[LiveValueRecord], changes: Sequence[LiveChangeRecord] = ()
    ) -> None:
        """Write what a driver knows of its live values; those that it does not declare any more keep their history.

        Args:
            values: all that the job declares.
            changes: those to add to the history, besides those that have led to ``values``; may be known already.

        Raises:
            GenerationSuperseded, JobNotFound: nothing was written.
        """
        with self._database.transaction() as transaction:
            job_id = locked_generation(transaction, job, generation, self._database.display_url)
            _save_changes(transaction, job_id, [*changes, *map(_change_of, values)])
            _save_values(transaction, job_id, values)
            for value in values:
                _save_uses(transaction, job_id, value)

    def list(self, job: str, name: str | None = None, limit: int = 100) -> tuple[LiveChangeRecord, ...]:
        """Return the changes of the live values of a job, or of one of them, newest first.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._database.reading() as transaction:
            job_id = find(transaction, job, self._database.display_url)
            query = select(tables.live_changes).where(_changes.job_id == job_id)
            if name is not None:
                query = query.where(_changes.name == name)
            newest = query.order_by(_changes.at.desc(), _changes.name, _changes.version.desc()).limit(limit)
            return tuple(_change_record(row) for row in transaction.execute(newest))


def _change_of(value: LiveValueRecord) -> LiveChangeRecord:
    return LiveChangeRecord(name=value.name, version=value.version, value=value.value, by=value.by, at=value.at)


def _change_record(row: Row[Any]) -> LiveChangeRecord:
    values = {str(name): value for name, value in row._mapping.items() if name != "job_id"}
    return LiveChangeRecord(**values)


def _save_changes(transaction: Transaction, job_id: int, changes: Sequence[LiveChangeRecord]) -> None:
    rows = {
        (change.name, change.version): {
            "job_id": job_id,
            "name": change.name,
            "version": change.version,
            "value": to_json(change.value),
            "by": change.by,
            "at": change.at,
            "since": {},  # of a row that is there already it stays as it is
        }
        for change in changes
    }
    if rows:
        insert = transaction.insert(tables.live_changes)
        changing = {name: insert.excluded[name] for name in ("value", "by", "at")}
        statement = insert.on_conflict_do_update(index_elements=["job_id", "name", "version"], set_=changing)
        transaction.execute(statement, list(rows.values()))


def _save_values(transaction: Transaction, job_id: int, values: Sequence[LiveValueRecord]) -> None:
    declared = [value.name for value in values]
    transaction.execute(delete(tables.live_values).where(_values.job_id == job_id, _values.name.not_in(declared)))
    insert = transaction.insert(tables.live_values)
    changing = {name: insert.excluded[name] for name in ("version", "schema", "uses")}
    statement = insert.on_conflict_do_update(index_elements=["job_id", "name"], set_=changing)
    for value in values:
        row = {
            "job_id": job_id,
            "name": value.name,
            "version": value.version,
            "schema": to_json(value.schema),
            "uses": to_json(value.uses),
        }
        transaction.execute(statement, row)


def _save_uses(transaction: Transaction, job_id: int, value: LiveValueRecord) -> None:
    # A query may still see an earlier version than the accepted one.
    for version in sorted({use.version for use in value.uses.values()}):
        row = and_(_changes.job_id == job_id, _changes.name == value.name, _changes.version == version)
        before = transaction.execute(select(_changes.since).where(row)).scalar_one_or_none()
        seen = {str(query): int(use.since) for query, use in value.uses.items() if use.version == version}
        if before is not None and seen.items() - before.items():
            transaction.execute(update(tables.live_changes).where(row).values(since={**before, **seen}))
