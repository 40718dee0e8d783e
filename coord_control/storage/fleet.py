"""An overview of all jobs, in a fixed number of statements for any number of jobs.

Each statement reads one end of an index per job, so that its cost does not depend on the length of the history.

Threads: any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Float, Row, ScalarSelect, Select, Table, cast, func, select, union_all

from coord_control.protocol.failures import FailureReason
from coord_control.storage import tables
from coord_control.storage.checkpoints import checkpoint_record
from coord_control.storage.database import Database, Transaction
from coord_control.storage.fleet_counts import read_counts
from coord_control.storage.job_rows import job_record, of_live_values
from coord_control.storage.records import (
    REQUESTED_CAUSES,
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    Fleet,
    FleetCounts,
    JobOverview,
    Trend,
)
from coord_control.storage.recoveries import recovery_record
from coord_control.storage.samples import RESOLUTIONS

__all__ = ["Fleets"]

_jobs, _checkpoints, _recoveries = tables.jobs.c, tables.checkpoints.c, tables.recoveries.c
_queries, _samples = tables.queries.c, tables.query_samples.c

#: Failures that say nothing about the job: aborted on request, or ended together with the driver or query.
_NOT_COUNTED: Final = tuple(reason.code for reason in FailureReason if not reason.counts)

#: Number of newest checkpoints per kind and state.
_NEWEST: Final = tuple(
    (kind, state) for kind in CheckpointKind for state in (CheckpointState.COMPLETED, CheckpointState.FAILED)
)

_MINUTE: Final = 60

_Rows = Mapping[int, Sequence[Row[Any]]]


class Fleets:
    """An overview of the jobs of a control database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, jobs: Collection[str] | None = None, *, window: timedelta = timedelta(hours=1)) -> Fleet:
        """Return the given jobs, or all; unknown names are ignored.

        Args:
            window: how far back recoveries are counted and lags are compared; samples are kept for 90 days.
        """
        with self._database.reading() as transaction:
            now = transaction.now
            wanted = [] if jobs is None else [_jobs.name.in_(jobs)]
            rows = transaction.execute(select(tables.jobs).where(*wanted).order_by(_jobs.name)).all()
            queries = _by_job(transaction, _of_jobs(tables.queries, wanted).order_by(_queries.name))
            operators = _by_job(transaction, _of_jobs(tables.operators, wanted).order_by(tables.operators.c.uid))
            live_values = _by_job(transaction, of_live_values(*wanted))
            newest = _by_job(transaction, union_all(*(_newest(kind, state, wanted) for kind, state in _NEWEST)))
            numbers = {row.id: row for row in transaction.execute(_numbers(wanted, now - window))}
            recovered = _by_job(transaction, _last_recoveries(wanted))
            trends = _by_job(transaction, _trends(wanted, now, window))
        overviews = []
        for row in rows:
            found = [checkpoint_record(row.name, each) for each in newest[row.id]]
            last = recovered[row.id]
            overviews.append(
                JobOverview(
                    job=job_record(row, now, queries[row.id], operators[row.id], live_values[row.id]),
                    completed=_last(found, lambda each: each.state is CheckpointState.COMPLETED),
                    savepoint=_last(found, _is_savepoint),
                    failed=_last(found, lambda each: each.state is CheckpointState.FAILED),
                    newest=tuple(found),
                    failed_in_a_row=numbers[row.id].failed,
                    under_way=numbers[row.id].under_way,
                    recoveries=numbers[row.id].recoveries,
                    last_recovery=recovery_record(row.name, last[0]) if last else None,
                    lags=tuple(
                        Trend(query=each.name, first=each.lag_first, last=each.lag_last) for each in trends[row.id]
                    ),
                    backlogs=tuple(
                        Trend(query=each.name, first=each.backlog_first, last=each.backlog_last)
                        for each in trends[row.id]
                    ),
                )
            )
        return Fleet(now=now, jobs=tuple(overviews))

    def counts(self, jobs: Collection[str] | None = None, *, window: timedelta = timedelta(hours=1)) -> FleetCounts:
        """Count events in the given jobs, or in all.

        Args:
            window: how far back failures, recoveries and finished commands are counted.
        """
        with self._database.reading() as transaction:
            since = transaction.now - window
            wanted = [] if jobs is None else [_jobs.name.in_(jobs)]
            return read_counts(transaction, wanted, since)


def _is_savepoint(record: CheckpointRecord) -> bool:
    return record.kind is CheckpointKind.SAVEPOINT and record.state is CheckpointState.COMPLETED


def _last(records: Iterable[CheckpointRecord], wanted: Callable[[CheckpointRecord], bool]) -> CheckpointRecord | None:
    return max((each for each in records if wanted(each)), key=lambda each: each.id, default=None)


def _by_job(transaction: Transaction, query: Any) -> _Rows:
    found: dict[int, list[Row[Any]]] = defaultdict(list)
    for row in transaction.execute(query):
        found[row.job_id].append(row)
    return found


def _of_jobs(table: Table, wanted: Sequence[ColumnElement[bool]]) -> Select[Any]:
    return select(table).join(tables.jobs, table.c.job_id == _jobs.id).where(*wanted)


def _newest(kind: CheckpointKind, state: CheckpointState, wanted: Sequence[ColumnElement[bool]]) -> Select[Any]:
    others = tables.checkpoints.alias("others").c
    number = (
        select(func.max(others.checkpoint))
        .where(others.job_id == _jobs.id, others.kind == kind.value, others.state == state)
        .correlate(tables.jobs)
        .scalar_subquery()
    )
    return _of_jobs(tables.checkpoints, [*wanted, _checkpoints.checkpoint == number])


def _numbers(wanted: Sequence[ColumnElement[bool]], since: datetime) -> Select[Any]:
    others = tables.checkpoints.alias("others").c
    last_success = (
        select(others.checkpoint)
        .where(others.job_id == _jobs.id, others.state.in_((CheckpointState.COMPLETED, CheckpointState.DISCARDED)))
        .order_by(others.checkpoint.desc())
        .limit(1)
        .correlate(tables.jobs)
        .scalar_subquery()
    )
    failed = _count(
        tables.checkpoints,
        _checkpoints.state == CheckpointState.FAILED,
        _checkpoints.checkpoint > func.coalesce(last_success, -1),
        func.coalesce(_checkpoints.reason, "").not_in(_NOT_COUNTED),
    )
    under_way = _count(
        tables.checkpoints,
        _checkpoints.state == CheckpointState.IN_PROGRESS,
        func.coalesce(_checkpoints.generation, _jobs.generation) >= _jobs.generation,
    )
    recoveries = _count(tables.recoveries, _recoveries.started_at >= since, _recoveries.cause.not_in(REQUESTED_CAUSES))
    return select(_jobs.id, failed.label("failed"), under_way.label("under_way"), recoveries.label("recoveries")).where(
        *wanted
    )


def _count(table: Table, *where: ColumnElement[bool]) -> ScalarSelect[int]:
    return (
        select(func.count())
        .select_from(table)
        .where(table.c.job_id == _jobs.id, *where)
        .correlate(tables.jobs)
        .scalar_subquery()
    )


def _last_recoveries(wanted: Sequence[ColumnElement[bool]]) -> Select[Any]:
    others = tables.recoveries.alias("others").c
    last = select(func.max(others.id)).where(others.job_id == _jobs.id).correlate(tables.jobs).scalar_subquery()
    return _of_jobs(tables.recoveries, [*wanted, _recoveries.id == last])


def _trends(wanted: Sequence[ColumnElement[bool]], now: datetime, window: timedelta) -> Select[Any]:
    edges = [
        _edge(column, now - window, _resolution(window) if is_first else RESOLUTIONS[0], is_first=is_first).label(name)
        for measure, column in (("lag", _samples.lag_seconds), ("backlog", _samples.backlog))
        for name, is_first in ((f"{measure}_first", True), (f"{measure}_last", False))
    ]
    return (
        select(_queries.job_id, _queries.name, *edges)
        .join(tables.jobs, _queries.job_id == _jobs.id)
        .where(*wanted)
        .order_by(_queries.name)
    )


def _resolution(window: timedelta) -> int:
    kept = (timedelta(hours=1), timedelta(days=1))
    return next((each for each, age in zip(RESOLUTIONS, kept, strict=False) if window <= age), RESOLUTIONS[-1])


def _edge(column: ColumnElement[Any], since: datetime, resolution: int, *, is_first: bool) -> ScalarSelect[Any]:
    # Reads a few rows at one end of the primary key: of a query without a watermark, for example, no row has a lag.
    edge = (
        select(column.label("value"))
        .where(
            _samples.job_id == _queries.job_id,
            _samples.query == _queries.name,
            _samples.resolution_seconds == resolution,
            _samples.at >= since,
        )
        .order_by(_samples.at if is_first else _samples.at.desc())
        .limit(max(1, _MINUTE // resolution))
        .correlate(tables.queries)
        .subquery()
    )
    return select(func.avg(cast(edge.c.value, Float))).correlate(tables.queries).scalar_subquery()
