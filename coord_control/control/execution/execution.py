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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.ending import Ending
from coord_control.control.execution.outcomes import Refusal, outcome_of, refused
from coord_control.errors import Fault
from coord_control.ids import CheckpointId
from coord_control.storage.records import CommandRecord, Outcome

__all__ = ["EventQueue", "Execution", "Journal", "ThreadedExecution", "Workplace", "job_closed"]


class Execution(abc.ABC):
    """A command in progress."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Start; an exception becomes the command's outcome."""

    @abc.abstractmethod
    def poll(self) -> Outcome | None:
        """Return the outcome, as soon as there is one."""

    @property
    def checkpoint(self) -> CheckpointId | None:
        """Return the checkpoint that it takes, once that has an id."""
        return None

    def progress(self) -> dict[str, Any] | None:
        """Return the progress, or None if there is nothing to report."""
        return None

    def cancel(self) -> bool:
        """Request cancellation, and return whether that is still possible. Its outcome says whether it came in time."""
        return False

    def job_ended(self) -> Outcome | None:
        """Return the outcome after the end of the job, or None if the next driver determines it."""
        return self.poll()


class Journal(Protocol):
    """The control database, as executions use it."""

    def record(self, command: CommandRecord, progress: dict[str, Any]) -> None:
        """Make progress durable, and wait for that: it tells the next driver what the command refers to."""

    def has_failed(self, checkpoint: int) -> bool:
        """Return whether a checkpoint has failed according to the history."""

    def savepoint_disposed(self, path: str) -> None:
        """Record that a savepoint was removed."""

    def savepoint_verified(self, path: str, problems: Sequence[str]) -> None:
        """Record that all files of a savepoint were read."""


class EventQueue(Protocol):
    """Carries out control events, in their order."""

    def take(self, command: CommandRecord) -> None:
        """Take a command that was claimed; its outcome is reported later."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """What executions use.

    Attributes:
        wake: makes the agent poll the executions soon.
        find: returns the execution of another command, or None if it is not in progress here.
    """

    port: DriverPort
    journal: Journal
    ending: Ending
    events: EventQueue
    wake: Callable[[], None]
    find: Callable[[str], Execution | None]


class ThreadedExecution(Execution):
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

    @property
    def has_begun(self) -> bool:
        """Return whether it was started: a command that ends the job waits for those before it."""
        return self._thread.ident is not None

    def begin(self) -> None:
        self._thread.start()

    def poll(self) -> Outcome | None:
        return self._outcome

    def progress(self) -> dict[str, Any] | None:
        return self._progress

    @abc.abstractmethod
    def work(self) -> Outcome | None:
        """Carry the command out; return None if the outcome is only known at the end of the job."""

    def came_too_late(self) -> Outcome | None:
        """Return the outcome if something else has ended the job; None if the next driver carries the command out."""
        ending = self._place.ending
        return None if ending.has_next_driver else job_closed(self._command, ending.by)

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


def job_closed(command: CommandRecord, by: CommandRecord | None = None) -> Outcome:
    """Return the outcome of a command that was not carried out before the job ended.

    Args:
        by: the command that ended the job, if one did.
    """
    ended = "the job ended" if by is None else f"command {by.id} ({by.kind.words}) ended the job"
    return refused(
        Refusal.JOB_CLOSED,
        f"{ended} before this {command.kind.words} could be carried out; try again when the job is running",
        fault=Fault.EXTERNAL,
        retry=True,
    )
