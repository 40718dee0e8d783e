"""The end of a job on a command: which command ends it, and what comes after.

Commands that end the job are carried out one after the other, in the order of their requests (:mod:`..agent.executor`):
the next one begins when the one before it has an outcome and the job still runs. When one has ended the job, the others
are left to the next driver; without one, a stop is completed as well, because the job has stopped, and the others are
refused with the name of the command that ended it.

The agent is closed while the job ends, and reports the outcome last, before the process can end. A driver
that dies before that, or that cannot reach the database at the end, leaves the command to the next driver.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Final

from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.outcomes import Refusal, failed, refused
from coord_control.ids import Generation
from coord_control.storage.records import CommandRecord, Outcome

__all__ = ["Ending", "has_ended"]


class Ending:
    """Which command ends the job, and whether another driver follows. Threads: any.

    Args:
        is_supervised: returns whether a supervisor restarts the driver on request.

    Attributes:
        by: the command that ends the job, if one does.
        is_followed: whether the job has failed and its supervisor restarts it, so that it is not stopped yet.
        final_error: the error that the job has ended with, if no supervisor restarts it after that.
    """

    def __init__(self, is_supervised: Callable[[], bool]) -> None:
        self._is_supervised = is_supervised
        self._is_restart = False
        self.by: CommandRecord | None = None
        self.is_followed = False
        self.final_error: str | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether the job is ending."""
        return self.by is not None

    @property
    def is_restart(self) -> bool:
        """Return whether the job is ending for a restart."""
        return self._is_restart

    @property
    def has_next_driver(self) -> bool:
        """Return whether the supervisor starts another driver after the end of the job."""
        is_restarted = self._is_restart and self._is_supervised() and self.final_error is None
        return self.is_followed or is_restarted

    def begin(self, command: CommandRecord, *, restart: bool) -> None:
        """Note that a command ends the job now."""
        self._is_restart, self.by = restart, command

    def not_supervised(self, what: str) -> Outcome | None:
        """Return the refusal of a command after which no supervisor would start a driver, or None if one would."""
        if self._is_supervised():
            return None
        return refused(
            Refusal.NOT_SUPERVISED,
            f"the driver does not run under coordctl run, which would have to start it again after a {what}; "
            f"{_BY_HAND[what]}",
        )

    def not_followed(self, what: str, consequence: str) -> Outcome | None:
        """Return the failure of a command that ended the job if no next driver will start, otherwise None.

        Args:
            consequence: what happens to the job, and the next step.
        """
        if not self._is_supervised():
            why = f"the supervisor (coordctl run) was killed while the job was stopping for the {what}"
            return failed(Refusal.NOT_SUPERVISED.value, f"{why}, so the job {consequence}", retry=True)
        if self.final_error is not None:
            why = f"the job failed while it was stopping for the {what}, with an error that a restart does not fix"
            message = f"{why} ({self.final_error}), so the job {consequence} once the error is fixed"
            return failed(Refusal.JOB_NOT_RUNNING.value, message, retry=True)
        return None


#: What users do instead, without a supervisor.
_BY_HAND: Final = {
    "restart": "stop the job and start it again by hand",
    "restore": "stop the job, repeat the restore, and start the job by hand",
}


def has_ended(command: CommandRecord, port: DriverPort, now: datetime.datetime) -> bool:
    """Return whether the job has ended since an older driver claimed the command.

    It has not if the supervisor of that driver has also started this one. Otherwise it has, if that driver or a later
    one ended cleanly, or if the command has expired: then the job was probably started manually.

    Args:
        now: the time by the clock of the database.

    Raises:
        StoreUnavailable: the storage cannot be read.
    """
    assert command.generation is not None, "it was claimed"
    if port.has_same_supervisor(Generation(command.generation)):
        return False
    if command.expires_at < now:
        return True
    return any(port.has_ended_cleanly(Generation(each)) for each in range(command.generation, port.facts.generation))
