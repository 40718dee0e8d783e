"""``send_event``: a control event to an operator, exactly once. The event queue of the agent carries it out.

Taken over, it is carried out again. One that has a number is delivered with that number, and the recorded state of the
coordinator tells whether it was applied, or refused.
"""

from __future__ import annotations

import difflib
import enum
import json
from collections.abc import Callable
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, JsonValue, model_validator

from coord_control.control.execution.command import Command, CommandProgress, Name
from coord_control.control.execution.execution import Workplace
from coord_control.control.execution.outcomes import CommandResult
from coord_control.errors import OperatorNotFound
from coord_control.storage.records import CommandKind, CommandRecord, JobRecord

__all__ = ["MAX_EVENT_BYTES", "EventStage", "SendEvent", "SendEventResult", "event_so_far"]

MAX_EVENT_BYTES: Final = 256 * 1024  #: of the JSON text of a control event
_ESCAPED: Final = 2  # as many times as long it may be in the database, in ASCII


class EventStage(enum.StrEnum):
    """How far a control event is; each includes those before it."""

    ACCEPTED = "accepted"  #: valid and numbered: it takes effect exactly once, whatever fails
    APPLIED = "applied"  #: the coordinator has handled it; a failure may let it do so again, from the state before
    DURABLE = "durable"  #: no failure undoes that any more: its command is completed

    def includes(self, other: EventStage) -> bool:
        """Return whether an event that is this far has been at the other stage."""
        stages = list(EventStage)
        return stages.index(self) >= stages.index(other)


class SendEventResult(CommandResult):
    """A control event, as far as it is.

    Attributes:
        number: its position in the sequence of the operator's events.
        sent_to: the subtasks to which the coordinator has sent something because of it; each has that from its next
            epoch with rows on. None: not known, because it is not applied yet, or was by a driver that has ended since.
    """

    number: int
    stage: EventStage = EventStage.DURABLE
    sent_to: tuple[int, ...] | None = None

    def text(self, job: str) -> str:
        if self.stage is EventStage.ACCEPTED:
            return f"event {self.number} is accepted: it takes effect with the next epoch"
        done = "has taken effect" if self.stage is EventStage.DURABLE else "is applied, and durable with the next epoch"
        return f"event {self.number} {done}{self._recipients()}"

    def _recipients(self) -> str:
        if self.sent_to is None:
            return ""
        if not self.sent_to:
            return "; nothing was sent to subtasks"
        return f"; subtasks {_ranges(self.sent_to)} get it with their next epoch"


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
        stored = len(json.dumps(self.payload, allow_nan=False))
        if size <= MAX_EVENT_BYTES < stored / _ESCAPED:
            raise ValueError(
                f"the event takes {stored} bytes with its characters escaped, as it is stored; the limit is "
                f"{_ESCAPED * MAX_EVENT_BYTES}; send a reference instead"
            )
        if size > MAX_EVENT_BYTES:
            raise ValueError(f"the event takes {size} bytes, the limit is {MAX_EVENT_BYTES}; send a reference instead")
        return self

    def execution(self, command: CommandRecord, place: Workplace) -> None:
        place.events.take(command)

    def check(self, job: str, read: Callable[[str], JobRecord]) -> None:
        record = read(job)
        if not (record.is_alive and record.operators):
            return  # a driver that has just begun has not told its operators yet: it decides itself
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


def event_so_far(command: CommandRecord) -> SendEventResult | None:
    """Return how far a control event is that is not finished, or None if it is not accepted yet."""
    if command.number is None:
        return None
    found = CommandProgress.model_validate(command.progress or {})
    stage = EventStage.APPLIED if found.stage == EventStage.APPLIED else EventStage.ACCEPTED
    return SendEventResult(number=command.number, stage=stage, sent_to=found.sent_to)


def _ranges(numbers: tuple[int, ...]) -> str:
    # Neighbours together: 0-3, 7.
    starts = [each for each in numbers if each - 1 not in numbers]
    ends = [each for each in numbers if each + 1 not in numbers]
    return ", ".join(
        f"{first}" if first == last else f"{first}-{last}" for first, last in zip(starts, ends, strict=True)
    )
