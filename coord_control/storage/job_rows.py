"""Converts the rows of a job, its queries, its operators and its live values to records.

Values that change all the time are stored with the heartbeat, in the job's row; they are merged into the records here.

Threads: any; pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, and_, select

from coord_control.conversion import convert
from coord_control.protocol.query_state import QueryState
from coord_control.storage import tables
from coord_control.storage.records import (
    ACTIVE_JOB_STATES,
    ENDED_TO_RESTART,
    LOST_QUERY,
    AgentMetrics,
    JobRecord,
    JobState,
    LiveStatus,
    LiveValueRecord,
    OperatorRecord,
    QueryRecord,
)

__all__ = ["alive", "driver_expected", "is_overdue", "job_record", "of_live_values", "restarting"]

#: How long a job counts as restarting. Its supervisor pauses for up to a minute, and Spark has to start; after that the
#: supervisor is probably gone too.
_RESTART: Final = timedelta(minutes=3)
#: The states of a query whose driver has to be alive.
_ACTIVE: Final = tuple(state.value for state in QueryState if state.is_active)
#: The last reported states of drivers that died.
_DIED: Final = (JobState.STARTING, JobState.RUNNING)


def alive(row: Row[Any], now: datetime) -> bool:
    """Return whether the driver of a job's row counts as alive."""
    lease = timedelta(seconds=row.lease_seconds)
    # A heartbeat of the future was sent before the clock was set back: it says nothing, and the next one is near.
    return row.state in ACTIVE_JOB_STATES and bool(abs(now - row.heartbeat_at) <= lease)


def driver_expected(row: Row[Any]) -> bool:
    """Return whether a supervisor was to start another driver of a job, if the last one has ended."""
    return bool(row.is_supervised) and (row.state != JobState.ENDED or row.end_reason == ENDED_TO_RESTART)


def restarting(row: Row[Any], now: datetime) -> bool:
    """Return whether a supervisor is restarting the driver of a job's row.

    True if the driver died, failed, or ended to be restarted, a moment ago."""
    if not driver_expected(row) or alive(row, now) or row.state == JobState.STOPPING:
        return False
    since = row.heartbeat_at + timedelta(seconds=row.lease_seconds) if row.state in _DIED else row.ended_at
    return bool(since + _RESTART >= now)


def is_overdue(row: Row[Any], now: datetime) -> bool:
    """Return whether a supervisor was to start another driver of a job's row, and has not within the time."""
    return driver_expected(row) and not alive(row, now) and not restarting(row, now)


def job_record(
    row: Row[Any],
    now: datetime,
    queries: Iterable[Row[Any]] = (),
    operators: Iterable[Row[Any]] = (),
    live_values: Iterable[Row[Any]] = (),
) -> JobRecord:
    """Return the record of a job from its row and those of its queries, operators and live values."""
    values = {name: value for name, value in row._mapping.items() if name not in ("id", "live", "agent", "state")}
    live = row.live or {}
    return JobRecord(
        **values,
        state=JobState(row.state),
        is_alive=alive(row, now),
        is_restarting=restarting(row, now),
        live=None if row.live is None else convert(row.live, LiveStatus),
        agent=None if row.agent is None else convert(row.agent, AgentMetrics),
        queries=_queries(queries, {each["name"]: each for each in live.get("queries", ())}, row, now),
        operators=_operators(operators, {each["uid"]: each for each in live.get("operators", ())}),
        live_values=tuple(_live_value(each) for each in live_values),
    )


def of_live_values(*where: ColumnElement[bool]) -> Select[Any]:
    """Return the query for the rows of live values, by name."""
    values, changes = tables.live_values.c, tables.live_changes.c
    is_accepted = and_(changes.job_id == values.job_id, changes.name == values.name, changes.version == values.version)
    return (
        select(tables.live_values, changes.value, changes.by, changes.at)
        .join(tables.jobs, tables.jobs.c.id == values.job_id)
        .join(tables.live_changes, is_accepted)
        .where(*where)
        .order_by(values.name)
    )


def _queries(
    rows: Iterable[Row[Any]], live: Mapping[str, Any], job: Row[Any], now: datetime
) -> tuple[QueryRecord, ...]:
    # Heartbeats are newer than the rows, but for rows that were written with the end of the job.
    records = []
    for row in rows:
        values = {str(name): value for name, value in row._mapping.items() if name != "job_id"}
        beat = {name: value for name, value in live.get(row.name, {}).items() if value not in (None, "")}
        is_last = job.ended_at is not None and row.updated_at >= job.ended_at
        record = convert({**beat, **values} if is_last else {**values, **beat}, QueryRecord)
        has_lost_driver = not is_last and not alive(job, now) and record.state in _ACTIVE
        records.append(replace(record, state=LOST_QUERY) if has_lost_driver else record)
    return tuple(records)


def _live_value(row: Row[Any]) -> LiveValueRecord:
    values = {str(name): value for name, value in row._mapping.items() if name != "job_id"}
    return convert(values, LiveValueRecord)


def _operators(rows: Iterable[Row[Any]], live: Mapping[str, Any]) -> tuple[OperatorRecord, ...]:
    records = []
    for row in rows:
        values = {str(name): value for name, value in row._mapping.items() if name != "job_id"}
        types = values.pop("event_types")
        values["event_types"] = [each for each in types if "answer" not in each]
        values["request_types"] = [each for each in types if "answer" in each]
        records.append(convert({**values, **live.get(row.uid, {})}, OperatorRecord))
    return tuple(records)
