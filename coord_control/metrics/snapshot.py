"""Everything that a driver's metrics are made of, read at one moment.

Whoever owns the job makes it (``coord_control.spark.job.job_metrics``); nothing here knows Spark.

Values; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coord_control.ids import CheckpointId, OperatorUid
from coord_control.metrics.observer import Observed
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.durations import Durations
from coord_control.protocol.job_facts import FeedStatus, JobFacts, QueryFacts
from coord_control.protocol.status import JobStatus
from coord_control.storage.records import AgentMetrics

__all__ = ["AgentSnapshot", "DriverSnapshot", "EndpointSnapshot", "WriterSnapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSnapshot:
    """What the endpoint has done so far; ``rejected``: by the short name of the reason, also what never happened."""

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
    """What was written to the epoch store."""

    writes: int
    records: int
    durations: Durations


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSnapshot:
    """How the agent fares; ``outcomes``: of commands, by kind and state."""

    is_connected: bool
    numbers: AgentMetrics
    outcomes: Mapping[tuple[str, str], int]
    under_way: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSnapshot:
    """One job in one driver.

    Attributes:
        protocol_version: of the wire to subtasks.
        is_up: nothing has failed for good, and the job does not end.
        status: None: the job is ending.
        feeds: of the events from outside, by operator.
        progress: of the checkpoints that are under way.
        agent: None: there is no control plane.
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
    progress: Mapping[CheckpointId, Progress] = field(default_factory=dict)
    agent: AgentSnapshot | None = None
