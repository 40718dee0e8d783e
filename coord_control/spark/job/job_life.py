"""Whether a job runs, pauses or has ended, and what ended it.

```
             pause             close
    running -------> paused ---------> closed
      ^  |  <------- resume            ^
      |  +-----------------------------+
```

An error ends the job in any phase, and the first one counts. The phase is closed when the job's end has begun: its
queries have ended, and nothing of it may be used any more.

Threads: any.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from coord_control.errors import (
    CheckpointNotCompleted,
    CoordControlError,
    InvalidTransition,
    JobClosed,
    JobEndRequested,
    SupervisorLost,
)
from coord_control.protocol.failures import FailureReason
from coord_control.spark.process import shutdown

__all__ = ["TRANSITIONS", "Input", "JobLife", "Phase"]


class Phase(enum.Enum):
    RUNNING = "running"
    PAUSED = "paused"  #: queries have been stopped for a savepoint: they resume, or the job is closed
    CLOSED = "closed"


class Input(enum.Enum):
    PAUSE = "pause"
    RESUME = "resume"
    CLOSE = "close"


#: Every legal pair. A pair that is not here raises and changes nothing.
TRANSITIONS: Final[Mapping[tuple[Phase, Input], Phase]] = {
    (Phase.RUNNING, Input.PAUSE): Phase.PAUSED,
    (Phase.RUNNING, Input.CLOSE): Phase.CLOSED,
    (Phase.PAUSED, Input.RESUME): Phase.RUNNING,
    (Phase.PAUSED, Input.CLOSE): Phase.CLOSED,
    (Phase.CLOSED, Input.RESUME): Phase.CLOSED,  # of a savepoint that the job's end has met
    (Phase.CLOSED, Input.CLOSE): Phase.CLOSED,
}


class JobLife:
    """The life of one job in one driver.

    Attributes:
        turns: held while a query starts, a pause begins, or the job is stopped.
        error: what has ended the whole job.
        program_error: what the program raised, where it shows that to the job.
        lost_supervisor: the job's end began because of that.
        is_ended_by_command: stop, restart or restore.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._phase = Phase.RUNNING
        self._changed = threading.Condition()
        self.turns = threading.RLock()  # taken before the condition
        self.error: CoordControlError | None = None
        self.program_error: Exception | None = None
        self.lost_supervisor: SupervisorLost | None = None
        self.is_ended_by_command = False

    @property
    def is_closed(self) -> bool:
        return self._phase is Phase.CLOSED

    @property
    def is_paused(self) -> bool:
        return self._phase is Phase.PAUSED

    def fail(self, error: CoordControlError) -> bool:
        """Record what has ended the job; return False if something else had before."""
        with self._changed:
            is_first = self.error is None
            if is_first:
                self.error = error
            self._changed.notify_all()
        return is_first

    def close(self) -> None:
        """Note that the job has ended. May be called again."""
        with self._changed:
            self._happened(Input.CLOSE)

    def check_open(self) -> None:
        """Raise what has ended the job: JobClosed, or a failure."""
        if self.error is not None:
            raise self.error
        if self.is_closed:
            raise self.closed_error()

    def closed_error(self) -> JobClosed:
        """Return the error for a program that uses the job after its end: it ends quietly if the end was requested."""
        if self.is_ended_by_command or shutdown.is_requested():
            return JobEndRequested(self._name)
        return JobClosed(self._name)

    def end_error(self) -> CoordControlError | None:
        """Return the error for a program that waits for a checkpoint; None if the program itself has ended the job."""
        closed = self.error or self.closed_error()
        return None if type(closed) is JobClosed else closed

    @contextlib.contextmanager
    def turn_to_start(self) -> Iterator[None]:
        """Take the turn of starting queries: not while the job is being stopped, nor in a pause.

        A query that was started in a pause would process rows behind the savepoint that the pause is for.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self.is_paused)
            with self.turns:
                if not self.is_paused:
                    yield
                    return

    def begin_pause(self) -> None:
        """Let nothing start until :meth:`end_pause`, or the job's end.

        Raises:
            CheckpointNotCompleted: the job is paused already.
            JobClosed: the job has ended.
        """
        with self.turns, self._changed:
            self.check_open()
            if self.is_paused:
                why = "another stop with savepoint is in progress; wait for it to end"
                raise CheckpointNotCompleted("savepoint", FailureReason.JOB_ENDING.code, why)
            # await_termination must not take the pause for the job's end, and close the job under the savepoint.
            self._happened(Input.PAUSE)

    def end_pause(self) -> None:
        """End the pause: there is no savepoint, and the job keeps running."""
        with self._changed:
            self._happened(Input.RESUME)

    def changed(self) -> None:
        """Let those that wait in :meth:`wait_for` look again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        """Wait until the condition holds, and return whether it does. It is looked at after each change."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_seconds)

    def wait_closed(self, timeout_seconds: float) -> bool:
        """Wait for the end of the job, and return whether it has ended."""
        return self.wait_for(lambda: self.is_closed, timeout_seconds)

    def _happened(self, input_: Input) -> None:
        try:
            self._phase = TRANSITIONS[self._phase, input_]
        except KeyError:
            raise InvalidTransition("job", self._phase, input_) from None
        self._changed.notify_all()
