"""All jobs together: what has happened since somebody last looked, and how each of them is.

Values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from coord_control.storage.records.base import Record
from coord_control.storage.records.checkpoints import CheckpointRecord
from coord_control.storage.records.history import RecoveryRecord
from coord_control.storage.records.jobs import JobRecord

__all__ = [
    "Change",
    "CheckpointCount",
    "CommandCount",
    "Fleet",
    "FleetCounts",
    "JobOverview",
    "LagTrend",
    "ReasonCount",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Record):
    """A checkpoint or savepoint has completed or failed, or a query has recovered; exactly one of the two is given.

    Attributes:
        sequence: grows in the order in which changes became visible, over all jobs; there are no two of a number.
        checkpoint: as it is now, with its queries: one that had completed may be discarded by the time it is read.
    """

    sequence: int
    job: str
    checkpoint: CheckpointRecord | None = None
    recovery: RecoveryRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LagTrend(Record):
    """How far a query's watermark was behind, in seconds: the average over the first and the last minute looked at.

    None: nothing was measured then, or the query has no watermark.
    """

    query: str
    first: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverview(Record):
    """One job, for somebody who looks at all of them.

    Attributes:
        job: with its queries and operators.
        completed: the newest checkpoint or savepoint that is complete and on storage; like the next two without its
            queries.
        savepoint: the newest savepoint of that kind.
        failed: the newest that has failed.
        newest: of each kind, the newest that is complete and the newest that has failed.
        failed_in_a_row: how many have failed since the last that was completed; without those that somebody aborted,
            or that ended with their driver or query.
        under_way: how many the newest driver is making.
        recoveries: how many have begun within the window.
        last_recovery: the one that was recorded last, whenever that was.
        lags: of each query that was measured within the window.
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
    lags: tuple[LagTrend, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCount(Record):
    """How many checkpoints of a kind a job has had that are in a state now; removed history stays counted."""

    job: str
    kind: str
    state: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonCount(Record):
    """How often something happened in a job within the window: a checkpoint failed, or a query recovered.

    Attributes:
        kind: of the checkpoint; empty for a recovery.
        reason: why it failed, or the cause of the recovery.
    """

    job: str
    kind: str = ""
    reason: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCount(Record):
    """How many commands of a kind are in a state: all that are not finished, and those that were asked for within the
    window.

    Attributes:
        oldest_at: when the oldest of them was asked for.
    """

    job: str
    kind: str
    state: str
    count: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts(Record):
    """What there was how often, over all jobs."""

    checkpoints: tuple[CheckpointCount, ...] = ()
    failures: tuple[ReasonCount, ...] = ()
    recoveries: tuple[ReasonCount, ...] = ()
    open_commands: tuple[CommandCount, ...] = ()
    ended_commands: tuple[CommandCount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet(Record):
    """Jobs by name, at one moment; ``now`` is the database's."""

    now: datetime
    jobs: tuple[JobOverview, ...]
