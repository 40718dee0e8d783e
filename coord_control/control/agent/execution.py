"""The execution of one command, and what it may use.

An execution never blocks the agent: long work runs elsewhere (in the driver's checkpoint service, or on the command's
own thread), and the agent polls its progress. So a savepoint that takes minutes does not delay other commands, and can
be aborted.

Every execution has exactly one outcome, or none if only the next driver can know it.

Threads: the agent's, except for :meth:`Execution.job_ended`, which is called by the thread that ends the job, after the
agent's thread has ended.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from coord_control.control.agent.buffer import Fact
from coord_control.control.agent.driver_port import DriverPort
from coord_control.control.agent.outcomes import outcome_of, refused
from coord_control.control.commands import Refusal
from coord_control.errors import Fault
from coord_control.storage.records import CommandRecord, Outcome

__all__ = ["Ending", "Execution", "ThreadedExecution", "Workplace", "job_closed"]


class Execution(Protocol):
    """A command in progress."""

    def begin(self) -> None:
        """Start; an exception becomes the command's outcome."""

    def poll(self) -> Outcome | None:
        """Return the outcome, as soon as there is one."""

    def progress(self) -> dict[str, Any] | None:
        """Return the progress, or None if there is nothing to report."""

    def cancel(self) -> None:
        """Request cancellation. It may be too late; the outcome tells."""

    def job_ended(self) -> Outcome | None:
        """Return the outcome after the end of the job, or None if the next driver determines it."""


class Ending:
    """Which kind of command ends the job. Stopping and restarting exclude each other.

    Threads: any.

    Attributes:
        final_error: the error that the job has ended with, if no supervisor restarts it after that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._restarts: bool | None = None
        self.final_error: str | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether the job is ending."""
        return self._restarts is not None

    @property
    def is_restart(self) -> bool:
        """Return whether the job is ending for a restart."""
        return self._restarts is True

    def begin(self, *, restart: bool) -> bool:
        """Acquire the right to end the job; return False if a command of the other kind has it."""
        with self._lock:
            if self._restarts is None:
                self._restarts = restart
                return True
            return not restart and not self._restarts


@dataclass(frozen=True, slots=True)
class Workplace:
    """What executions use.

    Attributes:
        wake: makes the agent poll the executions soon.
        is_supervised: returns whether a supervisor restarts the driver on request.
        cancel: cancels the execution of another command; returns False if it is not in progress here.
        checkpoint_of: returns the checkpoint that another command in progress has started.
        has_failed: returns whether a checkpoint has failed according to the history.
        record: makes progress durable, and waits for that; tells the next driver what the command refers to.
        happened: adds a fact to write to the database.
    """

    port: DriverPort
    wake: Callable[[], None]
    is_supervised: Callable[[], bool]
    ending: Ending
    cancel: Callable[[str], bool]
    checkpoint_of: Callable[[str], int | None]
    has_failed: Callable[[int], bool]
    record: Callable[[CommandRecord, dict[str, Any]], None]
    happened: Callable[[Fact], None]


class ThreadedExecution(abc.ABC):
    """A command that blocks, on its own thread.

    Args:
        is_daemon: whether the process may end while it runs.
    """

    def __init__(self, command: CommandRecord, place: Workplace, *, is_daemon: bool = True) -> None:
        self._command = command
        self._place = place
        self._outcome: Outcome | None = None
        self._progress: dict[str, Any] | None = None
        name = f"coord-{command.kind.value.replace('_', '-')}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=is_daemon)

    def begin(self) -> None:
        self._thread.start()

    def poll(self) -> Outcome | None:
        return self._outcome

    def progress(self) -> dict[str, Any] | None:
        return self._progress

    def cancel(self) -> None:
        """Do nothing: it is too late to cancel it."""

    def job_ended(self) -> Outcome | None:
        return self._outcome

    @abc.abstractmethod
    def work(self) -> Outcome | None:
        """Carry the command out; return None if the outcome is only known at the end of the job."""

    def say(self, message: str, **more: Any) -> None:
        """Report progress."""
        self._progress = {**(self._progress or {}), "message": message, **more}
        self._place.wake()

    def _run(self) -> None:
        try:
            self._outcome = self.work()
        except Exception as error:
            self._outcome = outcome_of(error)
        self._place.wake()


def job_closed(command: CommandRecord) -> Outcome:
    """Return the outcome of a command that was not carried out before the job ended."""
    what = command.kind.value.replace("_", " ")
    return refused(
        Refusal.JOB_CLOSED,
        f"the job ended before this {what} could be carried out; try again when the job is running",
        fault=Fault.EXTERNAL,
        retry=True,
    )
