"""What has happened in all jobs, as a log that can be followed: nothing is missed, and nothing is seen twice.

A checkpoint that ends, and a query that has recovered, gets its place when it is written (``sequences``), so a reader
goes on from the last place that it has seen. Writing the same again gives no second place. What is on storage and
comes to be known only later, after an outage of the database, gets its place then. History that has been removed has
left the log.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, select

from coord_control.storage import tables
from coord_control.storage.checkpoints import checkpoint_record
from coord_control.storage.database import Database, Transaction
from coord_control.storage.records import Change
from coord_control.storage.recoveries import recovery_record
from coord_control.storage.sequences import newest_sequence

__all__ = ["Changes"]

_checkpoints, _details = tables.checkpoints.c, tables.checkpoint_details.c
_jobs, _recoveries = tables.jobs.c, tables.recoveries.c


class Changes:
    """The changes of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self, after: int = 0, *, limit: int = 200, jobs: Collection[str] | None = None) -> tuple[Change, ...]:
        """Return the changes after a place, the oldest first; of these jobs only."""
        with self._database.reading() as transaction:
            # The two tables are read one after the other: without an end, the second could know more than the first.
            until = newest_sequence(transaction)
            found = [
                *_settled(transaction, after, until, limit, jobs),
                *_recovered(transaction, after, until, limit, jobs),
            ]
        return tuple(sorted(found, key=lambda change: change.sequence)[:limit])

    def newest(self) -> int:
        """Return the place of the newest change; 0: there was none yet."""
        with self._database.reading() as transaction:
            return newest_sequence(transaction)


def _settled(
    transaction: Transaction, after: int, until: int, limit: int, jobs: Collection[str] | None
) -> Sequence[Change]:
    place = _checkpoints.settled_sequence
    query = (
        select(tables.checkpoints, _details.queries, _jobs.name.label("job_name"))
        .join(tables.jobs, _jobs.id == _checkpoints.job_id)
        .outerjoin(
            tables.checkpoint_details,
            (_details.job_id == _checkpoints.job_id) & (_details.checkpoint == _checkpoints.checkpoint),
        )
        .where(*_between(place, after, until, jobs))
        .order_by(place)
        .limit(limit)
    )
    return [
        Change(
            sequence=row.settled_sequence,
            job=row.job_name,
            checkpoint=checkpoint_record(row.job_name, row, row.queries),
        )
        for row in transaction.execute(query)
    ]


def _recovered(
    transaction: Transaction, after: int, until: int, limit: int, jobs: Collection[str] | None
) -> Sequence[Change]:
    query = (
        select(tables.recoveries, _jobs.name.label("job_name"))
        .join(tables.jobs, _jobs.id == _recoveries.job_id)
        .where(*_between(_recoveries.sequence, after, until, jobs))
        .order_by(_recoveries.sequence)
        .limit(limit)
    )
    return [
        Change(sequence=row.sequence, job=row.job_name, recovery=recovery_record(row.job_name, row))
        for row in transaction.execute(query)
    ]


def _between(
    place: ColumnElement[Any], after: int, until: int, jobs: Collection[str] | None
) -> Sequence[ColumnElement[bool]]:
    where = [place > after, place <= until]
    return where if jobs is None else [*where, _jobs.name.in_(jobs)]
