"""What the protocol makes durable: its kinds of record, and the events and values they carry.

The epoch store writes them, recovery reads them; nothing else is needed to resume after any crash. They only hold bytes
and numbers: what an event or a state means is known at the edges, never here.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from coord_control.ids import BarrierId, Epoch, Generation, OperatorUid, SubtaskIndex

__all__ = [
    "Ack",
    "Begin",
    "EventBatch",
    "LiveChanged",
    "LiveFrozen",
    "LiveInForce",
    "LiveValue",
    "Record",
    "RunStarted",
    "count",
    "pack",
    "size",
]


class EventBatch(NamedTuple):
    """Consecutive control events of one type: their JSON objects, joined by commas.

    One event is a batch of one. Joining needs no parsing, and a reader parses ``[payload]`` at once, which is several
    times faster than one by one. A tuple, because one is made for every event that is sent.
    """

    type_index: int  #: index among the operator's declared event types of this direction
    length: int  #: how many events
    payload: bytes


# The fields of an EventBatch by position: a hundred thousand of them may be packed at once.
_TYPE_INDEX: Final = operator.itemgetter(0)
_LENGTH: Final = operator.itemgetter(1)
_PAYLOAD: Final = operator.itemgetter(2)


@dataclass(frozen=True, slots=True)
class Begin:
    """Epoch ``epoch`` of ``operator`` has begun: the coordinator's state at its snapshot point and the frozen
    inputs."""

    operator: OperatorUid
    epoch: Epoch
    barrier: BarrierId
    state: bytes
    inputs: Mapping[SubtaskIndex, tuple[EventBatch, ...]]  #: subtasks without events are left out
    #: Sent before this snapshot point and not among the inputs: a checkpoint that was triggered earlier held them.
    held: Mapping[SubtaskIndex, tuple[EventBatch, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ack:
    """A subtask has completed ``epoch``; the last record of one (operator, subtask, epoch) counts."""

    operator: OperatorUid
    subtask: SubtaskIndex
    epoch: Epoch
    attempt: int  #: the task attempt id that answered
    state: bytes | None  #: None: a subtask that still has its default state
    outbox: tuple[EventBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The query runs again: what stands before this record of epochs that will be run again is void.

    Acks of epochs above ``committed`` are void: without this, an ack could survive a re-run that had nothing to write.
    Before the planned epoch is run again its acks still count, so a record of that moment names it as ``committed``.
    Begins of epochs above ``planned`` are void too: Spark has not fixed their rows, and no attempt was answered.
    """

    generation: Generation
    committed: Epoch  #: Spark's last commit
    planned: Epoch  #: Spark's last offsets: ``committed`` or one more


class LiveValue(NamedTuple):
    """A live value of the job, as it was accepted."""

    version: int  #: from 1; grows with every change, also with one that a restore makes
    value: bytes  #: the JSON object of its model


class LiveInForce(NamedTuple):
    """A live value as a query sees it."""

    version: int
    value: bytes
    since: Epoch  #: the first epoch of the query that has seen this version


@dataclass(frozen=True, slots=True)
class LiveFrozen:
    """A query sees these live values in ``epoch``, and in the epochs after it that have no record."""

    epoch: Epoch
    values: Mapping[str, LiveInForce]


#: Of the JSON of a live value: each change is kept for a while, and every query records it.
MAX_LIVE_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class LiveChanged:
    """A live value was changed; the record is in the log of the job, and the change is accepted when it is durable."""

    name: str
    version: int
    value: bytes
    restore: int  #: the number of the restore that counted then; 0 if nothing was ever restored
    key: str = ""  #: of the request: the same key never makes a second change
    by: str = ""  #: who has asked for it
    at_seconds: float = 0.0  #: since 1970, by the clock of the driver


Record: TypeAlias = Begin | Ack | RunStarted | LiveFrozen | LiveChanged


def pack(batches: Iterable[EventBatch]) -> tuple[EventBatch, ...]:
    """Join neighbours of one type; the order over all events is kept."""
    return tuple(_join(kind, list(run)) for kind, run in itertools.groupby(batches, key=_TYPE_INDEX))


def _join(kind: int, run: list[EventBatch]) -> EventBatch:
    if len(run) == 1:
        return run[0]
    return EventBatch(kind, sum(map(_LENGTH, run)), b",".join(map(_PAYLOAD, run)))


def size(batches: Iterable[EventBatch]) -> int:
    """Return how many bytes the events take."""
    return sum(map(len, map(_PAYLOAD, batches)))


def count(batches: Iterable[EventBatch]) -> int:
    """Return how many events there are."""
    return sum(batch.length for batch in batches)
