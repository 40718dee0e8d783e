"""Records of jobs, and of their drivers, queries and operators.

Values; any thread.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from coord_control.storage.records.live_records import LiveValueRecord
from coord_control.storage.records.record import Record

__all__ = [
    "ACTIVE_JOB_STATES",
    "ENDED_TO_RESTART",
    "LOST_QUERY",
    "AgentMetrics",
    "BlockedRecord",
    "EventType",
    "GatewayRecord",
    "GenerationRecord",
    "Heartbeat",
    "JobRecord",
    "JobRegistration",
    "JobState",
    "LiveOperator",
    "LiveQuery",
    "LiveStatus",
    "OperatorRecord",
    "QueryRecord",
    "RequestType",
]


class JobState(enum.StrEnum):
    """The last reported state of a job's driver; ``JobRecord.is_alive`` tells whether the driver is alive."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"


#: States in which a driver should send heartbeats.
ACTIVE_JOB_STATES: Final = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)

#: The state of a query that was active when its driver died.
LOST_QUERY: Final = "lost"

#: The ``end_reason`` of a driver that ended on request, to be restarted by its supervisor.
ENDED_TO_RESTART: Final = "stopped, to be started again"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType(Record):
    """A control event that an operator accepts.

    Attributes:
        schema: the JSON schema of its payload.
    """

    name: str
    schema: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestType(Record):
    """A request that an operator answers.

    Attributes:
        schema: the JSON schema of its payload.
        answer: the JSON schema of its answer.
    """

    name: str
    schema: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRecord(Record):
    """The gateway of one subtask, at the last heartbeat."""

    subtask: int
    is_open: bool = True
    blocked: int = 0
    blocked_total: int = 0
    blocked_seconds: float = 0.0
    mailbox: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedRecord(Record):
    """The events of an operator that one cause has stopped at closed gateways, at the last heartbeat.

    Attributes:
        now: how many wait now.
        events: how many had to wait since the driver started.
        seconds: time during which at least one waited since then, added up over the gateways.
    """

    now: int = 0
    events: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveQuery(Record):
    """Frequently changing values of a query; part of a heartbeat.

    Attributes:
        input_rows_per_second: that its last batch took in.
        backlog: records that wait in its sources; None if no source reports it.
        backlog_of_partitions: the largest parts of it, by source and partition.
        state_rows: rows in Spark's state of all its operators; None if it has no state.
        watermark: None if it has none, or has received no rows yet.
        rows: rows that it took in since the driver started; None if an older driver does not report them.
        output_rows: rows that its sink has received since then; None if the sink does not report them.
        table: the table that it writes to; empty if it was not started with one.
        columns: the types of the columns that it writes, by name; empty if there are very many.
    """

    name: str
    state: str = ""
    epoch: int | None = None
    restarts: int = 0
    input_rows_per_second: float | None = None
    rows_per_second: float | None = None
    backlog: int | None = None
    backlog_of_partitions: dict[str, int] = field(default_factory=dict)
    lag_seconds: float | None = None
    state_rows: int | None = None
    watermark: datetime | None = None
    rows: int | None = None
    output_rows: int | None = None
    table: str = ""
    columns: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOperator(Record):
    """Frequently changing values of an operator; part of a heartbeat.

    Attributes:
        blocked_by: what has stopped events, by cause: ``epoch`` and ``checkpoint``; older drivers do not report it.
    """

    uid: str
    epoch: int | None = None
    blocked_now: int = 0
    blocked_total: int = 0
    blocked_seconds: float = 0.0
    blocked_by: dict[str, BlockedRecord] = field(default_factory=dict)
    mailbox: int = 0
    closed: int = 0
    gateways: tuple[GatewayRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus(Record):
    """What a driver reports with each heartbeat; only the newest is kept.

    Attributes:
        metrics: the address of its metrics, as ``host:port``; empty if they are not served.
        spark_ui: the address of Spark's page; empty if there is none.
    """

    queries: tuple[LiveQuery, ...] = ()
    operators: tuple[LiveOperator, ...] = ()
    checkpoint: int | None = None  #: the one in progress
    message: str = ""
    metrics: str = ""
    spark_ui: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMetrics(Record):
    """The driver's agent and its connection to the database."""

    buffered: int = 0
    dropped: int = 0
    database_failures: int = 0
    last_failure: str = ""
    last_contact: datetime | None = None  #: when it last read or wrote, by the clock of the driver
    commands: int = 0  #: executed by this driver


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRecord(Record):
    """A query of a job. ``input_rows_per_second`` and the fields after it come from the last heartbeat.

    Attributes:
        state: running, restarting, paused, stopped, finished or failed; ``lost`` if it was active when its driver
            died; empty if this driver has not started it yet.
    """

    name: str
    query_id: str = ""
    lineage: str = ""
    state: str = ""
    epoch: int | None = None
    restarts: int = 0
    last_failure: str = ""
    updated_at: datetime | None = None
    input_rows_per_second: float | None = None
    rows_per_second: float | None = None
    backlog: int | None = None
    backlog_of_partitions: dict[str, int] = field(default_factory=dict)
    lag_seconds: float | None = None
    state_rows: int | None = None
    watermark: datetime | None = None
    rows: int | None = None
    output_rows: int | None = None
    table: str = ""
    columns: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecord(Record):
    """An operator of a job; ``epoch`` and the fields after it come from the last heartbeat.

    Attributes:
        blocked_by: what has stopped events, by cause: ``epoch`` and ``checkpoint``; older drivers do not report it.
        applied_number: number of the last control event in its coordinator's durable state.
    """

    uid: str
    query: str = ""
    parallelism: int = 0
    event_types: tuple[EventType, ...] = ()
    request_types: tuple[RequestType, ...] = ()
    applied_number: int = 0
    epoch: int | None = None
    blocked_now: int = 0
    blocked_total: int = 0
    blocked_seconds: float = 0.0
    blocked_by: dict[str, BlockedRecord] = field(default_factory=dict)
    mailbox: int = 0
    closed: int = 0
    gateways: tuple[GatewayRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfDriver(Record):
    """What is known of a job from its driver.

    Attributes:
        lease_seconds: how long after a heartbeat the driver counts as alive.
        is_supervised: whether a supervisor restarts the driver.
    """

    name: str
    root: str
    folder: str
    generation: int
    host: str
    pid: int
    lease_seconds: float = 10.0
    is_supervised: bool = False
    log_file: str | None = None
    spark_version: str = ""
    version: str = ""
    queries: tuple[QueryRecord, ...] = ()
    operators: tuple[OperatorRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRegistration(_OfDriver):
    """What a driver reports when it starts.

    Attributes:
        process_seconds: how long its process has run; it may not know what was changed in this time.
    """

    state: JobState = JobState.STARTING
    process_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(_OfDriver):
    """A job. Listings have no ``queries``, no ``operators`` and no ``live_values``.

    Attributes:
        live_values: those that its driver declares.
        is_alive: by the clock of the database, its driver has sent a heartbeat within the lease and has not ended.
        is_restarting: by that clock, its driver died, failed or asked for a restart a moment ago, and its supervisor is
            expected to start it again; commands wait for the next driver.
    """

    NOT_LISTED: ClassVar = ("queries", "operators", "live_values")

    state: JobState
    created_at: datetime
    driver_started_at: datetime
    heartbeat_at: datetime
    is_alive: bool
    is_restarting: bool = False
    ended_at: datetime | None = None
    end_reason: str = ""
    live: LiveStatus | None = None
    agent: AgentMetrics | None = None
    live_values: tuple[LiveValueRecord, ...] = ()

    @property
    def waits_for_driver(self) -> bool:
        """Whether its driver has ended in order to be started again: requests wait for the next one."""
        return self.is_restarting and self.state is JobState.ENDED

    @property
    def dead_since(self) -> datetime | None:
        """The time since which the job has had no driver, or None if it has one, was stopped or has finished."""
        if self.is_alive:
            return None
        if self.state is JobState.FAILED:
            return self.ended_at or self.heartbeat_at
        if self.state is JobState.ENDED:
            was_to_return = self.end_reason == ENDED_TO_RESTART and not self.is_restarting
            return self.ended_at if was_to_return else None
        return self.heartbeat_at + timedelta(seconds=self.lease_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Record):
    """The database's reply to a heartbeat."""

    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRecord(Record):
    """One driver of a job; ``is_clean`` if it reported its end."""

    job: str
    generation: int
    host: str
    pid: int
    started_at: datetime
    ended_at: datetime | None = None
    end_reason: str = ""
    is_clean: bool = False
