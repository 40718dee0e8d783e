"""What a job can say of itself at one moment, for people and monitoring; a copy, nothing changes in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coord_control.protocol.job import JobCore
from coord_control.protocol.operator import OperatorRun, Totals

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
    """One operator; ``totals`` count since the driver started."""

    uid: str
    query: str
    epoch: int | None  #: the one that runs now
    totals: Totals
    gateways: tuple[GatewayStatus, ...]


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query; ``progress`` is Spark's newest progress event."""

    name: str
    state: str
    committed: int  #: Spark's last commit that was observed, -1 when there is none
    restarts: int
    last_failure: str | None
    progress: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The whole job."""

    name: str
    generation: int
    queries: tuple[QueryStatus, ...]
    operators: tuple[OperatorStatus, ...]
    slow_callbacks: int
    group_commits: int  #: writes of the epoch store since the driver started


def operator_statuses(core: JobCore, now: float) -> tuple[OperatorStatus, ...]:
    """Copy what the core knows; on the loop."""
    return tuple(_status(operator, now) for operator in core.operators())


def _status(operator: OperatorRun, now: float) -> OperatorStatus:
    totals = operator.totals
    gateways = tuple(
        GatewayStatus(
            subtask=subtask,
            is_open=gateway.is_open,
            blocked=gateway.blocked,
            blocked_total=gateway.blocked_total,
            blocked_seconds=gateway.blocked_seconds_at(now),
            mailbox=sum(batch.length for batch in gateway.mailbox),
        )
        for subtask, gateway in enumerate(operator.channel.gateways)
    )
    copied = Totals(**{name: getattr(totals, name) for name in Totals.__slots__})
    epoch = operator.epoch.epoch if operator.epoch is not None else None
    return OperatorStatus(operator.spec.uid, operator.query, epoch, copied, gateways)
