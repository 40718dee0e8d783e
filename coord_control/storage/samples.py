"""Samples of epochs and gateways: fine for an hour, by the minute for a day, by the hour for 90 days.

A coarse sample is always computed from all finer ones of its time, and replaces the existing one: rolling up is
idempotent, and a process that dies half-way leaves nothing inconsistent. The progress of each resolution is a row of
``upkeep``, locked while it changes. Late samples, after an outage, set it back, so that their minutes and hours are
computed again.

Threads: any; any number of processes may roll up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Float, Row, Table, and_, cast, func, literal, select, update
from sqlalchemy import Integer as SqlInteger

from coord_control.storage import tables
from coord_control.storage.database import Database, Transaction
from coord_control.storage.jobs import find
from coord_control.storage.records import OperatorSample, QuerySample, to_json

__all__ = ["KEEP_FINEST", "RESOLUTIONS", "Samples", "rolled_up_to"]

#: Resolutions in seconds, finest first; each is a multiple of the one before.
RESOLUTIONS: Final = (5, 60, 3600)

#: A minute is rolled up this long after its end, because its last samples may be pending.
_SETTLE: Final = timedelta(seconds=30)

#: Minimum age to which the finest samples are kept.
KEEP_FINEST: Final = timedelta(hours=1)
_MARGIN: Final = timedelta(minutes=5)

#: Maximum coarse samples of each series per transaction.
_STEPS: Final = 60

_QUERY: Final = ("query",)
_OPERATOR: Final = ("operator",)


class Samples:
    """The samples of all jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, queries: Iterable[QuerySample] = (), operators: Iterable[OperatorSample] = ()) -> None:
        """Write samples of the finest resolution; a sample of the same time is replaced.

        Times are rounded down to five seconds. Samples older than ``KEEP_FINEST`` are ignored, because the samples to
        roll them up with are already removed.

        Raises:
            JobNotFound: there is no such job; nothing was written.
        """
        queries, operators = tuple(queries), tuple(operators)
        if not queries and not operators:
            return
        with self._database.transaction() as transaction:
            first = transaction.now - KEEP_FINEST + _MARGIN
            queries = tuple(sample for sample in queries if sample.at >= first)
            operators = tuple(sample for sample in operators if sample.at >= first)
            all_samples: list[QuerySample | OperatorSample] = [*queries, *operators]
            jobs = {
                name: find(transaction, name, self._database.display_url)
                for name in sorted({sample.job for sample in all_samples})
            }
            oldest = min((sample.at for sample in all_samples), default=transaction.now)
            if oldest < transaction.now - _SETTLE:
                _go_back(transaction, oldest)
            _write(transaction, tables.query_samples, _QUERY, jobs, queries)
            _write(transaction, tables.operator_samples, _OPERATOR, jobs, operators)

    def queries(
        self,
        job: str,
        since: datetime,
        until: datetime | None = None,
        resolution: int = RESOLUTIONS[0],
        *,
        query: str | None = None,
        limit: int = 10_000,
    ) -> tuple[QuerySample, ...]:
        """Return the samples of a job's queries, oldest first.

        Raises:
            JobNotFound: there is no such job.
        """
        rows = self._between(tables.query_samples, "query", query, job, since, until, resolution, limit)
        return tuple(QuerySample(**_values(row, job)) for row in rows)

    def operators(
        self,
        job: str,
        since: datetime,
        until: datetime | None = None,
        resolution: int = RESOLUTIONS[0],
        *,
        operator: str | None = None,
        limit: int = 10_000,
    ) -> tuple[OperatorSample, ...]:
        """Return the samples of a job's operators, oldest first.

        Raises:
            JobNotFound: there is no such job.
        """
        rows = self._between(tables.operator_samples, "operator", operator, job, since, until, resolution, limit)
        return tuple(OperatorSample(**_values(row, job)) for row in rows)

    def roll_up(self, now: datetime | None = None) -> int:
        """Compute all coarse samples whose time is over; return the number of transactions.

        Args:
            now: the time; None for the database's time.
        """
        steps = 0
        for finer, coarser in itertools.pairwise(RESOLUTIONS):
            while self._step(finer, coarser, now):
                steps += 1
        return steps

    def _step(self, finer: int, coarser: int, now: datetime | None) -> bool:
        with self._database.transaction() as transaction:
            until = _floor((now or transaction.now) - _SETTLE, coarser)
            if finer != RESOLUTIONS[0]:
                until = min(until, _floor(_locked(transaction, finer) or until, coarser))
            begun = _locked(transaction, coarser)
            if begun is None:
                begun = _begin(transaction, finer, coarser, until)
            first = _oldest(transaction, finer, begun)
            if begun >= until:
                return False
            since = until if first is None else max(begun, _floor(first, coarser))
            end = min(until, since + timedelta(seconds=_STEPS * coarser))
            if since < end:
                _roll_up(transaction, tables.query_samples, _QUERY, finer, coarser, since, end)
                _roll_up(transaction, tables.operator_samples, _OPERATOR, finer, coarser, since, end)
            _move(transaction, coarser, end)
            return end < until

    def _between(
        self,
        table: Table,
        series: str,
        name: str | None,
        job: str,
        since: datetime,
        until: datetime | None,
        resolution: int,
        limit: int,
    ) -> Sequence[Row[Any]]:
        with self._database.reading() as transaction:
            query = select(table).where(
                table.c.job_id == find(transaction, job, self._database.display_url),
                table.c.resolution_seconds == resolution,
                table.c.at >= since,
            )
            if until is not None:
                query = query.where(table.c.at < until)
            if name is not None:
                query = query.where(table.c[series] == name)
            return transaction.execute(query.order_by(table.c.at, table.c[series]).limit(limit)).all()


def rolled_up_to(transaction: Transaction, coarser: int) -> datetime | None:
    """Return the time up to which samples of this resolution are computed; later finer ones are still needed."""
    at: datetime | None = transaction.execute(
        select(tables.upkeep.c.at).where(tables.upkeep.c.duty == _duty(coarser))
    ).scalar()
    return at


def _duty(coarser: int) -> str:
    return f"roll up to {coarser} s"


def _floor(at: datetime, seconds: int) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def _values(row: Row[Any], job: str) -> dict[str, Any]:
    values = dict(row._mapping)
    del values["job_id"]
    return {**values, "job": job}


def _write(
    transaction: Transaction,
    table: Table,
    series: tuple[str, ...],
    jobs: dict[str, int],
    samples: Sequence[QuerySample] | Sequence[OperatorSample],
) -> None:
    if not samples:
        return
    rows = [
        {
            **{name: value for name, value in to_json(sample).items() if name != "job"},
            "job_id": jobs[sample.job],
            "resolution_seconds": RESOLUTIONS[0],
            "at": _floor(sample.at, RESOLUTIONS[0]),
        }
        for sample in samples
    ]
    transaction.execute(_replacing(transaction, table, series), rows)


def _identity(series: tuple[str, ...]) -> list[str]:
    return ["job_id", *series, "resolution_seconds", "at"]


def _replacing(transaction: Transaction, table: Table, series: tuple[str, ...]) -> Any:
    insert = transaction.insert(table)
    identity = _identity(series)
    changing = {name: insert.excluded[name] for name in table.c.keys() if name not in identity}
    return insert.on_conflict_do_update(index_elements=identity, set_=changing)


def _locked(transaction: Transaction, coarser: int) -> datetime | None:
    at: datetime | None = transaction.execute(
        select(tables.upkeep.c.at).where(tables.upkeep.c.duty == _duty(coarser)).with_for_update()
    ).scalar()
    return at


def _begin(transaction: Transaction, finer: int, coarser: int, until: datetime) -> datetime:
    # The first time: from the oldest sample.
    oldest = _oldest(transaction, finer, datetime.fromtimestamp(0, UTC))
    begun = until if oldest is None else min(until, _floor(oldest, coarser))
    insert = transaction.insert(tables.upkeep).values(duty=_duty(coarser), at=begun)
    transaction.execute(insert.on_conflict_do_nothing(index_elements=["duty"]))
    return _locked(transaction, coarser) or begun


def _oldest(transaction: Transaction, finer: int, since: datetime) -> datetime | None:
    found = []
    for table in (tables.query_samples, tables.operator_samples):
        where = (table.c.resolution_seconds == finer, table.c.at >= since)
        found.append(transaction.execute(select(func.min(table.c.at)).where(*where)).scalar())
    return min((at for at in found if at is not None), default=None)


def _move(transaction: Transaction, coarser: int, at: datetime) -> None:
    transaction.execute(update(tables.upkeep).where(tables.upkeep.c.duty == _duty(coarser)).values(at=at))


def _go_back(transaction: Transaction, oldest: datetime) -> None:
    for coarser in RESOLUTIONS[1:]:
        at = _locked(transaction, coarser)
        begin = _floor(oldest, coarser)
        if at is not None and at > begin:
            _move(transaction, coarser, begin)


def _roll_up(
    transaction: Transaction,
    table: Table,
    series: tuple[str, ...],
    finer: int,
    coarser: int,
    since: datetime,
    until: datetime,
) -> None:
    """Compute the coarse samples of [since, until), one statement per sample's time: exact on both databases."""
    insert = transaction.insert(table)
    identity = _identity(series)
    sums = _query_sums(table) if series == _QUERY else _operator_sums(table)
    at = since
    while at < until:
        end = at + timedelta(seconds=coarser)
        source = (
            select(
                table.c.job_id,
                *(table.c[name] for name in series),
                literal(coarser, SqlInteger).label("resolution_seconds"),
                literal(at, table.c.at.type).label("at"),
                *(value.label(name) for name, value in sums.items()),
            )
            .where(and_(table.c.resolution_seconds == finer, table.c.at >= at, table.c.at < end))
            .group_by(table.c.job_id, *(table.c[name] for name in series))
        )
        statement = insert.from_select([*identity, *sums], source).on_conflict_do_update(
            index_elements=identity, set_={name: insert.excluded[name] for name in sums}
        )
        transaction.execute(statement)
        at = end


def _query_sums(table: Table) -> dict[str, ColumnElement[Any]]:
    samples = table.c
    weighted = func.sum(samples.batch_seconds_avg * samples.epochs)
    weight = func.nullif(func.sum(samples.epochs), 0)
    return {
        "epochs": func.sum(samples.epochs),
        "epoch_last": func.max(samples.epoch_last),
        "rows": func.sum(samples.rows),
        "rows_per_second": func.avg(samples.rows_per_second),
        "batch_seconds_avg": cast(weighted, Float) / weight,
        "batch_seconds_max": func.max(samples.batch_seconds_max),
        "state_rows": func.max(samples.state_rows),
        "lag_seconds": func.max(samples.lag_seconds),
        "backlog": func.max(samples.backlog),
    }


def _operator_sums(table: Table) -> dict[str, ColumnElement[Any]]:
    samples = table.c
    added = ("blocked_events", "blocked_seconds", "events_down", "events_up")
    highest = ("blocked_now_max", "mailbox_max", "closed_max")
    return {name: func.sum(samples[name]) for name in added} | {name: func.max(samples[name]) for name in highest}
