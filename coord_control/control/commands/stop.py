"""``stop``: the job ends after its current epochs, and then the command is completed.

Taken over: completed if the job has ended since; otherwise the driver died, and this job ends as well.
"""

from __future__ import annotations

import datetime
from typing import Annotated, ClassVar

from pydantic import Field

from coord_control.control.execution.checkpoints import CheckpointResult
from coord_control.control.execution.command import Command, EndJob, Takeover
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.ending import has_ended
from coord_control.control.execution.execution import Execution, ThreadedExecution, Workplace, job_closed
from coord_control.control.execution.outcomes import CommandResult, completed
from coord_control.storage.records import CommandKind, CommandRecord, Outcome

__all__ = ["Stop", "StopExecution", "StopResult"]


class StopResult(CommandResult):
    """A stopped job."""

    savepoint: CheckpointResult | None = None

    def text(self, job: str) -> str:
        after = "" if self.savepoint is None else f" after {self.savepoint.text(job)}"
        return f"job {job} has stopped{after}"


class Stop(Command[StopResult]):
    """Stop the queries after their current epochs, and end the driver with exit code 0."""

    kind: ClassVar = CommandKind.STOP
    result: ClassVar = StopResult

    #: How long the current epochs may take, or None for the job's setting.
    grace_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

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
        if not self._place.ending.begin(restart=False):
            return job_closed(self._command)
        self.say("the job is stopping")
        self._place.port.stop(self._grace)
        return None

    def job_ended(self) -> Outcome | None:
        if self._outcome is not None or self._place.ending.is_followed:
            return self._outcome
        # Even if something else ended the job first: the result is the requested one.
        return completed(StopResult(savepoint=self._savepoint))
