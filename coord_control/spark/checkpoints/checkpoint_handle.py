"""The handle of a checkpoint that a program requested.

Threads: any; the outcome is set once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from coord_control.errors import CheckpointNotCompleted, CoordControlError
from coord_control.ids import CheckpointId
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.tickets import CheckpointOutcome, CheckpointRequest, TicketId
from coord_control.protocol.statistics import CheckpointStatistics

__all__ = ["CheckpointHandle", "CompletedCheckpoint"]


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint or savepoint that exists.

    Attributes:
        id: its number in the job.
        path: the folder with its ``_metadata``, from which it can be restored.
        statistics: its measurements; None if an earlier driver took it and its metadata could not be read.
    """

    id: CheckpointId
    path: str
    statistics: CheckpointStatistics | None = field(default=None, compare=False, repr=False)


class CheckpointHandle:
    """A requested checkpoint or savepoint."""

    def __init__(
        self,
        request: CheckpointRequest,
        abort: Callable[[CheckpointHandle], None],
        job_error: Callable[[], CoordControlError | None] = lambda: None,
    ) -> None:
        """
        Args:
            abort: requests that it is aborted.
            job_error: returns what :meth:`wait` raises if the job ends before the checkpoint is complete, or None for
                CheckpointNotCompleted.
        """
        self.request = request
        self._job_error = job_error
        self.ticket: TicketId | None = None  # set by the service
        self._abort = abort
        #: Whether it was started for this request, and not for an earlier one with the same key.
        self.was_started = False
        self._checkpoint: CheckpointId | None = None
        self._progress: Callable[[], Progress | None] = lambda: None
        self._statistics: CheckpointStatistics | None = None
        self._outcome: Future[CheckpointOutcome] = Future()

    @property
    def id(self) -> CheckpointId | None:
        """The checkpoint's number; None if it is still waiting or was refused."""
        return self._checkpoint

    @property
    def done(self) -> bool:
        """Whether it has completed or failed."""
        return self._outcome.done()

    def wait(self, timeout_seconds: float | None = None) -> CompletedCheckpoint:
        """Wait until it completes.

        Raises:
            CheckpointNotCompleted: it failed; the error has the reason and the next step.
            JobEndRequested: a command or SIGTERM ended the job before.
            Fenced: a newer driver owns the job.
            TimeoutError: it has not ended within the time, and continues.
        """
        outcome = self._outcome.result(timeout_seconds)
        if outcome.reason is FailureReason.JOB_ENDING and (error := self._job_error()) is not None:
            raise error
        if outcome.reason is not None:
            raise CheckpointNotCompleted(self.request.kind.value, outcome.reason.code, outcome.message)
        assert self._checkpoint is not None, "completed ones were started"
        assert outcome.path is not None, "completed ones lie somewhere"
        return CompletedCheckpoint(self._checkpoint, outcome.path, self._statistics)

    def progress(self) -> Progress | None:
        """Return its progress, or None while it waits and once all its subtasks have passed the boundary."""
        return self._progress()

    def abort(self) -> None:
        """Request its abortion, which may come too late; :meth:`wait` reports the outcome."""
        self._abort(self)

    # For the service.

    def started(self, checkpoint: CheckpointId, progress: Callable[[], Progress | None]) -> None:
        """Record that it has started, with this id."""
        self._checkpoint, self._progress = checkpoint, progress
        self.was_started = True

    def finish(
        self,
        outcome: CheckpointOutcome,
        checkpoint: CheckpointId | None = None,
        statistics: CheckpointStatistics | None = None,
    ) -> None:
        """Set the outcome; only the first call counts."""
        if not self._outcome.done():
            self._checkpoint = checkpoint or self._checkpoint
            self._statistics = statistics
            self._outcome.set_result(outcome)
