"""``restart``: the job ends, and its supervisor starts the next driver, which reports that it runs.

If no next driver is started, the command has failed. Taken over, it is completed: this driver is running.
"""

from __future__ import annotations

import datetime
from typing import ClassVar

from coord_control.control.execution.command import Command, Takeover
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.execution import Execution, ThreadedExecution, Workplace
from coord_control.control.execution.outcomes import CommandResult, completed
from coord_control.storage.records import CommandKind, CommandRecord, Outcome

__all__ = ["Restart", "RestartResult"]


class RestartResult(CommandResult):
    """A job whose next driver is running."""

    generation: int

    def text(self, job: str) -> str:
        return f"job {job} is running again, generation {self.generation}"


class Restart(Command[RestartResult]):
    """Restart the driver; it resumes where it stopped."""

    kind: ClassVar = CommandKind.RESTART
    result: ClassVar = RestartResult

    @property
    def ends_job(self) -> bool:
        return True

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return RestartExecution(command, place, is_daemon=False)

    def take_over(self, command: CommandRecord, port: DriverPort, now: datetime.datetime) -> Takeover:
        return completed(RestartResult(generation=port.facts.generation))


class RestartExecution(ThreadedExecution):
    _is_ending = False

    def work(self) -> Outcome | None:
        if (refusal := self._place.ending.not_supervised("restart")) is not None:
            return refusal
        self._place.ending.begin(self._command, restart=True)
        self._is_ending = True
        self.say("the job is restarting")
        self._place.port.stop(restart=True)
        return None

    def job_ended(self) -> Outcome | None:
        if self._outcome is not None:
            return self._outcome
        if not self._is_ending:
            return self.came_too_late()
        consequence = "is not restarted automatically; start it with coordctl run"
        return self._place.ending.not_followed("restart", consequence)
