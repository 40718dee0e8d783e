"""One operator's part in a triggered checkpoint: where its channels are cut, and what lies in them.

```
coordinator   => a . |S_e| b . |S_C| c . . . . . . .        b is held by epoch e, c by the checkpoint
subtask 0        (a) -> [=== e ===]ack -> b is channel state of C, then c follows it into the mailbox
upstream                    x y (outbox of e) ... commit e -> x y are channel state: S_C is older than they are
```

A checkpoint has one boundary per query: the end of the epoch that is in progress when it is triggered, or the last
commit when none is. The coordinator's snapshot point lies before the boundary or, when the coordinator takes its time,
after it. Either way the cut is consistent, because nothing of a later epoch begins in between: its snapshot is
requested after this one was answered.

* A subtask passes the boundary with its ack, or with the commit when it had no rows. Then what waits in its mailbox was
  sent before the snapshot point and is not part of its state: channel state, downwards.
* What the subtasks sent in epochs up to the boundary, and the coordinator had not seen when it was asked, is channel
  state upwards. To be exact about "had not seen", outboxes are not delivered while an answer is owed.

Flink records neither direction (FLINK-26029 asked for both). Protocol section 5, rules C3, C6 and C11.

A query that does not run is cut from durable facts (:func:`cut_of`): the cut is exactly what a recovery in place would
read, the epoch that Spark has planned behind the last commit included. A sink may have that epoch already, so it must
be run again with the same rows and the same inputs.

Single-threaded; owned by the protocol core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from coord_control.ids import BarrierId, CheckpointId, Epoch, OperatorUid, SubtaskIndex
from coord_control.protocol.gateway import Gateway
from coord_control.protocol.records import Ack, Begin, EventBatch, Record, pack
from coord_control.protocol.recovery import Inputs, Outbox, RecoveredOperator, Replay, in_sequence

__all__ = ["OperatorCut", "PendingCut", "SubtaskCut", "cut_of", "seed"]


@dataclass(frozen=True, slots=True)
class SubtaskCut:
    """How one subtask passed the boundary, or its progress, for people.

    Attributes:
        passed_seconds: from the trigger until it passed; None if it has not.
        blocked_events: events that waited for it behind this checkpoint.
        blocked_seconds: from the coordinator's snapshot point until it passed, or until it was looked at.
        ack_seconds: from the trigger until its ack of the boundary epoch, which is before it passed when the
            coordinator was slower; None if there was none after the trigger.
    """

    subtask: SubtaskIndex
    passed_seconds: float | None = 0.0
    blocked_events: int = 0
    blocked_seconds: float = 0.0
    ack_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class OperatorCut:
    """Everything of one operator that a checkpoint keeps."""

    operator: OperatorUid
    coordinator_state: bytes | None  #: None: the coordinator has never given one, it starts empty
    states: Mapping[SubtaskIndex, bytes | None]  #: of the subtasks that have ever acknowledged
    down: Inputs  #: channel state coordinator -> subtasks, in order; subtasks without events are left out
    up: tuple[Outbox, ...]  #: channel state subtasks -> coordinator, in order
    #: The planned epoch behind the boundary, if one belongs to the cut. Its inputs come before those in ``down``.
    replay: Replay | None = None
    subtasks: tuple[SubtaskCut, ...] = ()
    asked_seconds: float = 0.0  #: from the trigger until the coordinator was asked for its state
    snapshot_seconds: float = 0.0  #: from then until it answered


@dataclass(slots=True)
class PendingCut:
    """The cut while it is being made.

    Attributes:
        boundary: the epoch whose end is the cut.
        asked_at: when the coordinator was asked; None before.
        state: what it answered; None before.
    """

    checkpoint: CheckpointId
    barrier: BarrierId
    boundary: Epoch
    triggered_at: float
    asked_at: float | None = None
    answered_at: float | None = None
    state: bytes = b""
    up: list[Outbox] = field(default_factory=list)
    captured: OperatorCut | None = None
    _down: dict[SubtaskIndex, tuple[EventBatch, ...]] = field(default_factory=dict)
    _passed: dict[SubtaskIndex, SubtaskCut] = field(default_factory=dict)
    _acknowledged: dict[SubtaskIndex, float] = field(default_factory=dict)  # seconds from the trigger

    @property
    def is_answered(self) -> bool:
        """Whether the coordinator's snapshot point is known."""
        return self.answered_at is not None

    @property
    def passed(self) -> int:
        """How many subtasks have passed the boundary."""
        return len(self._passed)

    def answered(self, state: bytes, now: float) -> None:
        """Record the coordinator's snapshot point."""
        self.state, self.answered_at = state, now

    def acknowledged(self, subtask: SubtaskIndex, epoch: Epoch, now: float) -> None:
        """Record when a subtask has acknowledged an epoch; the first ack of the boundary is kept, for people."""
        if epoch == self.boundary:
            self._acknowledged.setdefault(subtask, now - self.triggered_at)

    def passes(self, subtask: SubtaskIndex, gateway: Gateway, now: float) -> None:
        """Let a subtask pass the boundary: record what is in transit to it, and release what waits. Repeatable."""
        if self.answered_at is None or subtask in self._passed:
            return
        if gateway.mailbox:
            self._down[subtask] = pack(gateway.mailbox)
        self._passed[subtask] = replace(self.so_far(subtask, gateway, now), passed_seconds=now - self.triggered_at)
        gateway.open(self.barrier, now)

    def so_far(self, subtask: SubtaskIndex, gateway: Gateway, now: float) -> SubtaskCut:
        """Return how a subtask has passed the boundary or, when it has not, what has been measured of it by now."""
        if (passed := self._passed.get(subtask)) is not None:
            return passed
        blocked_seconds = 0.0 if self.answered_at is None else now - self.answered_at
        acknowledged = self._acknowledged.get(subtask)
        return SubtaskCut(subtask, None, gateway.held_by(self.barrier), blocked_seconds, acknowledged)

    def settled(self, epoch: Epoch, outboxes: Iterable[Outbox]) -> None:
        """Keep what the subtasks sent in a committed epoch, if the coordinator was asked before and so has not seen
        it."""
        if self.asked_at is not None and epoch <= self.boundary:
            self.up += outboxes

    def capture(self, operator: OperatorUid, states: Mapping[SubtaskIndex, bytes | None]) -> None:
        """Complete the cut: all subtasks have passed, the boundary is committed, and ``states`` are those at the
        boundary."""
        assert self.asked_at is not None, "only those that were asked for are answered"
        assert self.answered_at is not None, "only answered ones pass"
        self.captured = OperatorCut(
            operator=operator,
            coordinator_state=self.state,
            states=dict(states),
            down=self._down,
            up=tuple(self.up),
            subtasks=tuple(cut for _, cut in sorted(self._passed.items())),
            asked_seconds=self.asked_at - self.triggered_at,
            snapshot_seconds=self.answered_at - self.asked_at,
        )


def cut_of(recovered: RecoveredOperator, operator: OperatorUid) -> OperatorCut:
    """Return the cut of a query that does not run, at its last commit and with the epoch planned behind it."""
    return OperatorCut(
        operator=operator,
        coordinator_state=recovered.coordinator_state,
        states=dict(recovered.states),
        down=recovered.mailboxes,
        up=recovered.undelivered,
        replay=recovered.replay,
    )


def seed(cut: OperatorCut, boundary: Epoch, barrier: BarrierId) -> Iterator[Record]:
    """Yield the records from which a new lineage that was restored from ``cut`` recovers: as if its boundary, and the
    epoch planned behind it, were epochs of that lineage, with all that was in the channels.

    Args:
        boundary: the last commit of the new lineage.
        barrier: the id of the state to which the coordinator is reset.
    """
    held = {subtask: pack(batches) for subtask, batches in cut.down.items()}
    inputs = cut.replay.inputs if cut.replay is not None else {}
    if cut.coordinator_state is not None:
        # The inputs wait here too: a power cut may take the planned epoch's file, and then this record counts.
        waiting = {subtask: pack(batches) for subtask, batches in in_sequence(inputs, held).items()}
        yield Begin(cut.operator, boundary, barrier, cut.coordinator_state, {}, waiting)
    outboxes: dict[SubtaskIndex, list[Outbox]] = {}
    for outbox in cut.up:
        outboxes.setdefault(outbox.subtask, []).append(outbox)
    for subtask in sorted(cut.states):
        sent = outboxes.pop(subtask, [])
        events = pack(batch for outbox in sent for batch in outbox.events)
        yield Ack(cut.operator, subtask, boundary, sent[-1].attempt if sent else -1, cut.states[subtask], events)
    if cut.replay is None:
        return
    if cut.replay.barrier is not None:
        assert cut.coordinator_state is not None, "a begin record holds a state"
        yield Begin(cut.operator, cut.replay.epoch, barrier, cut.coordinator_state, inputs, held)
    for _, ack in sorted(cut.replay.acks.items()):
        yield ack
