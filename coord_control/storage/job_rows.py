"""The rows of a job, its queries and its operators, as records.

What changes all the time is part of the heartbeat, in the job's row; it is put together with the rows here.

Threads: any; pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from sqlalchemy import Row

from coord_control.storage.records import (
    ACTIVE_JOB_STATES,
    ENDED_TO_RESTART,
    AgentMetrics,
    JobRecord,
    JobState,
    LiveStatus,
    OperatorRecord,
    QueryRecord,
)

__all__ = ["alive", "job_record", "restarting"]

#: How long a job that ended to be started again is believed to be on its way: its supervisor may have died meanwhile.
_RESTART: Final = timedelta(minutes=1)


def alive(row: Row[Any], now: datetime) -> bool:
    """Say whether the driver of a job's row counts as alive."""
    lease = timedelta(seconds=row.lease_seconds)
    return row.state in ACTIVE_JOB_STATES and bool(row.heartbeat_at + lease >= now)


def restarting(row: Row[Any], now: datetime) -> bool:
    """Say whether the driver of a job's row has ended only to be started again, a moment ago."""
    is_asked = row.is_supervised and row.state == JobState.ENDED and row.end_reason == ENDED_TO_RESTART
    return bool(is_asked and row.ended_at + _RESTART >= now)


def job_record(
    row: Row[Any], now: datetime, queries: Iterable[Row[Any]] = (), operators: Iterable[Row[Any]] = ()
) -> JobRecord:
    """Return a job as its row, and those of its queries and operators, say."""
    values = {name: value for name, value in row._mapping.items() if name not in ("id", "live", "agent", "state")}
    live = row.live or {}
    return JobRecord(
        **values,
        state=JobState(row.state),
        is_alive=alive(row, now),
        is_restarting=restarting(row, now),
        live=None if row.live is None else msgspec.convert(row.live, LiveStatus),
        agent=None if row.agent is None else msgspec.convert(row.agent, AgentMetrics),
        queries=_queries(queries, {each["name"]: each for each in live.get("queries", ())}),
        operators=_operators(operators, {each["uid"]: each for each in live.get("operators", ())}),
    )


def _queries(rows: Iterable[Row[Any]], live: Mapping[str, Any]) -> tuple[QueryRecord, ...]:
    records = []
    for row in rows:
        values = {str(name): value for name, value in row._mapping.items() if name != "job_id"}
        newer = {name: value for name, value in live.get(row.name, {}).items() if value not in (None, "")}
        records.append(msgspec.convert({**values, **newer}, QueryRecord))
    return tuple(records)


def _operators(rows: Iterable[Row[Any]], live: Mapping[str, Any]) -> tuple[OperatorRecord, ...]:
    records = []
    for row in rows:
        values = {str(name): value for name, value in row._mapping.items() if name != "job_id"}
        records.append(msgspec.convert({**values, **live.get(row.uid, {})}, OperatorRecord))
    return tuple(records)
