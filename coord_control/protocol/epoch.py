"""One epoch of one operator: the attempts that said hello, those that acknowledged, and the result when Spark commits.

Guarantee (invariant I3): every attempt of one (epoch, subtask), however many there are, is served the same state and
the same inputs. The state only advances when the epoch is settled, so an attempt that comes after an ack starts where
the first one did.

A subtask that never says hello had no rows: it keeps its state, and its inputs go back. One that said hello and never
acknowledged, although Spark committed, had its output cut off (protocol section 3, step 5).

An epoch that is run again after a restart may have acks from before. They count when Spark commits it without running
it, because its sink has it already; the first attempt shows that Spark does run it, and they are forgotten.

Single-threaded; owned by the protocol core.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from coord_control.errors import InvalidTransition
from coord_control.ids import AttemptId, BarrierId, Epoch, RunId, SubtaskIndex
from coord_control.protocol.messages import Acknowledge, Token
from coord_control.protocol.records import Ack, EventBatch, count, size

__all__ = [
    "PARTICIPATION",
    "PHASES",
    "Input",
    "OperatorEpoch",
    "Participant",
    "Participation",
    "Phase",
    "PhaseInput",
    "SubtaskOutcome",
]


class Phase(enum.Enum):
    """Where an operator stands in an epoch."""

    BEGINNING = "beginning"  #: the coordinator was asked for its state; hellos wait
    RUNNING = "running"  #: inputs are frozen, hellos are answered
    SETTLED = "settled"  #: Spark has committed the epoch
    FAILED = "failed"  #: the run of the query has ended; durable facts decide what comes next


class PhaseInput(enum.Enum):
    BEGUN = "begun"
    SETTLE = "settle"
    FAIL = "fail"


#: Every legal pair of an operator's epoch. A pair that is not here raises and changes nothing.
PHASES: Final[Mapping[tuple[Phase, PhaseInput], Phase]] = {
    (Phase.BEGINNING, PhaseInput.BEGUN): Phase.RUNNING,
    (Phase.RUNNING, PhaseInput.SETTLE): Phase.SETTLED,
    (Phase.BEGINNING, PhaseInput.FAIL): Phase.FAILED,
    (Phase.RUNNING, PhaseInput.FAIL): Phase.FAILED,
}


class Participation(enum.Enum):
    """Where one subtask stands in a running epoch."""

    ABSENT = "absent"  #: no rows so far
    RUNNING = "running"  #: an attempt said hello
    ACKED = "acked"  #: an attempt has produced all its output, durably


class Input(enum.Enum):
    HELLO = "hello"
    ACK = "ack"


#: Every legal pair of a subtask in an epoch.
PARTICIPATION: Final[Mapping[tuple[Participation, Input], Participation]] = {
    (Participation.ABSENT, Input.HELLO): Participation.RUNNING,
    (Participation.RUNNING, Input.HELLO): Participation.RUNNING,  # a retry, a speculative copy
    (Participation.RUNNING, Input.ACK): Participation.ACKED,
    (Participation.ACKED, Input.HELLO): Participation.ACKED,  # a stage re-run, a second action on the batch
    (Participation.ACKED, Input.ACK): Participation.ACKED,  # the later ack replaces the earlier one
}


@dataclass(slots=True)
class Participant:
    """One subtask in an epoch."""

    state: Participation = Participation.ABSENT
    alive: set[int] = field(default_factory=set)  #: task attempts that said hello and have not ended
    ack: Acknowledge | None = None  #: the one that counts
    recorded: bool = False  #: an ack of this epoch is durable
    differed: bool = False  #: two acks of this epoch differed: the user's function is not deterministic

    def step(self, input_: Input) -> None:
        """Advance.

        Raises:
            InvalidTransition: an ack without a hello.
        """
        try:
            self.state = PARTICIPATION[self.state, input_]
        except KeyError:
            raise InvalidTransition("subtask", self.state, input_) from None

    def acknowledge(self, ack: Acknowledge) -> None:
        self.step(Input.ACK)
        if self.ack is not None and (self.ack.state, self.ack.outbox) != (ack.state, ack.outbox):
            self.differed = True
        self.ack = ack
        self.alive.discard(ack.attempt.task_attempt)


class SubtaskOutcome(NamedTuple):
    """What one subtask has brought about in an epoch."""

    subtask: SubtaskIndex
    attempt: int
    state: bytes | None
    outbox: tuple[EventBatch, ...]


class OperatorEpoch:
    """One epoch of one operator."""

    __slots__ = (
        "_participants",
        "acked_at",
        "barrier",
        "before",
        "begun_at",
        "epoch",
        "inputs",
        "phase",
        "run",
        "started_at",
        "unclaimed_bytes",
        "waiting",
    )

    def __init__(self, epoch: Epoch, barrier: BarrierId | None) -> None:
        self.epoch = epoch
        self.barrier = barrier  #: None: run again after a recovery without a begin record
        self.phase = Phase.BEGINNING
        self.inputs: Mapping[SubtaskIndex, tuple[EventBatch, ...]] = {}
        self.unclaimed_bytes: dict[
            SubtaskIndex, int
        ] = {}  #: inputs of subtasks that have not said hello: they may return
        self.waiting: list[tuple[AttemptId, Token]] = []  #: hellos that came before the begin record
        self.before: Mapping[SubtaskIndex, Ack] = {}  #: acks from before a restart, as long as they may count
        self.run: RunId | None = None  #: the newest that has run it
        self.started_at: float | None = None  #: the first hello; None if no attempt has run it
        self.begun_at: float | None = None  #: the coordinator's answer; None before it, or if an earlier run got it
        self.acked_at: float | None = None  #: the newest ack
        self._participants: dict[SubtaskIndex, Participant] = {}

    def step(self, input_: PhaseInput) -> None:
        """Advance.

        Raises:
            InvalidTransition: the pair is not in :data:`PHASES`.
        """
        try:
            self.phase = PHASES[self.phase, input_]
        except KeyError:
            raise InvalidTransition("epoch", self.phase, input_) from None

    def begun(self, inputs: Mapping[SubtaskIndex, tuple[EventBatch, ...]]) -> None:
        """The coordinator's state is known and the mailboxes are frozen."""
        self.step(PhaseInput.BEGUN)
        self.inputs = inputs
        self.unclaimed_bytes = {
            subtask: size(batches) for subtask, batches in inputs.items() if subtask not in self._participants
        }

    def hello(self, attempt: AttemptId) -> None:
        """An attempt has rows."""
        self.run = attempt.run
        participant = self._participants.get(attempt.subtask)
        if participant is None:
            participant = self._participants[attempt.subtask] = Participant()
            self.unclaimed_bytes.pop(attempt.subtask, None)
        participant.step(Input.HELLO)
        participant.alive.add(attempt.task_attempt)

    def participant(self, subtask: SubtaskIndex) -> Participant | None:
        """Return the subtask's part in this epoch, None when no attempt of it said hello."""
        return self._participants.get(subtask)

    def has_passed(self, subtask: SubtaskIndex) -> bool:
        """Return whether the subtask has acknowledged."""
        participant = self._participants.get(subtask)
        return participant is not None and participant.ack is not None

    def completed(self) -> Iterator[SubtaskOutcome]:
        """Yield what the epoch has brought when Spark commits it, in subtask order."""
        for subtask, ack in sorted(self.before.items()):
            yield SubtaskOutcome(subtask, ack.attempt, ack.state, ack.outbox)
        for subtask, _, acknowledged in self.acked():
            attempt = acknowledged.attempt.task_attempt
            yield SubtaskOutcome(subtask, attempt, acknowledged.state, acknowledged.outbox)

    def acked(self) -> Iterator[tuple[SubtaskIndex, Participant, Acknowledge]]:
        """Yield the subtasks that have acknowledged, in subtask order."""
        for subtask, participant in sorted(self._participants.items()):
            if participant.ack is not None:
                yield subtask, participant, participant.ack

    def sent(self) -> dict[SubtaskIndex, int]:
        """Return how many events subtasks have sent that count once the epoch is committed; those without are left
        out."""
        outboxes = {subtask: ack.outbox for subtask, ack in self.before.items()}
        for subtask, participant in self._participants.items():
            if participant.ack is not None:
                outboxes[subtask] = participant.ack.outbox
        return {subtask: count(outbox) for subtask, outbox in outboxes.items() if outbox}

    def alive(self) -> Iterator[tuple[SubtaskIndex, int]]:
        """Yield the attempts that have not ended, in the order of subtasks and attempts."""
        for subtask, participant in sorted(self._participants.items()):
            for task_attempt in sorted(participant.alive):
                yield subtask, task_attempt

    def unconsumed(self) -> list[SubtaskIndex]:
        """Subtasks whose output was begun and never read to its end."""
        return sorted(s for s, participant in self._participants.items() if participant.state is Participation.RUNNING)

    def is_unfinished(self) -> bool:
        """Return whether a subtask has said hello and not acknowledged: then Spark cannot have run all of it here."""
        return any(participant.ack is None for participant in self._participants.values())

    def returned(self) -> dict[SubtaskIndex, tuple[EventBatch, ...]]:
        """Inputs of the subtasks that had no rows."""
        took_part = self._participants.keys() | self.before.keys()
        return {subtask: batches for subtask, batches in self.inputs.items() if subtask not in took_part}
