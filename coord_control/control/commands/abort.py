"""``abort``: a checkpoint in progress, given by its id or by the command that requested it.

Taken over, it is carried out again; a checkpoint that failed with its driver counts as aborted.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from coord_control.control.execution.command import Command, Name
from coord_control.control.execution.execution import Execution, Workplace
from coord_control.control.execution.outcomes import CommandResult, Refusal, completed, refused
from coord_control.ids import CheckpointId
from coord_control.storage.records import CommandKind, CommandRecord, Outcome

__all__ = ["Abort", "AbortResult"]


class AbortResult(CommandResult):
    """An aborted checkpoint.

    Attributes:
        checkpoint: its id; None if it was aborted before it had one.
    """

    checkpoint: int | None

    def text(self, job: str) -> str:
        return "the checkpoint was aborted" if self.checkpoint is None else f"checkpoint {self.checkpoint} was aborted"


class Abort(Command[AbortResult]):
    """Abort a checkpoint in progress, given by its id or by the command that requested it."""

    kind: ClassVar = CommandKind.ABORT
    result: ClassVar = AbortResult

    checkpoint: Annotated[int, Field(ge=1)] | None = None
    command: Name | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.checkpoint is None) == (self.command is None):
            raise ValueError("name either the checkpoint or the command that requested it")
        return self

    def execution(self, command: CommandRecord, place: Workplace) -> Execution:
        return AbortExecution(command, self, place)


class AbortExecution(Execution):
    """Finishes as soon as it begins."""

    def __init__(self, command: CommandRecord, payload: Abort, place: Workplace) -> None:
        self._command, self._payload, self._place = command, payload, place
        self._outcome: Outcome | None = None

    def begin(self) -> None:
        payload, place = self._payload, self._place
        if payload.command is not None:
            other = place.find(payload.command)
            checkpoint = None if other is None else other.checkpoint
            was_there = other is not None and other.cancel()
        else:
            assert payload.checkpoint is not None, "its model demands one of the two"
            checkpoint = CheckpointId(payload.checkpoint)
            was_there = place.port.abort(checkpoint)
        if was_there or (checkpoint is not None and self._died_with_its_driver(checkpoint)):
            self._outcome = completed(AbortResult(checkpoint=checkpoint), checkpoint)
        else:
            self._outcome = refused(
                Refusal.NOTHING_TO_ABORT, "it has already finished, was never started, or takes no checkpoint"
            )

    def poll(self) -> Outcome | None:
        return self._outcome

    def _died_with_its_driver(self, checkpoint: int) -> bool:
        # Taken over from an older driver: the abort is done if the checkpoint failed together with that driver.
        assert self._command.generation is not None, "it was claimed"
        is_older = self._command.generation < self._place.port.facts.generation
        return is_older and self._place.journal.has_failed(checkpoint)
