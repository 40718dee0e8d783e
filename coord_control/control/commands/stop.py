"""``stop``: the job ends after its current epochs, and then the command is completed, whatever has ended the job.

Taken over: completed if the job has ended since; otherwise the driver died, and this job ends as well.
"""

from __future__ import annotations

import datetime
from typing import Annotated, ClassVar

from pydantic import Field

from coord_control.control.execution.checkpoint_execution import CheckpointResult
from coord_control.control.execution.command import Command, EndJob, Takeover
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.ending import has_ended
from coord_control.control.execution.execution import Execution, ThreadedExecution, Workplace
from coord_control.control.execution.outcomes import CommandResult, completed
from coord_control.storage.records import CommandKind, CommandRecord, Outcome

__all__ = ["Stop", "StopExecution", "StopResult"]


class StopResult(CommandResult):
    """A stopped job."""

    savepoint: CheckpointResult | None = None
    ended_by: str | None = None  #: the command that has ended the job, if it was another one

    def text(self, job: str) -> str:
        after = "" if self.savepoint is None else f" after {self.savepoint.text(job)}"
        by = "" if self.ended_by is None else f"; command {self.ended_by} had ended it"
        return f"job {job} has stopped{after}{by}"


class Stop(Command[StopResult]):
    """Stop the queries after their current epochs, and end the driver with exit code 0."""

    kind: ClassVar = CommandKind.STOP
    result: ClassVar = StopResult

    #: How long the current epochs may take, or None for the job's setting.
    grace_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    @property
    def ends_job(self) -> bool:
        return True

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return StopExecution(command, self, place)

    def take_over(self, command: CommandRecord, port: DriverPort, now: datetime.datetime) -> Takeover:
        return completed(StopResult()) if has_ended(command, port, now) else EndJob()


class StopExecution(ThreadedExecution):
    """Stops the job.

    Args:
        savepoint: the one that an earlier driver took for the same command.
    """

    def __init__(
        self, command: CommandRecord, payload: Stop, place: Workplace, savepoint: CheckpointResult | None = None
    ) -> None:
        super().__init__(command, place, is_daemon=False)
        self._grace = payload.grace_seconds
        self._savepoint = savepoint

    def work(self) -> Outcome | None:
        self._place.ending.begin(self._command, restart=False)
        self.say("the job is stopping")
        self._place.port.stop(self._grace)
        return None

    def job_ended(self) -> Outcome | None:
        ending = self._place.ending
        if self._outcome is not None or ending.has_next_driver:
            return self._outcome
        by = None if ending.by is None or ending.by.id == self._command.id else ending.by.id
        return completed(StopResult(savepoint=self._savepoint, ended_by=by))
