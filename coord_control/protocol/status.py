"""What a job can say of itself at one moment, for people and monitoring; a copy, nothing changes in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coord_control.ids import OperatorUid, QueryName
from coord_control.protocol.job import JobCore
from coord_control.protocol.operator import OperatorRun, Totals
from coord_control.protocol.records import count

__all__ = ["GatewayStatus", "JobStatus", "OperatorStatus", "QueryStatus", "operator_statuses"]


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """One subtask's gateway."""

    subtask: int
    is_open: bool
    blocked: int  #: events that wait behind a closed barrier now
    blocked_total: int  #: events that had to wait, since the last restart of the query
    blocked_seconds: float  #: time during which at least one event waited, since the last restart of the query
    mailbox: int  #: events that wait for the subtask's next epoch


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    """One operator of a started query; ``totals`` count since the driver started."""

    uid: str
    query: str
    epoch: int | None  #: the one that runs now
    totals: Totals
    gateways: tuple[GatewayStatus, ...]  #: empty while the query does not run


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query; ``progress`` is Spark's newest progress event, the numbers of batches, rows and seconds are of all
    since the driver started."""

    name: str
    state: str
    committed: int  #: Spark's last commit that was observed, -1 when there is none
    restarts: int
    last_failure: str | None
    progress: dict[str, Any] = field(default_factory=dict)
    batches: int = 0
    rows: int = 0
    batch_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The whole job."""

    name: str
    generation: int
    queries: tuple[QueryStatus, ...]
    operators: tuple[OperatorStatus, ...]
    slow_callbacks: int
    group_commits: int  #: writes of the epoch store since the driver started


def operator_statuses(
    core: JobCore, queries: Mapping[OperatorUid, QueryName], now: float
) -> tuple[OperatorStatus, ...]:
    """Copy what the core knows of the operators of these queries; on the loop."""
    running = {operator.spec.uid: operator for operator in core.operators()}
    totals = core.totals()
    return tuple(
        OperatorStatus(uid, query, _epoch(running.get(uid)), replace(totals[uid]), _gateways(running.get(uid), now))
        for uid, query in queries.items()
        if uid in totals
    )


def _epoch(operator: OperatorRun | None) -> int | None:
    return operator.epoch.epoch if operator is not None and operator.epoch is not None else None


def _gateways(operator: OperatorRun | None, now: float) -> tuple[GatewayStatus, ...]:
    if operator is None:
        return ()
    return tuple(
        GatewayStatus(
            subtask=subtask,
            is_open=gateway.is_open,
            blocked=gateway.blocked,
            blocked_total=gateway.blocked_total,
            blocked_seconds=gateway.blocked_seconds_at(now),
            mailbox=count(gateway.mailbox),
        )
        for subtask, gateway in enumerate(operator.channel.gateways)
    )
