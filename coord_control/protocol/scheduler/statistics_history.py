"""The statistics of a job's checkpoints: those that run, the newest that have ended, and what they have in common.

Bounded: of those that have ended the newest are kept. The latest completed one, the latest savepoint, the latest
failure and the latest restore are kept beyond that, as in Flink; the counts continue for the life of the driver.
Summaries are over the completed ones that are kept, and exact.

Single-threaded; has the same owner as the scheduler. What it hands out are values.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.statistics import CheckpointStatistics, CheckpointStatus, to_json

__all__ = ["Counts", "Overview", "Restored", "StatisticsHistory", "Summary", "summary_of"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one measure over several checkpoints; percentiles are interpolated linearly between the closest values."""

    min: float
    max: float
    avg: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


def summary_of(values: Iterable[float]) -> Summary | None:
    """Summarise the values, or return None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    percentiles = (_quantile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99, 0.999))
    return Summary(ordered[0], ordered[-1], math.fsum(ordered) / len(ordered), *percentiles)


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


#: What is summarised over checkpoints: attributes of their statistics.
_SUMMARISED: Final = (
    "duration_seconds",
    "latest_passed_seconds",
    "snapshot_seconds",
    "blocked_seconds",
    "blocked_events",
    "state_bytes",
    "new_bytes",
    "linked_bytes",
    "copied_bytes",
    "channel_bytes",
)


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the driver started; restores since there is the job."""

    restored: int = 0
    total: int = 0  #: started ones
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """What the job was restored from."""

    checkpoint: CheckpointId
    path: str
    restored_at_seconds: float  #: since 1970 (UTC)
    is_fork: bool = False  #: it is a checkpoint of another job


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything at one moment.

    Attributes:
        summary: measure -> summary over the completed ones in ``history``; empty when there are none.
        history: those in progress and the newest that have ended, newest first.
    """

    counts: Counts
    summary: dict[str, Summary]
    latest_completed: CheckpointStatistics | None
    latest_savepoint: CheckpointStatistics | None
    latest_failed: CheckpointStatistics | None
    latest_restored: Restored | None
    history: tuple[CheckpointStatistics, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values; names are those of the fields, units are part of them."""
        return {
            "counts": to_json(self.counts),
            "summary": {measure: to_json(summary) for measure, summary in self.summary.items()},
            "latest": {
                "completed": to_json(self.latest_completed),
                "savepoint": to_json(self.latest_savepoint),
                "failed": to_json(self.latest_failed),
                "restored": to_json(self.latest_restored),
            },
            "history": [to_json(each) for each in self.history],
        }


class StatisticsHistory:
    """The statistics of one job in one driver."""

    __slots__ = ("_completed", "_counts", "_ended", "_failed", "_in_progress", "_restored", "_savepoint")

    def __init__(self, size: int) -> None:
        """Keep the newest ``size`` that have ended."""
        self._counts = Counts()
        self._in_progress: dict[CheckpointId, CheckpointStatistics] = {}
        self._ended: deque[CheckpointStatistics] = deque(maxlen=size)
        self._completed: CheckpointStatistics | None = None  # latest, not a savepoint
        self._savepoint: CheckpointStatistics | None = None
        self._failed: CheckpointStatistics | None = None
        self._restored: Restored | None = None

    def update(self, statistics: CheckpointStatistics) -> None:
        """Replace the statistics of a checkpoint, from its start to its end.

        One that has ended is updated no more: what comes late is ignored.
        """
        checkpoint = statistics.checkpoint
        if any(each.checkpoint == checkpoint for each in self._ended):
            return
        if checkpoint not in self._in_progress:
            self._counts = replace(self._counts, total=self._counts.total + 1)
        self._in_progress[checkpoint] = statistics
        if statistics.status is not CheckpointStatus.IN_PROGRESS:
            del self._in_progress[checkpoint]
            self._end(statistics)

    def restored(self, newest: Restored, times: int) -> None:
        """Record the newest restore of the job, and how many there were in all, by this driver or before."""
        self._counts = replace(self._counts, restored=times)
        self._restored = newest

    def discarded(self, checkpoint: CheckpointId) -> None:
        """Record that a completed checkpoint was removed from storage."""
        ended = [self._marked(each, checkpoint) for each in self._ended]
        self._ended = deque(ended, maxlen=self._ended.maxlen)
        if self._completed is not None:
            self._completed = self._marked(self._completed, checkpoint)
        if self._savepoint is not None:
            self._savepoint = self._marked(self._savepoint, checkpoint)

    def get(self, checkpoint: CheckpointId) -> CheckpointStatistics | None:
        """Return the statistics of one checkpoint, or None if they are no longer kept."""
        latest = (each for each in (self._completed, self._savepoint, self._failed) if each is not None)
        candidates = (*self._in_progress.values(), *self._ended, *latest)
        return next((each for each in candidates if each.checkpoint == checkpoint), None)

    def overview(self) -> Overview:
        """Copy everything."""
        completed = [each for each in self._ended if each.status is CheckpointStatus.COMPLETED]
        summaries = {name: summary_of(getattr(each, name) or 0 for each in completed) for name in _SUMMARISED}
        known = (*self._in_progress.values(), *self._ended)
        return Overview(
            counts=replace(self._counts, in_progress=len(self._in_progress)),
            summary={name: summary for name, summary in summaries.items() if summary is not None},
            latest_completed=self._completed,
            latest_savepoint=self._savepoint,
            latest_failed=self._failed,
            latest_restored=self._restored,
            history=tuple(sorted(known, key=lambda each: each.checkpoint, reverse=True)),
        )

    def _end(self, statistics: CheckpointStatistics) -> None:
        self._ended.append(statistics)
        if statistics.status is CheckpointStatus.FAILED:
            self._counts = replace(self._counts, failed=self._counts.failed + 1)
            self._failed = statistics
            return
        self._counts = replace(self._counts, completed=self._counts.completed + 1)
        if statistics.kind is CheckpointKind.SAVEPOINT:
            self._savepoint = statistics
        else:
            self._completed = statistics

    def _marked(self, statistics: CheckpointStatistics, checkpoint: CheckpointId) -> CheckpointStatistics:
        return replace(statistics, discarded=True) if statistics.checkpoint == checkpoint else statistics
