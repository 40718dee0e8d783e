"""Samples, recoveries and audit entries.

Values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from coord_control.storage.records.record import Record

__all__ = [
    "REQUESTED_CAUSES",
    "AuditRecord",
    "OperatorSample",
    "QuerySample",
    "RecoveryRecord",
]


#: Causes of requested recoveries: a start after an end in good order, and a restore.
REQUESTED_CAUSES: Final = ("driver_start", "restore")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySample(Record):
    """Measurements of a query during ``resolution_seconds`` from ``at``."""

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
    backlog: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSample(Record):
    """Measurements of an operator during ``resolution_seconds`` from ``at``: sums of counts, maxima of levels."""

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
    """A query, or the whole job, resumed.

    Attributes:
        query: None for the whole job.
        cause: driver_start, driver_died, query_failed, fenced, restore or another short name.
        from_epoch: the newest epoch that was kept.
        from_checkpoint: the checkpoint that it was restored from.
        sequence: its number among the changes of all jobs (``Change``).
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
    id: int | None = None  #: set by the database
    sequence: int | None = None  #: set by the database


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord(Record):
    """A request, or its outcome. Never contains payloads of control events."""

    actor: str
    action: str
    at: datetime | None = None  #: None for the database's time
    host: str = ""
    job: str | None = None
    subject: str = ""
    outcome: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    id: int | None = None  #: set by the database
