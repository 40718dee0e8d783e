"""Changes of all jobs, an overview of each of them, and a report of one checkpoint.

Values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from coord_control.storage.records.checkpoint_records import CheckpointRecord, SubtaskRecord
from coord_control.storage.records.history_records import RecoveryRecord
from coord_control.storage.records.job_records import JobRecord
from coord_control.storage.records.record import Record

__all__ = [
    "Change",
    "CheckpointCount",
    "CheckpointReport",
    "CommandCount",
    "Fleet",
    "FleetCounts",
    "JobOverview",
    "ReasonCount",
    "Trend",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Record):
    """A checkpoint or savepoint completed or failed, or a query recovered; exactly one of the two is set.

    Attributes:
        sequence: unique number, increasing in the order in which changes of all jobs became visible.
        checkpoint: its current record, with its queries: a completed one may have been discarded since.
    """

    sequence: int
    job: str
    checkpoint: CheckpointRecord | None = None
    recovery: RecoveryRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport(Record):
    """A checkpoint or savepoint with all that is known of it, and its job, at one moment.

    Attributes:
        job: the job, with queries and operators.
        checkpoint: with its queries.
        subtasks: none if the checkpoint is so old that these details were removed.
        last_recovery: the newest recovery of the job.
    """

    job: JobRecord
    checkpoint: CheckpointRecord
    subtasks: tuple[SubtaskRecord, ...] = ()
    last_recovery: RecoveryRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend(Record):
    """A measurement of a query: its averages over the first and the last minute of the window.

    None if nothing was measured then.
    """

    query: str
    first: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverview(Record):
    """One job in an overview of all jobs.

    Attributes:
        job: its record, with queries and operators.
        completed: the newest completed checkpoint or savepoint on the storage; like the next two, without its queries.
        savepoint: the newest completed savepoint on the storage.
        failed: the newest failed checkpoint or savepoint.
        newest: the newest completed and the newest failed one of each kind.
        failed_in_a_row: failures since the last completed one, without those that were aborted on request, or ended
            with their driver or query.
        under_way: number in progress in the newest driver.
        recoveries: number of recoveries from failures that started within the window.
        last_recovery: the recovery that was recorded last, at any time.
        lags: how far the watermarks were behind, in seconds, of the queries that were measured within the window; a
            query without a watermark has none.
        backlogs: records that waited in the sources of these queries; None unless a source reports it.
    """

    job: JobRecord
    completed: CheckpointRecord | None = None
    savepoint: CheckpointRecord | None = None
    failed: CheckpointRecord | None = None
    newest: tuple[CheckpointRecord, ...] = ()
    failed_in_a_row: int = 0
    under_way: int = 0
    recoveries: int = 0
    last_recovery: RecoveryRecord | None = None
    lags: tuple[Trend, ...] = ()
    backlogs: tuple[Trend, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCount(Record):
    """The number of checkpoints of a job by kind and current state; includes removed history."""

    job: str
    kind: str
    state: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount(Record):
    """The number of failed checkpoints, or of recoveries, of a job within the window.

    Attributes:
        kind: kind of the checkpoints; empty for recoveries.
        reason: reason of the failures, or cause of the recoveries.
    """

    job: str
    kind: str = ""
    reason: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCount(Record):
    """The number of commands by kind and state: all unfinished ones, and those requested within the window.

    Attributes:
        oldest_at: when the oldest of them was requested.
    """

    job: str
    kind: str
    state: str
    count: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts(Record):
    """Counts of events over all jobs."""

    checkpoints: tuple[CheckpointCount, ...] = ()
    failures: tuple[ReasonCount, ...] = ()
    recoveries: tuple[ReasonCount, ...] = ()
    open_commands: tuple[CommandCount, ...] = ()
    ended_commands: tuple[CommandCount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet(Record):
    """All jobs by name, at one moment; ``now`` is the database's time."""

    now: datetime
    jobs: tuple[JobOverview, ...]
