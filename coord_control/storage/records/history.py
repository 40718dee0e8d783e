"""What was measured, what was recovered, and who asked for what.

Values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coord_control.storage.records.base import Record

__all__ = [
    "AuditRecord",
    "OperatorSample",
    "QuerySample",
    "RecoveryRecord",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySample(Record):
    """A query during ``resolution_seconds`` from ``at``."""

    job: str
    query: str
    at: datetime
    resolution_seconds: int = 5
    epochs: int = 0
    epoch_last: int | None = None
    rows: int = 0
    rows_per_second: float | None = None
    batch_seconds_avg: float | None = None
    batch_seconds_max: float | None = None
    state_rows: int | None = None
    lag_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSample(Record):
    """An operator during ``resolution_seconds`` from ``at``; sums of what was new, and the highest of what goes up and
    down."""

    job: str
    operator: str
    at: datetime
    resolution_seconds: int = 5
    blocked_events: int = 0
    blocked_seconds: float = 0.0
    blocked_now_max: int = 0
    mailbox_max: int = 0
    closed_max: int = 0
    events_down: int = 0
    events_up: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRecord(Record):
    """A query, or the whole job, went on from somewhere.

    Attributes:
        query: None: all of the job.
        cause: driver_start, driver_died, query_failed, fenced, restore or another short name.
        from_epoch: the newest epoch that was kept.
        from_checkpoint: the checkpoint that it was restored from.
        sequence: its place among the changes of all jobs (``Change``).
    """

    job: str
    generation: int
    cause: str
    started_at: datetime
    query: str | None = None
    what: str = ""
    from_epoch: int | None = None
    from_checkpoint: int | None = None
    path: str | None = None
    duration_seconds: float | None = None
    epochs_rerun: int = 0
    message: str = ""
    id: int | None = None  #: the database gives it
    sequence: int | None = None  #: the database gives it


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord(Record):
    """Somebody asked for something, or something came of it. Payloads of control events are never part of it."""

    actor: str
    action: str
    at: datetime | None = None  #: None: the database says when
    host: str = ""
    job: str | None = None
    subject: str = ""
    outcome: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    id: int | None = None  #: the database gives it
