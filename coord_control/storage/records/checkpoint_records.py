"""Records of checkpoints and savepoints; their measurements are the protocol's statistics.

Values; any thread.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from coord_control.ids import CheckpointKind
from coord_control.ids import SubtaskIndex as SubtaskIndex  # of an inherited field: the API reference looks here
from coord_control.protocol import statistics
from coord_control.protocol.statistics import CheckpointTotals, OperatorStatistics, QueryStatistics, SubtaskStatistics
from coord_control.storage.records.record import Record, to_json

__all__ = [
    "CheckpointRecord",
    "CheckpointState",
    "CheckpointSummary",
    "Percentiles",
    "SavepointRecord",
    "SubtaskRecord",
]


class CheckpointState(enum.StrEnum):
    """The state of a checkpoint; it never goes back."""

    IN_PROGRESS = "in_progress"
    FAILED = "failed"
    COMPLETED = "completed"
    DISCARDED = "discarded"  #: it was completed, and then removed from the storage


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskRecord(SubtaskStatistics, Record):
    """One subtask's part of a checkpoint, with its operator; times count from the trigger."""

    operator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord(CheckpointTotals, Record):
    """A checkpoint or savepoint. Listings have no ``queries``.

    Attributes:
        id: the number that users see; per job, from 1.
        generation: generation of the driver that took it.
        reason: a code of :class:`FailureReason`, of a newer release, or of the background work.
        queries: the parts of the queries and their operators; without subtasks if read from the database.
        sequence: its number among the changes of all jobs (:class:`Change`); None while it is in progress.
    """

    NOT_LISTED: ClassVar = ("queries",)

    job: str
    id: int
    kind: CheckpointKind
    state: CheckpointState
    triggered_at: datetime
    generation: int | None = None
    finished_at: datetime | None = None
    reason: str | None = None
    queries: tuple[QueryStatistics, ...] = ()
    sequence: int | None = None  #: set by the database

    def without_subtasks(self) -> CheckpointRecord:
        """Return a copy without the lists of subtasks, but with their totals."""
        return replace(self, queries=tuple(query.without_subtasks() for query in self.queries))

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values for JSON, with totals instead of subtasks."""
        return {**Record.to_json(self), "queries": [_query_json(self.job, query) for query in self.queries]}


def _query_json(job: str, query: QueryStatistics) -> dict[str, Any]:
    operators = [_operator_json(job, operator) for operator in query.operators]
    return {**to_json(statistics.to_json(query.without_subtasks())), "operators": operators}


def _operator_json(job: str, operator: OperatorStatistics) -> dict[str, Any]:
    document: dict[str, Any] = to_json(statistics.to_json(operator))
    applied = document.pop("applied_events")
    number = None if applied is None else applied.get(job, 0)
    return {**document, "subtasks": operator.totals.subtasks, "applied_number": number}


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles(Record):
    """Percentiles of one number, interpolated between the two nearest values; all None without values."""

    count: int = 0
    minimum: float | None = None
    maximum: float | None = None
    average: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary(Record):
    """Statistics over the checkpoints of a job.

    Attributes:
        counts: by state, and ``total``; includes removed history.
        window: maximum number of newest completed checkpoints in the percentiles.
    """

    counts: dict[str, int]
    window: int
    duration: Percentiles
    state_bytes: Percentiles
    new_bytes: Percentiles
    blocked_seconds: Percentiles
    blocked_events: Percentiles
    snapshot_seconds: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointRecord(Record):
    """A savepoint at any path, taken by a job of this database or ``imported``.

    Attributes:
        applied_numbers: operator -> the number of the last event that its state contains; 0 if it is not named.
        verified_at: time of the last verification of all files; ``verified_ok`` if they were intact.
    """

    path: str
    job: str | None = None
    checkpoint: int | None = None
    label: str | None = None
    imported: bool = False
    size: int = 0
    created_at: datetime | None = None
    recorded_at: datetime | None = None
    applied_numbers: dict[str, int] = field(default_factory=dict)
    verified_at: datetime | None = None
    verified_ok: bool | None = None
    problems: tuple[str, ...] = ()
    id: int | None = None  #: set by the database
