"""``get_live``: asks for a live value of the job. Taken over, it is asked again; it changes nothing."""

from __future__ import annotations

from typing import ClassVar

from coord_control.control.commands.set_live import LiveResult
from coord_control.control.execution.command import Command, Name
from coord_control.control.execution.execution import Execution, ThreadedExecution, Workplace
from coord_control.control.execution.outcomes import completed
from coord_control.storage.records import CommandKind, CommandRecord, Outcome

__all__ = ["GetLive"]


class GetLive(Command[LiveResult]):
    """Ask for a live value: what is accepted, who has set it, and since which epoch each query has seen it."""

    kind: ClassVar = CommandKind.GET_LIVE
    result: ClassVar = LiveResult

    name: Name

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return GetLiveExecution(command, self, place)


class GetLiveExecution(ThreadedExecution):
    def __init__(self, command: CommandRecord, payload: GetLive, place: Workplace) -> None:
        super().__init__(command, place)
        self._payload = payload

    def work(self) -> Outcome | None:
        return completed(LiveResult.of(self._place.port.live(self._payload.name)))

    def job_ended(self) -> Outcome | None:
        return self.poll() or self.came_too_late()
