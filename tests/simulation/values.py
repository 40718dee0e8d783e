"""What the simulated user code computes: numbered events, the state of a subtask, the state of a coordinator.

Every event that must arrive exactly once carries the next number of its channel, and its receiver counts: a loss, a
duplicate or a wrong order is found by whoever receives next. Every event also has a ``uid`` of its own, so that an
event that was sent again after a recovery is told from one that came back. Pings have no number: they change no
state, so nothing but their uid can betray them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coord_control.protocol.control_events import unseal
from coord_control.protocol.records import EventBatch

__all__ = [
    "CONTROL",
    "ITEMS_PER_JOB",
    "NUMBERED",
    "PING",
    "CoordinatorState",
    "Event",
    "SubtaskState",
    "Violation",
    "add_item",
    "batch_of",
    "events_of",
    "uids_of",
]

NUMBERED: Final = 0
PING: Final = 1
CONTROL: Final = 2  #: passed on from outside; its number is that of the item


#: Items are numbered job by job: the number of the job, times this, plus the item's number in it.
ITEMS_PER_JOB: Final = 1_000_000


class Violation(AssertionError):
    """Something that must always hold does not; the message begins with the name of the rule."""


class Event(NamedTuple):
    kind: int
    number: int
    uid: int

    def __str__(self) -> str:
        kind = {PING: "ping", CONTROL: f"control {self.number}"}.get(self.kind, str(self.number))
        return f"{kind}#{self.uid}"


def batch_of(event: Event) -> EventBatch:
    """One event as the wire carries it."""
    return EventBatch(event.kind, 1, b"%d:%d" % (event.number, event.uid))


def events_of(batches: Iterable[EventBatch]) -> list[Event]:
    """The events of joined batches, in order.

    Raises:
        Violation: a batch does not hold as many events as it says.
    """
    events: list[Event] = []
    for batch in batches:
        parts = batch.payload.split(b",")
        if len(parts) != batch.length:
            raise Violation(f"codec: a batch of {batch.length} events holds {len(parts)}")
        for part in parts:
            number, _, uid = part.partition(b":")
            events.append(Event(batch.type_index, int(number), int(uid)))
    return events


def uids_of(batches: Iterable[EventBatch]) -> list[int]:
    return [event.uid for event in events_of(batches)]


@dataclass(slots=True)
class SubtaskState:
    """What a simulated subtask keeps: how far it has counted in both directions, and a sum that no replay may
    repeat."""

    received: int = 0
    sent: int = 0
    total: int = 0
    control: list[int] = field(default_factory=list)  #: items from outside that were passed on

    @classmethod
    def of(cls, data: bytes | None) -> SubtaskState:
        if data is None:
            return cls()
        counts, _, control = data.partition(b";")
        received, sent, total = _numbers(counts)
        return cls(received, sent, total, _numbers(control))

    def to_bytes(self) -> bytes:
        counts = b"%d,%d,%d" % (self.received, self.sent, self.total)
        return counts + b";" + _joined(self.control) if self.control else counts

    def receive(self, event: Event, who: str) -> None:
        """Count an input.

        Raises:
            Violation: it is not the next one of its channel.
        """
        if event.kind == PING:
            return
        if event.kind == CONTROL:
            add_item(self.control, event.number, who)
            return
        if event.number != self.received:
            raise Violation(f"I1: {who} got event {event} from its coordinator, the next one is {self.received}")
        self.received += 1


@dataclass(slots=True)
class CoordinatorState:
    """What a simulated coordinator keeps, per subtask: the next number to send and the next one to receive."""

    sent: list[int]
    received: list[int]
    total: int = 0  #: a counter of everything received: wrong as soon as anything is seen twice
    control: list[int] = field(default_factory=list)  #: items from outside that change it

    @classmethod
    def empty(cls, parallelism: int) -> CoordinatorState:
        return cls([0] * parallelism, [0] * parallelism)

    @classmethod
    def of(cls, data: bytes) -> CoordinatorState:
        sent, received, total, control = data.split(b";")
        return cls(_numbers(sent), _numbers(received), int(total), _numbers(control))

    @classmethod
    def recorded(cls, operator: str, state: bytes | None, parallelism: int) -> CoordinatorState:
        """What a record holds; None: the coordinator has never given any."""
        data = unseal(operator, state).data
        return cls.empty(parallelism) if data is None else cls.of(data)

    def to_bytes(self) -> bytes:
        return b"%s;%s;%d;%s" % (_joined(self.sent), _joined(self.received), self.total, _joined(self.control))

    def receive(self, subtask: int, event: Event, who: str) -> None:
        """Count an event of a subtask.

        Raises:
            Violation: it is not the next one of its channel.
        """
        if event.number != self.received[subtask]:
            raise Violation(
                f"I2: the coordinator of {who} got event {event} from subtask {subtask}, "
                f"the next one is {self.received[subtask]}"
            )
        self.received[subtask] += 1
        self.total += 1


def add_item(seen: list[int], item: int, who: str) -> None:
    """Note an item from outside.

    Raises:
        Violation: it was seen before, or a later one of the same job was.
    """
    later = [other for other in seen if other // ITEMS_PER_JOB == item // ITEMS_PER_JOB and other >= item]
    if later:
        raise Violation(f"control: {who} sees item {item} after {later}")
    seen.append(item)


def _numbers(data: bytes) -> list[int]:
    return [int(part) for part in data.split(b",") if part]


def _joined(numbers: Sequence[int]) -> bytes:
    return b",".join(b"%d" % number for number in numbers)
