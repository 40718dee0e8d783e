"""The input of a driver's metrics, read at one moment.

``coord_control.spark.job.job_metrics`` makes it; nothing here depends on Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coord_control.ids import CheckpointId, OperatorUid
from coord_control.metrics.observer import Observed
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.durations import Durations
from coord_control.protocol.job_facts import FeedStatus, JobFacts, LiveFacts, QueryFacts
from coord_control.protocol.status import JobStatus
from coord_control.storage.records import AgentMetrics

__all__ = ["AgentSnapshot", "DriverSnapshot", "EndpointSnapshot", "WriterSnapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSnapshot:
    """The endpoint's totals; ``rejected`` is by the short name of the reason, and includes zeros."""

    authenticated: int
    strangers: int
    accepted: int
    frames_in: int
    frames_out: int
    dropped_answers: int
    held_bytes: int
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSnapshot:
    """The totals of writes to the epoch store."""

    writes: int
    records: int
    durations: Durations


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSnapshot:
    """The state of the agent; ``outcomes`` counts finished commands by kind and state."""

    is_connected: bool
    numbers: AgentMetrics
    outcomes: Mapping[tuple[str, str], int]
    under_way: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSnapshot:
    """One job in one driver.

    Attributes:
        protocol_version: the version of the subtask protocol.
        is_up: whether the job is not ending and nothing has failed permanently.
        status: the status of the job, or None if it is ending.
        feeds: the feeds of control events, by operator.
        live: the live values.
        progress: the progress of the running checkpoints.
        agent: the state of the agent, or None without a control plane.
    """

    facts: JobFacts
    protocol_version: int
    is_up: bool
    status: JobStatus | None
    queries: tuple[QueryFacts, ...]
    parallelism: Mapping[OperatorUid, int]
    feeds: Mapping[OperatorUid, FeedStatus]
    observed: Observed
    endpoint: EndpointSnapshot
    writer: WriterSnapshot
    callbacks_waiting: int
    recoveries_under_way: int
    live: tuple[LiveFacts, ...] = ()
    progress: Mapping[CheckpointId, Progress] = field(default_factory=dict)
    agent: AgentSnapshot | None = None
