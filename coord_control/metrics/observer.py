"""Counts what happens in a job: checkpoints, recoveries, control events.

The job keeps the details of the newest ones; monitoring needs totals over all of them. So each is counted when it ends,
and only sums are kept of the newest, so that reading them costs nothing.

Threads: a listener of the job, called on any of its threads; read from any.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coord_control.ids import CheckpointId, CheckpointKind, OperatorUid
from coord_control.protocol.durations import Durations
from coord_control.protocol.job_facts import JobListener, RecoveryCause, RecoveryFact
from coord_control.protocol.statistics import CheckpointStatistics, CheckpointStatus, CheckpointTotals

__all__ = ["InProgress", "KindNumbers", "LastCompleted", "LastFailed", "LastRestored", "Observed", "Observer"]


@dataclass(frozen=True, slots=True)
class InProgress:
    """A checkpoint in progress."""

    checkpoint: CheckpointId
    kind: CheckpointKind
    triggered_at_seconds: float


@dataclass(frozen=True, slots=True)
class LastCompleted:
    """The newest completed checkpoint."""

    checkpoint: CheckpointId
    at_seconds: float
    totals: CheckpointTotals


@dataclass(frozen=True, slots=True)
class LastFailed:
    """The newest failed checkpoint."""

    checkpoint: CheckpointId
    at_seconds: float


@dataclass(frozen=True, slots=True)
class LastRestored:
    """The checkpoint that a query was last restored from."""

    checkpoint: CheckpointId
    at_seconds: float


@dataclass(slots=True)
class KindNumbers:
    """The numbers of all checkpoints, or of all savepoints."""

    started: int = 0
    completed: int = 0
    last: LastCompleted | None = None
    last_failed: LastFailed | None = None
    duration: Durations = field(default_factory=Durations)
    failed_duration: Durations = field(default_factory=Durations)
    snapshot: Durations = field(default_factory=Durations)
    blocked: Durations = field(default_factory=Durations)


@dataclass(frozen=True, slots=True)
class Observed:
    """All numbers at one moment.

    Attributes:
        failed: number of failed checkpoints, by kind and reason.
        recoveries: number of recoveries, by query and cause.
        rerun: number of epochs that were run again, by query.
        events: number of control events, by operator and outcome.
    """

    kinds: Mapping[CheckpointKind, KindNumbers]
    in_progress: tuple[InProgress, ...]
    failed: Mapping[tuple[CheckpointKind, str], int]
    failures_in_a_row: int
    discarded: int
    recoveries: Mapping[tuple[str, str], int]
    rerun: Mapping[str, int]
    recovery_durations: Mapping[RecoveryCause, Durations]
    restored: Mapping[str, LastRestored]
    events: Mapping[tuple[OperatorUid, str], int]


class Observer(JobListener):
    """A listener of one job; it counts from the moment when it is added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds = {kind: KindNumbers() for kind in CheckpointKind}
        self._in_progress: dict[CheckpointId, InProgress] = {}
        self._failed = Counter[tuple[CheckpointKind, str]]()
        self._failures_in_a_row = 0
        self._discarded = 0
        self._recoveries = Counter[tuple[str, str]]()
        self._rerun = Counter[str]()
        self._recovery_durations = {cause: Durations() for cause in RecoveryCause}
        self._restored: dict[str, LastRestored] = {}
        self._events = Counter[tuple[OperatorUid, str]]()

    def observed(self) -> Observed:
        """Return a copy of all numbers."""
        with self._lock:
            return Observed(
                kinds={kind: replace(numbers) for kind, numbers in self._kinds.items()},
                in_progress=tuple(self._in_progress.values()),
                failed=dict(self._failed),
                failures_in_a_row=self._failures_in_a_row,
                discarded=self._discarded,
                recoveries=dict(self._recoveries),
                rerun=dict(self._rerun),
                recovery_durations=dict(self._recovery_durations),
                restored=dict(self._restored),
                events=dict(self._events),
            )

    # A listener of the job.

    def on_checkpoint(self, statistics: CheckpointStatistics) -> None:
        """Count a checkpoint that has started, advanced or ended."""
        if statistics.status is CheckpointStatus.IN_PROGRESS:
            self._started(statistics)
        elif statistics.status is CheckpointStatus.COMPLETED:
            self._completed(statistics, CheckpointTotals(**statistics.totals()))
        else:
            self._has_failed(statistics)

    def on_checkpoint_discarded(self, checkpoint: CheckpointId) -> None:
        """Count a completed checkpoint that was removed."""
        with self._lock:
            self._discarded += 1

    def on_recovery(self, fact: RecoveryFact) -> None:
        """Count a recovery of a query that has ended, possibly because of another one."""
        with self._lock:
            self._recoveries[fact.query, fact.cause.value] += 1
            self._rerun[fact.query] += fact.epochs_again
            if fact.duration_seconds is not None:
                durations = self._recovery_durations
                durations[fact.cause] = durations[fact.cause].plus(fact.duration_seconds)
            if fact.checkpoint is not None:
                self._restored[fact.query] = LastRestored(fact.checkpoint, fact.started_at_seconds)

    def on_event_applied(self, operator: OperatorUid, number: int, subtasks: tuple[int, ...] = ()) -> None:
        """Count a control event that was delivered to the coordinator."""
        with self._lock:
            self._events[operator, "applied"] += 1

    def on_event_refused(self, operator: OperatorUid, number: int, error: Exception) -> None:
        """Count a control event for which the coordinator raised."""
        with self._lock:
            self._events[operator, "refused"] += 1

    # Parts.

    def _started(self, each: CheckpointStatistics) -> None:
        with self._lock:
            if each.checkpoint not in self._in_progress:
                self._kinds[each.kind].started += 1
                begun = InProgress(each.checkpoint, each.kind, each.triggered_at_seconds)
                self._in_progress[each.checkpoint] = begun

    def _completed(self, each: CheckpointStatistics, totals: CheckpointTotals) -> None:
        seconds = totals.duration_seconds or 0.0
        completed = LastCompleted(each.checkpoint, each.triggered_at_seconds + seconds, totals)
        with self._lock:
            self._in_progress.pop(each.checkpoint, None)
            numbers = self._kinds[each.kind]
            numbers.completed += 1
            numbers.duration = numbers.duration.plus(seconds)
            numbers.snapshot = numbers.snapshot.plus(totals.snapshot_seconds)
            numbers.blocked = numbers.blocked.plus(totals.blocked_seconds)
            if numbers.last is None or numbers.last.checkpoint < completed.checkpoint:
                numbers.last = completed
            self._failures_in_a_row = 0

    def _has_failed(self, each: CheckpointStatistics) -> None:
        assert each.reason is not None, "it has failed"
        seconds = each.duration_seconds or 0.0
        with self._lock:
            self._in_progress.pop(each.checkpoint, None)
            numbers = self._kinds[each.kind]
            numbers.failed_duration = numbers.failed_duration.plus(seconds)
            if numbers.last_failed is None or numbers.last_failed.checkpoint < each.checkpoint:
                numbers.last_failed = LastFailed(each.checkpoint, each.triggered_at_seconds + seconds)
            self._failed[each.kind, each.reason.code] += 1
            if each.kind is CheckpointKind.CHECKPOINT and each.reason.counts:
                self._failures_in_a_row += 1
