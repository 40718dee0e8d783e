"""What a program gets when it asks its job for a checkpoint.

Threads: any; the outcome is set once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from coord_control.errors import CheckpointNotCompleted
from coord_control.ids import CheckpointId
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.scheduler.tickets import CheckpointRequest, Outcome, TicketId
from coord_control.protocol.statistics import CheckpointStatistics

__all__ = ["CheckpointHandle", "CompletedCheckpoint"]


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint or savepoint that exists.

    Attributes:
        id: its number in the job.
        path: the folder with its ``_metadata``: what a restore is given.
        statistics: what was measured of it; None if an earlier driver took it and its metadata could not be read.
    """

    id: CheckpointId
    path: str
    statistics: CheckpointStatistics | None = field(default=None, compare=False, repr=False)


class CheckpointHandle:
    """A requested checkpoint or savepoint."""

    def __init__(self, request: CheckpointRequest, abort: Callable[[CheckpointHandle], None]) -> None:
        self.request = request
        self.ticket: TicketId | None = None  # set by the service
        self._abort = abort
        #: Whether it was started for this request; otherwise it is that of an earlier request with the same key.
        self.was_started = False
        self._checkpoint: CheckpointId | None = None
        self._progress: Callable[[], Progress | None] = lambda: None
        self._statistics: CheckpointStatistics | None = None
        self._outcome: Future[Outcome] = Future()

    @property
    def id(self) -> CheckpointId | None:
        """The checkpoint's number; None: it waits, or was refused."""
        return self._checkpoint

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._outcome.done()

    def wait(self, timeout_seconds: float | None = None) -> CompletedCheckpoint:
        """Wait until it is complete.

        Raises:
            CheckpointNotCompleted: it came to nothing; the error says why and what to do.
            TimeoutError: it has not ended within the time, and goes on.
        """
        outcome = self._outcome.result(timeout_seconds)
        if outcome.reason is not None:
            raise CheckpointNotCompleted(self.request.kind.value, outcome.reason.code, outcome.message)
        assert self._checkpoint is not None, "completed ones were started"
        assert outcome.path is not None, "completed ones lie somewhere"
        return CompletedCheckpoint(self._checkpoint, outcome.path, self._statistics)

    def progress(self) -> Progress | None:
        """How far it is; None: it waits, or all its subtasks have passed."""
        return self._progress()

    def abort(self) -> None:
        """Give it up, unless it is complete by then; :meth:`wait` tells."""
        self._abort(self)

    # For the service.

    def started(self, checkpoint: CheckpointId, progress: Callable[[], Progress | None]) -> None:
        """It has begun, under this id."""
        self._checkpoint, self._progress = checkpoint, progress
        self.was_started = True

    def finish(
        self,
        outcome: Outcome,
        checkpoint: CheckpointId | None = None,
        statistics: CheckpointStatistics | None = None,
    ) -> None:
        """It has ended; what is said later changes nothing."""
        if not self._outcome.done():
            self._checkpoint = checkpoint or self._checkpoint
            self._statistics = statistics
            self._outcome.set_result(outcome)
