"""``trigger_checkpoint``. Taken over, it is carried out again: the storage knows the keys of what is complete."""

from __future__ import annotations

from typing import ClassVar

from coord_control.control.execution.checkpoint_execution import CheckpointExecution, CheckpointResult
from coord_control.control.execution.command import Command, Label
from coord_control.control.execution.execution import Execution, Workplace
from coord_control.ids import CheckpointKind
from coord_control.storage.records import CommandKind, CommandRecord

__all__ = ["TriggerCheckpoint"]


class TriggerCheckpoint(Command[CheckpointResult]):
    """Take a checkpoint now."""

    kind: ClassVar = CommandKind.TRIGGER_CHECKPOINT
    result: ClassVar = CheckpointResult
    takes: ClassVar = CheckpointKind.CHECKPOINT

    label: Label | None = None

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return CheckpointExecution(command, place, CheckpointKind.CHECKPOINT, label=self.label)
