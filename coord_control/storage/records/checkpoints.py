"""Checkpoints and savepoints, as the control database tells them.

Values; any thread.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coord_control.ids import CheckpointKind
from coord_control.storage.records.base import Record

__all__ = [
    "CheckpointRecord",
    "CheckpointState",
    "CheckpointSummary",
    "OperatorCheckpoint",
    "Percentiles",
    "QueryCheckpoint",
    "SavepointRecord",
    "SubtaskRecord",
]


class CheckpointState(enum.StrEnum):
    """How far a checkpoint is; it never goes back."""

    IN_PROGRESS = "in_progress"
    FAILED = "failed"
    COMPLETED = "completed"
    DISCARDED = "discarded"  #: it was complete, and has been removed from storage


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCheckpoint(Record):
    """One operator's part of a checkpoint, in totals.

    Attributes:
        applied_number: of the last control event of the job that the coordinator's state contains, if known.
    """

    operator: str
    asked_seconds: float | None = None
    snapshot_seconds: float | None = None
    coordinator_bytes: int = 0
    state_bytes: int = 0
    channel_bytes: int = 0
    blocked_events: int = 0
    blocked_seconds: float = 0.0
    subtasks: int = 0
    passed_subtasks: int = 0
    applied_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCheckpoint(Record):
    """One query's part of a checkpoint, in totals; ``boundary`` is the epoch at whose end it is cut.

    Attributes:
        offsets: by source, what it had been read up to at the boundary, as the source says it; where that is long,
            ``{"omitted": bytes}`` instead.
    """

    query: str
    boundary: int | None = None
    boundary_seconds: float | None = None
    pin_seconds: float | None = None
    files: int = 0
    file_bytes: int = 0
    linked_bytes: int = 0
    copied_bytes: int = 0
    offsets: dict[str, Any] = field(default_factory=dict)
    operators: tuple[OperatorCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskRecord(Record):
    """One subtask's part of a checkpoint; times are from its trigger.

    Attributes:
        passed_seconds: until it passed its boundary and its gateway opened; None: it had not.
        blocked_seconds: for how long its gateway was closed before that, or before the checkpoint failed.
        ack_seconds: until its ack of the boundary epoch; None: there was none after the trigger, because it
            was through before or had no rows.
    """

    operator: str
    subtask: int
    passed_seconds: float | None = None
    state_bytes: int = 0
    blocked_events: int = 0
    blocked_seconds: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    ack_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord(Record):
    """A checkpoint or savepoint. Listings have no ``queries``.

    Attributes:
        id: the number that people see; per job, from 1.
        key: of the request, when it had one; a command's is ``command:<id>``.
        cause: what triggered it: the schedule, a command, a stop.
        generation: of the driver that took it.
        snapshot_seconds: the longest that a coordinator took to give its state.
        blocked_seconds: the longest that a gateway was closed.
        sequence: its place among the changes of all jobs (:class:`Change`); None: it is not over.
    """

    job: str
    id: int
    kind: CheckpointKind
    state: CheckpointState
    triggered_at: datetime
    label: str | None = None
    key: str | None = None
    cause: str = ""
    requested_by: str | None = None
    generation: int | None = None
    finished_at: datetime | None = None
    duration_seconds: float | None = None
    state_bytes: int = 0
    new_bytes: int = 0
    channel_bytes: int = 0
    linked_bytes: int = 0
    copied_bytes: int = 0
    blocked_events: int = 0
    blocked_seconds: float = 0.0
    snapshot_seconds: float = 0.0
    subtasks: int = 0
    passed_subtasks: int = 0
    path: str | None = None
    reason: str | None = None
    message: str = ""
    metadata_bytes: int = 0
    queries: tuple[QueryCheckpoint, ...] = ()
    sequence: int | None = None  #: the database gives it


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles(Record):
    """The spread of one number; all None when there is nothing to measure. Between two values it is interpolated."""

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
    """The checkpoints of a job together.

    Attributes:
        counts: by state, and ``total``: of all that there ever were, removed history included.
        window: how many of the newest completed ones the percentiles are over, at most.
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
    """A savepoint, wherever it lies; also one that no job of this database has taken (``imported``).

    Attributes:
        summary: what its metadata says, for people: queries, operators, epochs.
        verified_at: when all its files were last looked at; ``verified_ok``: and were as they should be.
    """

    path: str
    job: str | None = None
    checkpoint: int | None = None
    label: str | None = None
    imported: bool = False
    size: int = 0
    created_at: datetime | None = None
    recorded_at: datetime | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    verified_at: datetime | None = None
    verified_ok: bool | None = None
    problems: tuple[str, ...] = ()
    id: int | None = None  #: the database gives it
