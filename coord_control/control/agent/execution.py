"""One command that is being carried out, and what it may use.

Carrying out never blocks the agent: what takes long runs elsewhere (the driver's checkpoint service, a thread of the
command's own), and the agent asks now and then how far it is. So a savepoint of minutes keeps no other command waiting,
and an abort overtakes it.

Every execution gives exactly one outcome, once, or none at all when the next driver is the one to know it.

Threads: the agent's, but for :meth:`Execution.job_ended`, which comes from whoever ends the job when the agent's thread
has ended.
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
    """A command on its way."""

    def begin(self) -> None:
        """Start; what it raises is the command's outcome."""

    def poll(self) -> Outcome | None:
        """The outcome, as soon as there is one."""

    def progress(self) -> dict[str, Any] | None:
        """What there is to say meanwhile; None: nothing."""

    def cancel(self) -> None:
        """Nobody wants it any more. It may be too late; the outcome tells."""

    def job_ended(self) -> Outcome | None:
        """The job has ended: the outcome, or None when the next driver gives it."""


class Ending:
    """Which command ends the job. One that ends it for good and one that starts it again exclude each other.

    Threads: any.

    Attributes:
        final_error: the error that the job has ended with, if no supervisor starts it again after that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._restarts: bool | None = None
        self.final_error: str | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the job is ending."""
        return self._restarts is not None

    @property
    def is_restart(self) -> bool:
        """Whether the job is ending to be started again."""
        return self._restarts is True

    def begin(self, *, restart: bool) -> bool:
        """Take the right to end the job; False: a command of the other sort has it."""
        with self._lock:
            if self._restarts is None:
                self._restarts = restart
                return True
            return not restart and not self._restarts


@dataclass(frozen=True, slots=True)
class Workplace:
    """What executions use.

    Attributes:
        wake: tells the agent to look at them soon.
        is_supervised: says whether the driver is started again when it asks for that.
        cancel: cancels the execution of another command; False: it is not on its way here.
        checkpoint_of: the checkpoint that another command on its way has started.
        has_failed: whether the history knows that a checkpoint failed.
        record: makes progress durable, and waits for that; by it the next driver knows what was meant.
        happened: takes what a command found or did, to be written to the database.
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
    """A command that waits for something, on a thread of its own.

    Args:
        is_daemon: the process may end while it runs.
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
        """Too late: it is being done."""

    def job_ended(self) -> Outcome | None:
        return self._outcome

    @abc.abstractmethod
    def work(self) -> Outcome | None:
        """Do it; None: the outcome comes with the job's end."""

    def say(self, message: str, **more: Any) -> None:
        """Let people see how far it is."""
        self._progress = {**(self._progress or {}), "message": message, **more}
        self._place.wake()

    def _run(self) -> None:
        try:
            self._outcome = self.work()
        except Exception as error:
            self._outcome = outcome_of(error)
        self._place.wake()


def job_closed(command: CommandRecord) -> Outcome:
    """The job has ended, or is ending in another way, before this could be done."""
    what = command.kind.value.replace("_", " ")
    return refused(
        Refusal.JOB_CLOSED,
        f"the job ended before this {what} could be carried out; ask again when the job runs",
        fault=Fault.EXTERNAL,
        retry=True,
    )
