"""``trigger_savepoint``. Taken over, it is carried out again: the storage knows the keys of what is complete."""

from __future__ import annotations

from typing import ClassVar

from coord_control.control.execution.checkpoint_execution import CheckpointExecution, CheckpointResult
from coord_control.control.execution.command import Command, Label, Path
from coord_control.control.execution.execution import Execution, Workplace
from coord_control.ids import CheckpointKind
from coord_control.storage.records import CommandKind, CommandRecord

__all__ = ["TriggerSavepoint"]


class TriggerSavepoint(Command[CheckpointResult]):
    """Take a savepoint: a checkpoint that needs nothing outside its folder, and is never removed automatically."""

    kind: ClassVar = CommandKind.TRIGGER_SAVEPOINT
    result: ClassVar = CheckpointResult
    takes: ClassVar = CheckpointKind.SAVEPOINT

    target: Path | None = None  #: the folder to create, or None for one in the job's folder
    label: Label | None = None

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return CheckpointExecution(command, place, CheckpointKind.SAVEPOINT, label=self.label, target=self.target)
