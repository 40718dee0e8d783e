"""One request for a checkpoint or savepoint, from the moment it is made until it has its one outcome.

```
submit -> QUEUED --start--> RUNNING --complete--> ENDED (completed)
             |                 |  \\--fail------> ENDED (failed)
             |               abort
             |                 v
             |             ABORTING --fail------> ENDED (failed, for the reason of the abort)
             |                    \\--complete--> ENDED (completed: the abort came too late)
             \\--abort-> ENDED (failed)
```

A checkpoint exists when its metadata is written, and only the driver that writes it knows whether an abort came before
that. So an abort of a running one is only a request until the driver reports how it ended; a timeout is such an abort.

A ticket has a number from the start, the order of the requests; the number of the checkpoint is given when it starts,
because savepoints overtake.

Values; each step returns a new one. Times are seconds of the clock that ``now`` is taken from.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NewType

from coord_control.errors import InvalidName, InvalidTransition
from coord_control.ids import CheckpointId, CheckpointKind, is_valid_label
from coord_control.protocol.failures import FailureReason

__all__ = [
    "TRANSITIONS",
    "CheckpointOutcome",
    "CheckpointRequest",
    "Ticket",
    "TicketId",
    "TicketInput",
    "TicketState",
]

TicketId = NewType("TicketId", int)  #: from 1, in the order of the requests, per driver


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """A request for a checkpoint or savepoint.

    Attributes:
        kind: checkpoint or savepoint.
        periodic: made by a schedule, not by a person: the first to be refused, the last to be started, and never
            within the minimal pause.
        key: makes the request idempotent: requests with the same key are one.
        label: a name for people, to find it again.
        target: the folder of a savepoint; None for the job's default folder.
        timeout_seconds: how long it may take once it has started; None for what the job's options say.
        cause: why, for people.
        requested_by: who, for people.

    Raises:
        ValueError: the values do not go together.
        InvalidName: the label cannot be part of a folder's name.
    """

    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    periodic: bool = False
    key: str | None = None
    label: str | None = None
    target: str | None = None
    timeout_seconds: float | None = None
    cause: str = "request"
    requested_by: str | None = None

    def __post_init__(self) -> None:
        if self.is_savepoint and self.periodic:
            raise ValueError("a savepoint is never periodic, nothing would remove it; ask for a checkpoint")
        if not self.is_savepoint and self.target is not None:
            raise ValueError(f"a checkpoint lies in the job's own folder, not in {self.target!r}; ask for a savepoint")
        if self.key == "" or self.target == "":
            raise ValueError("key and target are left out when there is none, not empty")
        if self.label is not None and not is_valid_label(self.label):
            raise InvalidName("label", self.label)

    @property
    def is_savepoint(self) -> bool:
        return self.kind is CheckpointKind.SAVEPOINT

    @property
    def rank(self) -> int:
        """Lower ones start first: savepoints, what people ask for, what schedules ask for."""
        return 0 if self.is_savepoint else 2 if self.periodic else 1

    def is_same(self, other: CheckpointRequest) -> bool:
        """Return whether the outcome of one request answers the other; who asks, and why, makes no difference."""
        return (self.kind, self.label, self.target) == (other.kind, other.label, other.target)


@dataclass(frozen=True, slots=True)
class CheckpointOutcome:
    """How a ticket ended.

    Attributes:
        reason: why it failed; None if it is complete.
        detail: what exactly happened, when there is more to say than the reason's sentence.
        path: where its ``_metadata`` lies, when it is complete.
    """

    reason: FailureReason | None = None
    detail: str = ""
    path: str | None = None

    @property
    def message(self) -> str:
        """For people: the reason's sentence and the detail; empty when it is complete."""
        if self.reason is None:
            return ""
        return f"{self.reason.sentence} ({self.detail})" if self.detail else self.reason.sentence


class TicketState(enum.Enum):
    """Where a request stands."""

    QUEUED = "queued"
    RUNNING = "running"  #: it has a checkpoint id, and the driver works on it
    ABORTING = "aborting"  #: the driver is to abort it, and has not reported its end
    ENDED = "ended"  #: it has its outcome


class TicketInput(enum.Enum):
    START = "start"
    ABORT = "abort"
    COMPLETE = "complete"
    FAIL = "fail"


#: Every legal pair. A pair that is not here raises and changes nothing.
TRANSITIONS: Final[Mapping[tuple[TicketState, TicketInput], TicketState]] = {
    (TicketState.QUEUED, TicketInput.START): TicketState.RUNNING,
    (TicketState.QUEUED, TicketInput.ABORT): TicketState.ENDED,  # nothing to undo
    (TicketState.RUNNING, TicketInput.ABORT): TicketState.ABORTING,
    (TicketState.RUNNING, TicketInput.COMPLETE): TicketState.ENDED,
    (TicketState.RUNNING, TicketInput.FAIL): TicketState.ENDED,
    (TicketState.ABORTING, TicketInput.ABORT): TicketState.ABORTING,  # the first reason stands
    (TicketState.ABORTING, TicketInput.COMPLETE): TicketState.ENDED,  # the abort came too late
    (TicketState.ABORTING, TicketInput.FAIL): TicketState.ENDED,
    (TicketState.ENDED, TicketInput.ABORT): TicketState.ENDED,  # late news
}


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request and where it stands.

    Attributes:
        checkpoint: its number, once it was started.
        abort: why it is being aborted.
        outcome: once it has ended.
    """

    id: TicketId
    request: CheckpointRequest
    requested_at: float
    state: TicketState = TicketState.QUEUED
    checkpoint: CheckpointId | None = None
    started_at: float | None = None
    ended_at: float | None = None
    abort: CheckpointOutcome | None = None
    outcome: CheckpointOutcome | None = None

    @property
    def is_completed(self) -> bool:
        return self.outcome is not None and self.outcome.reason is None

    def started(self, checkpoint: CheckpointId, now: float) -> Ticket:
        """Return the ticket as running, with its checkpoint id.

        Raises:
            InvalidTransition: it was started or has ended.
        """
        return self._step(TicketInput.START, checkpoint=checkpoint, started_at=now)

    def aborted(self, reason: FailureReason, detail: str, now: float) -> Ticket:
        """Return the cancelled ticket: ended if it was queued, to be aborted if it was running, unchanged otherwise."""
        outcome = CheckpointOutcome(reason, detail)
        if self.state is TicketState.QUEUED:
            return self._step(TicketInput.ABORT, outcome=outcome, ended_at=now)
        if self.state is TicketState.RUNNING:
            return self._step(TicketInput.ABORT, abort=outcome)
        return self._step(TicketInput.ABORT)

    def completed(self, path: str | None, now: float) -> Ticket:
        """Return the ticket as completed: its metadata is written.

        Raises:
            InvalidTransition: it was not started, or has ended.
        """
        return self._step(TicketInput.COMPLETE, outcome=CheckpointOutcome(path=path), ended_at=now)

    def failed(self, reason: FailureReason, detail: str, now: float) -> Ticket:
        """Return the ticket as failed: its metadata will never be written. The reason of an abort precedes a later one.

        Raises:
            InvalidTransition: it was not started, or has ended.
        """
        return self._step(TicketInput.FAIL, outcome=self.abort or CheckpointOutcome(reason, detail), ended_at=now)

    def _step(self, input_: TicketInput, **changes: Any) -> Ticket:
        try:
            state = TRANSITIONS[self.state, input_]
        except KeyError:
            raise InvalidTransition("checkpoint", self.state, f"{input_.name} of ticket {self.id}") from None
        return replace(self, state=state, **changes)
