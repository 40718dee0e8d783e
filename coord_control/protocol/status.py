"""What a job can say of itself at one moment, for people and monitoring; a copy, nothing changes in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coord_control.ids import BarrierId, CheckpointId, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.job import JobCore
from coord_control.protocol.operator import OperatorRun, Totals
from coord_control.protocol.records import count

__all__ = ["GatewayStatus", "JobStatus", "OperatorStatus", "QueryStatus", "QueryTarget", "operator_statuses"]


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """One subtask's gateway."""

    subtask: int
    is_open: bool
    blocked: int  #: events that wait behind a closed barrier now
    blocked_total: int  #: events that had to wait, since the last restart of the query
    blocked_seconds: float  #: time during which at least one event waited, since the last restart of the query
    mailbox: int  #: events that wait for the subtask's next epoch
    outbox: int = 0  #: events of the subtask that wait for the commit of the running epoch
    waiting_bytes: int = 0  #: of what waits for it: before and behind barriers, and inputs that it has not asked for
    blocked_age_seconds: float = 0.0  #: for how long one has been waiting behind a barrier without a break
    checkpoint_blocked_total: int = 0  #: of those that had to wait: the ones that a checkpoint stopped
    checkpoint_blocked_seconds: float = 0.0  #: of the time: while one waited behind a checkpoint


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    """One operator of a started query; ``totals`` count since the driver started."""

    uid: str
    query: str
    epoch: int | None  #: the one that runs now
    totals: Totals
    gateways: tuple[GatewayStatus, ...]  #: empty while the query does not run
    blocked_by_epochs: int = 0  #: events that wait now because an epoch has begun
    blocked_by_checkpoints: Mapping[CheckpointId, int] = field(default_factory=dict)  #: ... because of one of these

    @property
    def blocked_events_total(self) -> int:
        """Events that had to wait since the driver started."""
        return self.totals.blocked_events + sum(gateway.blocked_total for gateway in self.gateways)

    @property
    def blocked_seconds_total(self) -> float:
        """Time during which at least one event waited since the driver started, over all gateways."""
        return self.totals.blocked_seconds + math.fsum(gateway.blocked_seconds for gateway in self.gateways)

    @property
    def checkpoint_blocked_events_total(self) -> int:
        """Events that a checkpoint has stopped since the driver started; epochs have stopped the others."""
        own = sum(gateway.checkpoint_blocked_total for gateway in self.gateways)
        return self.totals.checkpoint_blocked_events + own

    @property
    def checkpoint_blocked_seconds_total(self) -> float:
        """Time during which an event waited behind a checkpoint since the driver started, over all gateways."""
        own = math.fsum(gateway.checkpoint_blocked_seconds for gateway in self.gateways)
        return self.totals.checkpoint_blocked_seconds + own


@dataclass(frozen=True, slots=True)
class QueryTarget:
    """What a query writes.

    Attributes:
        table: the name of its table, as for ``toTable``; None if the writer says where.
        columns: the types of its columns, by name; empty if there are very many.
    """

    table: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query.

    ``progress`` is Spark's newest progress event, with the newest event time of the last batch that had any; the
    numbers of batches, rows and seconds are of all since the driver started. ``output_rows`` is None if its sink does
    not report them.
    """

    name: str
    state: str
    committed: int  #: Spark's last commit that was observed, -1 when there is none
    restarts: int
    last_failure: str | None
    progress: dict[str, Any] = field(default_factory=dict)
    batches: int = 0
    rows: int = 0
    batch_seconds: float = 0.0
    output_rows: int | None = None
    target: QueryTarget = QueryTarget()


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
        _status(core, uid, query, replace(totals[uid]), running.get(uid), now)
        for uid, query in queries.items()
        if uid in totals
    )


def _status(
    core: JobCore, uid: OperatorUid, query: QueryName, totals: Totals, operator: OperatorRun | None, now: float
) -> OperatorStatus:
    if operator is None:
        return OperatorStatus(uid, query, None, totals, ())
    epoch = None if operator.epoch is None else operator.epoch.epoch
    by_epochs, by_checkpoints = _blocked(core, operator)
    return OperatorStatus(uid, query, epoch, totals, _gateways(operator, now), by_epochs, by_checkpoints)


def _blocked(core: JobCore, operator: OperatorRun) -> tuple[int, dict[CheckpointId, int]]:
    blocked = Counter[BarrierId]()
    for gateway in operator.channel.gateways:
        for barrier, events in gateway.blocked_by():
            blocked[barrier] += events
    by_epochs, by_checkpoints = 0, Counter[CheckpointId]()
    for barrier, events in blocked.items():
        if (checkpoint := core.checkpoint_of(barrier)) is None:
            by_epochs += events
        else:
            by_checkpoints[checkpoint] += events
    return by_epochs, dict(by_checkpoints)


def _gateways(operator: OperatorRun, now: float) -> tuple[GatewayStatus, ...]:
    sent = operator.epoch.sent() if operator.epoch is not None else {}
    return tuple(
        GatewayStatus(
            subtask=subtask,
            is_open=gateway.is_open,
            blocked=gateway.blocked,
            blocked_total=gateway.blocked_total,
            blocked_seconds=gateway.blocked_seconds_at(now),
            mailbox=count(gateway.mailbox),
            outbox=sent.get(SubtaskIndex(subtask), 0),
            waiting_bytes=operator.waiting_bytes(SubtaskIndex(subtask)),
            blocked_age_seconds=gateway.blocked_age(now),
            checkpoint_blocked_total=gateway.checkpoint_blocked_total,
            checkpoint_blocked_seconds=gateway.checkpoint_blocked_seconds_at(now),
        )
        for subtask, gateway in enumerate(operator.channel.gateways)
    )
