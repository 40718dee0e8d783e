"""``send_event``: a control event to an operator, exactly once. The event queue of the agent carries it out.

Taken over, it is carried out again. One that has a number is delivered with that number, and the recorded state of the
coordinator tells whether it was applied, or refused.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, JsonValue, model_validator

from coord_control.control.execution.command import Command, Name
from coord_control.control.execution.execution import Workplace
from coord_control.control.execution.outcomes import CommandResult
from coord_control.errors import OperatorNotFound
from coord_control.storage.records import CommandKind, CommandRecord, JobRecord

__all__ = ["MAX_EVENT_BYTES", "SendEvent", "SendEventResult"]

MAX_EVENT_BYTES: Final = 256 * 1024  #: of the JSON text of a control event


class SendEventResult(CommandResult):
    """A control event that has taken effect."""

    number: int  #: its position in the sequence of the operator's events

    def text(self, job: str) -> str:
        return f"event {self.number} has taken effect"


class SendEvent(Command[SendEventResult]):
    """Send a control event to an operator, exactly once."""

    kind: ClassVar = CommandKind.SEND_EVENT
    result: ClassVar = SendEventResult

    operator: Name
    event_type: Name
    payload: JsonValue
    subtask: Annotated[int, Field(ge=0)] | None = None  #: None for all subtasks

    @model_validator(mode="after")
    def _size(self) -> Self:
        size = len(json.dumps(self.payload, ensure_ascii=False, allow_nan=False).encode(errors="surrogatepass"))
        if size > MAX_EVENT_BYTES:
            raise ValueError(f"the event takes {size} bytes, the limit is {MAX_EVENT_BYTES}; send a reference instead")
        return self

    def execution(self, command: CommandRecord, place: Workplace) -> None:
        place.events.take(command)

    def check(self, job: str, read: Callable[[str], JobRecord]) -> None:
        record = read(job)
        if not record.is_alive:
            return  # the command is refused anyway, and the operators may not be known yet
        known = {operator.uid: operator for operator in record.operators}
        if self.operator not in known:
            near = difflib.get_close_matches(self.operator, known, n=3)
            raise OperatorNotFound("operator", self.operator, f"job {job!r}", known, near)
        types = [each.name for each in known[self.operator].event_types]
        if self.event_type not in types:
            near = difflib.get_close_matches(self.event_type, types, n=3)
            raise OperatorNotFound("control event", self.event_type, f"operator {self.operator!r}", types, near)

    @property
    def recipient(self) -> str:
        return self.operator
