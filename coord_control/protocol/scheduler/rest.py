"""Compute the pause after each checkpoint: back-to-back savepoints must not slow the epochs that run in parallel.

What a checkpoint does in the driver takes processor time from the tasks of a local master, and journal writes from its
file system. Once a minute this is not noticeable; back to back without a pause it would cost every epoch a tenth. So
the work of checkpoints takes a fifth of the time at most, as long as epochs are processed; an idle job needs no
protection, and nothing waits. A checkpoint that follows no other starts at once in any case.

Single-threaded; has the same owner as the scheduler. Times are seconds.
"""

from __future__ import annotations

from typing import Final

from coord_control.ids import NO_EPOCH, Epoch, QueryName
from coord_control.protocol.statistics import CheckpointStatistics

__all__ = ["LONGEST_REST_SECONDS", "WORK_SHARE", "Resting"]

#: Of the time, while epochs are processed.
WORK_SHARE: Final = 0.2
#: A large savepoint to another disk takes minutes, most of which it waits.
LONGEST_REST_SECONDS: Final = 0.25

#: A job is idle when none of its queries has progressed for this long.
_IDLE_SECONDS: Final = 5.0


class Resting:
    """Says it of each completed checkpoint, in the order in which they end."""

    __slots__ = ("_boundaries", "_moved_at")

    def __init__(self) -> None:
        self._boundaries: dict[QueryName, Epoch] = {}
        self._moved_at: float | None = None

    def after(self, completed: CheckpointStatistics, now: float) -> float:
        """Return how long nothing should start after this one; 0.0 if anything may."""
        for query in completed.queries:
            boundary = NO_EPOCH if query.boundary is None else query.boundary
            if boundary > self._boundaries.setdefault(query.query, boundary):
                self._moved_at = now
            self._boundaries[query.query] = boundary
        if self._moved_at is None or now - self._moved_at > _IDLE_SECONDS:
            return 0.0
        return min(_work_seconds(completed) * (1 / WORK_SHARE - 1), LONGEST_REST_SECONDS)


def _work_seconds(completed: CheckpointStatistics) -> float:
    """Without the time in which it waited for epochs to end."""
    waited = max((query.boundary_seconds or 0.0 for query in completed.queries), default=0.0)
    return max(0.0, (completed.duration_seconds or 0.0) - waited)
