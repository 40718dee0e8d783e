"""The log of changes of all jobs: readers that follow it miss nothing and read nothing twice.

Each ended checkpoint and each recovery gets a sequence number when it is written (``sequences``), so a reader continues
after the last number that it has read. Writing the same change again adds no entry. Checkpoints that are recorded late,
after an outage of the database, get their number then. Removed history leaves the log.

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
        """Return the changes after a sequence number, oldest first; only of the given jobs."""
        with self._database.reading() as transaction:
            # The two tables are read in turn: without an upper bound, the second read could see newer changes.
            until = newest_sequence(transaction)
            found = [
                *_settled(transaction, after, until, limit, jobs),
                *_recovered(transaction, after, until, limit, jobs),
            ]
        return tuple(sorted(found, key=lambda change: change.sequence)[:limit])

    def newest(self) -> int:
        """Return the sequence number of the newest change, or 0 if there is none."""
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
