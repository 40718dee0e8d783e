"""The core's inputs from the wire, and its output: one ordered batch.

A :class:`Batch` is executed field by field: make ``persist`` durable, then send ``answers``, then run ``notices``. A
crash between two of them is a question with an answer, and a written test (invariant I4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from coord_control.errors import CoordControlError
from coord_control.ids import AttemptId, BarrierId, CheckpointId, Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.cut import OperatorCut
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.records import EventBatch, Record
from coord_control.protocol.statistics import QueryStatistics

__all__ = [
    "Accepted",
    "Acknowledge",
    "Answer",
    "Answered",
    "AskSnapshot",
    "AttemptEnded",
    "AttemptFailed",
    "AttemptReady",
    "Batch",
    "CheckpointAborted",
    "CheckpointComplete",
    "CheckpointFailed",
    "DeliverEvents",
    "EpochSettled",
    "EventsDurable",
    "EventsWait",
    "FailQuery",
    "HandleRequests",
    "Hello",
    "Measurements",
    "Notice",
    "Persist",
    "QueryCaptured",
    "Refused",
    "ResetCoordinator",
    "SubtaskReset",
    "Token",
    "Welcome",
]

Token: TypeAlias = object  #: names the connection an answer goes to; the core only hands it back


# What a subtask says.


@dataclass(frozen=True, slots=True)
class Hello:
    """An attempt has rows and asks for its state and its inputs."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Measurements:
    """What an attempt counted; for people, no decision rests on it."""

    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """An attempt has produced all its output. ``state`` is None when it is the state that hello was answered with."""

    attempt: AttemptId
    state: bytes | None
    outbox: tuple[EventBatch, ...] = ()
    measurements: Measurements = Measurements()


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt ended without an ack: its function raised (``fatal`` when no retry can help), or its connection
    broke."""

    attempt: AttemptId
    reason: str
    fatal: bool = False


# What a subtask is answered.


@dataclass(frozen=True, slots=True)
class Welcome:
    """State after the subtask's last epoch (None: the default state) and the frozen inputs of this one."""

    state: bytes | None
    inputs: tuple[EventBatch, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The ack is durable."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The attempt must fail: it is stale, or it does not belong here."""

    reason: str


Answer: TypeAlias = Welcome | Accepted | Refused


# What comes out.


@dataclass(frozen=True, slots=True)
class Persist:
    query: QueryName
    record: Record


@dataclass(frozen=True, slots=True)
class Answered:
    token: Token
    answer: Answer


@dataclass(frozen=True, slots=True)
class AskSnapshot:
    """Call ``checkpoint_coordinator(barrier, result)``."""

    operator: OperatorUid
    incarnation: int
    barrier: BarrierId


@dataclass(frozen=True, slots=True)
class CheckpointComplete:
    operator: OperatorUid
    barrier: BarrierId


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    operator: OperatorUid
    barrier: BarrierId


@dataclass(frozen=True, slots=True)
class ResetCoordinator:
    """Call ``reset_to_checkpoint`` (rule C12: global failover and restart only; C13: -1 and None when there is
    nothing)."""

    operator: OperatorUid
    incarnation: int
    barrier: BarrierId
    state: bytes | None
    applied: int = 0  #: the number of the last event from outside that is part of the state
    refused: tuple[int, ...] = ()  #: numbers of events that were refused and whose outcome may not be durable


@dataclass(frozen=True, slots=True)
class EventsDurable:
    """Nothing can undo the events from outside up to this number any more."""

    operator: OperatorUid
    number: int


@dataclass(frozen=True, slots=True)
class EventsWait:
    """A subtask has events that its next epoch brings, or a control event waits for a record, and rows are not needed
    for one: :meth:`.JobCore.to_wake` says which subtasks are.

    Said once; the next call of ``to_wake`` allows the next one.
    """

    operator: OperatorUid


@dataclass(frozen=True, slots=True)
class HandleRequests:
    """Call ``handle_request`` for the requests from outside that wait, until the next reset."""

    operator: OperatorUid
    incarnation: int


@dataclass(frozen=True, slots=True)
class DeliverEvents:
    """Call ``handle_event_from_operator`` for each event of one subtask's outbox, in order."""

    operator: OperatorUid
    subtask: SubtaskIndex
    attempt: int
    events: tuple[EventBatch, ...]


@dataclass(frozen=True, slots=True)
class AttemptReady:
    operator: OperatorUid
    subtask: SubtaskIndex
    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    operator: OperatorUid
    subtask: SubtaskIndex
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class SubtaskReset:
    """Local failover: the subtask starts again from its last epoch; ``barrier`` is the newest complete one."""

    operator: OperatorUid
    subtask: SubtaskIndex
    barrier: BarrierId


@dataclass(frozen=True, slots=True)
class QueryCaptured:
    """All operators of a query have been cut for a checkpoint: what belongs to it can be made durable."""

    checkpoint: CheckpointId
    barrier: BarrierId
    query: QueryName
    boundary: Epoch  #: the query's last commit that belongs to it
    cuts: tuple[OperatorCut, ...]


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """The core has aborted a checkpoint: its gateways are open, nothing was dropped."""

    checkpoint: CheckpointId
    barrier: BarrierId  #: of the cut: a checkpoint may be cut again
    reason: FailureReason
    detail: str
    queries: tuple[QueryStatistics, ...] = ()  #: what has been measured of those that were not captured


@dataclass(frozen=True, slots=True)
class EpochSettled:
    """An epoch of one operator is over: what it did, for people."""

    query: QueryName
    operator: OperatorUid
    epoch: Epoch
    ran: int  #: subtasks that had rows
    events_down: int
    events_up: int
    rows_in: int
    rows_out: int
    nondeterministic_subtasks: int


@dataclass(frozen=True, slots=True)
class FailQuery:
    """Global failover of the query: stop it, recover, start again (or not, when the error says that no retry helps)."""

    query: QueryName
    error: CoordControlError


Notice: TypeAlias = (
    AskSnapshot
    | CheckpointComplete
    | CheckpointAborted
    | CheckpointFailed
    | QueryCaptured
    | ResetCoordinator
    | HandleRequests
    | DeliverEvents
    | AttemptReady
    | AttemptFailed
    | SubtaskReset
    | EpochSettled
    | EventsDurable
    | EventsWait
    | FailQuery
)


@dataclass(slots=True)
class Batch:
    """The core's output since it was last taken, in the order in which it must be executed."""

    persist: list[Persist] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.persist or self.answers or self.notices)

    def told_anyway(self) -> list[FailQuery | CheckpointFailed]:
        """Return the notices to execute even when records are lost: they rest on none, and the core says them once."""
        return [notice for notice in self.notices if isinstance(notice, FailQuery | CheckpointFailed)]
