"""``dispose``: removes a checkpoint or savepoint.

Taken over, it is carried out again, for the folder that the older driver had found; if that is gone, it is done.
"""

from __future__ import annotations

import contextlib
from typing import ClassVar

from coord_control.control.execution.checkpoint_execution import catalog_of
from coord_control.control.execution.command import Command, Path
from coord_control.control.execution.execution import Execution, ThreadedExecution, Workplace
from coord_control.control.execution.outcomes import CommandResult, completed
from coord_control.errors import CheckpointNotFound
from coord_control.storage.records import CommandKind, CommandRecord, Outcome

__all__ = ["Dispose", "DisposeResult"]


class DisposeResult(CommandResult):
    """A removed checkpoint or savepoint."""

    path: str
    checkpoint: int

    def text(self, job: str) -> str:
        return f"removed {self.path}"


class Dispose(Command[DisposeResult]):
    """Remove a checkpoint or savepoint permanently."""

    kind: ClassVar = CommandKind.DISPOSE
    result: ClassVar = DisposeResult

    ref: Path

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return DisposeExecution(command, self, place)


class DisposeExecution(ThreadedExecution):
    def __init__(self, command: CommandRecord, payload: Dispose, place: Workplace) -> None:
        super().__init__(command, place)
        self._payload = payload

    def work(self) -> Outcome | None:
        port, meant = self._place.port, dict(self._command.progress or {})
        if "path" not in meant:
            entry = catalog_of(port).resolve(self._payload.ref)
            # Recorded before the removal: a later driver that finds nothing there must know that this one has removed
            # it, and must not resolve "latest" to the checkpoint before.
            meant = {"message": f"removes {entry.path}", "checkpoint": int(entry.checkpoint), "path": entry.path}
            self._place.journal.record(self._command, meant)
        checkpoint, path = meant["checkpoint"], meant["path"]
        with contextlib.suppress(CheckpointNotFound):  # an earlier driver removed it, and died before it reported that
            port.dispose(path)
        self._place.journal.savepoint_disposed(path)
        return completed(DisposeResult(path=path, checkpoint=checkpoint), checkpoint)
