"""Recovery as a pure function of durable facts (protocol section 6).

The facts are the records of the epoch store, in log order, and what Spark's own logs say: the last committed epoch
``k`` and the last planned one (``k``, or ``k+1`` when Spark has fixed the rows of an epoch that it has not
committed). The same function serves a killed driver, a failed batch and a query that is started for the first time.

* A subtask has the state of its newest durable ack with epoch <= k.
* With a begin record of k+1 the coordinator restarts from its state, and k+1 is run again with the recorded inputs.
* Without one, but with k+1 planned, k+1 is run again with *empty* inputs: either no attempt was answered in it, or its
  inputs were empty and the record was saved (cost rule). Either way every attempt of k+1, before and after, sees the
  same (invariant I3).
* What was acknowledged in k+1 before counts if Spark commits k+1 without running it: its sink has the epoch already and
  skips it (spark-facts: the file sink, and idempotent ``foreachBatch`` functions). The first attempt of k+1 shows that
  Spark does run it; from then on, durably, only acks of the new run count.
* The coordinator then restarts from the newest begin record w <= k; the outboxes of w..k are delivered to it again,
  and what was frozen in w for subtasks that did not run in it goes back to their mailboxes.
* What a checkpoint held back when an epoch began is behind the epoch's inputs: it waits in the mailboxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from coord_control.ids import NO_CHECKPOINT, BarrierId, Epoch, Generation, OperatorUid, SubtaskIndex
from coord_control.protocol.records import Ack, Begin, EventBatch, LiveChanged, LiveFrozen, Record, RunStarted

__all__ = [
    "Facts",
    "History",
    "Inputs",
    "Outbox",
    "RecoveredOperator",
    "Replay",
    "in_sequence",
    "recover",
    "recovery_marker",
    "rerun_marker",
]

Inputs: TypeAlias = Mapping[SubtaskIndex, tuple[EventBatch, ...]]


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a recovery rests on."""

    records: tuple[Record, ...]  #: in log order
    committed: Epoch  #: Spark's last commit, -1 when there is none
    planned: Epoch  #: Spark's last offsets: ``committed`` or one more


@dataclass(frozen=True, slots=True)
class Outbox:
    """Events of one attempt that Spark has committed and the restored coordinator has not seen."""

    subtask: SubtaskIndex
    attempt: int
    events: tuple[EventBatch, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """An epoch that Spark will run again, with the inputs that it had, or commit without running it.

    ``barrier`` is None when it has no begin record.
    """

    epoch: Epoch
    barrier: BarrierId | None
    inputs: Inputs
    acks: Mapping[SubtaskIndex, Ack] = field(default_factory=dict)  #: count if Spark does not run it


@dataclass(frozen=True, slots=True)
class RecoveredOperator:
    """Where one operator resumes."""

    states: Mapping[SubtaskIndex, bytes | None]  #: of the subtasks that have ever acknowledged
    coordinator_state: bytes | None  #: None: there is no snapshot, the coordinator starts empty
    barrier: BarrierId  #: of the snapshot, -1 when there is none (C13)
    undelivered: tuple[Outbox, ...]
    mailboxes: Inputs
    replay: Replay | None


@dataclass(slots=True)
class History:
    """The records that count, by key: the last of a key wins, and a restart voids what will be run again."""

    begins: dict[OperatorUid, dict[Epoch, Begin]] = field(default_factory=dict)
    acks: dict[tuple[OperatorUid, SubtaskIndex], dict[Epoch, Ack]] = field(default_factory=dict)
    frozen: dict[Epoch, LiveFrozen] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Record]) -> History:
        history = cls()
        for record in records:
            history.add(record)
        return history

    def add(self, record: Record) -> None:
        match record:
            case Begin():
                self.begins.setdefault(record.operator, {})[record.epoch] = record
            case Ack():
                self.acks.setdefault((record.operator, record.subtask), {})[record.epoch] = record
            case RunStarted():
                self._void(record)
            case LiveFrozen():
                self.frozen[record.epoch] = record
            case LiveChanged():
                raise AssertionError("changes are in the log of the job, not in that of a query")
            case _:
                assert_never(record)

    def _void(self, marker: RunStarted) -> None:
        for begins in self.begins.values():
            for epoch in [epoch for epoch in begins if epoch > marker.planned]:
                del begins[epoch]
        for epoch in [epoch for epoch in self.frozen if epoch > marker.planned]:
            del self.frozen[epoch]
        for acks in self.acks.values():
            for epoch in [epoch for epoch in acks if epoch > marker.committed]:
                del acks[epoch]

    def is_void_after(self, committed: Epoch, planned: Epoch) -> bool:
        """Return whether there is anything that must not count once what is not committed is run again."""
        return (
            any(epoch > planned for begins in self.begins.values() for epoch in begins)
            or any(epoch > committed for acks in self.acks.values() for epoch in acks)
            or any(epoch > planned for epoch in self.frozen)
        )


def recovery_marker(facts: Facts, generation: Generation) -> RunStarted | None:
    """Return the record that must be durable before the query starts, or None when nothing needs to be voided.

    It voids what belongs to epochs that Spark has not even planned, and nothing else: acks of the planned one count if
    Spark commits it without running it. Recover with it among the facts.
    """
    if History.of(facts.records).is_void_after(facts.planned, facts.planned):
        return RunStarted(generation, facts.planned, facts.planned)
    return None


def rerun_marker(facts: Facts, generation: Generation) -> RunStarted | None:
    """Return the record that must be durable before an attempt of the planned epoch is answered, because it voids the
    epoch's earlier acks; None if there is nothing to void."""
    if History.of(facts.records).is_void_after(facts.committed, facts.planned):
        return RunStarted(generation, facts.committed, facts.planned)
    return None


def recover(facts: Facts, operator: OperatorUid) -> RecoveredOperator:
    """Return where ``operator`` resumes after a restart with these facts."""
    history = History.of(facts.records)
    begins = history.begins.get(operator, {})
    ours = {subtask: by_epoch for (uid, subtask), by_epoch in sorted(history.acks.items()) if uid == operator}
    acks = {
        subtask: {epoch: ack for epoch, ack in by_epoch.items() if epoch <= facts.committed}
        for subtask, by_epoch in ours.items()
    }
    states = {subtask: by_epoch[max(by_epoch)].state for subtask, by_epoch in acks.items() if by_epoch}
    next_epoch = Epoch(facts.committed + 1)
    planned = facts.planned >= next_epoch
    before = {subtask: by_epoch[next_epoch] for subtask, by_epoch in ours.items() if next_epoch in by_epoch}
    if planned and (begin := begins.get(next_epoch)):
        replay = Replay(next_epoch, begin.barrier, begin.inputs, before)
        return RecoveredOperator(states, begin.state, begin.barrier, (), begin.held, replay)
    replay_empty = Replay(next_epoch, None, {}, before) if planned else None
    newest = max((epoch for epoch in begins if epoch <= facts.committed), default=None)
    if newest is None:
        return RecoveredOperator(states, None, NO_CHECKPOINT, _outboxes(acks, Epoch(0)), {}, replay_empty)
    begin = begins[newest]
    unconsumed = {subtask: batches for subtask, batches in begin.inputs.items() if newest not in acks.get(subtask, {})}
    mailboxes = in_sequence(unconsumed, begin.held)
    return RecoveredOperator(states, begin.state, begin.barrier, _outboxes(acks, newest), mailboxes, replay_empty)


def in_sequence(earlier: Inputs, later: Inputs) -> Inputs:
    """Join the events of each subtask, those of ``earlier`` first."""
    return {subtask: (*earlier.get(subtask, ()), *later.get(subtask, ())) for subtask in {**earlier, **later}}


def _outboxes(acks: Mapping[SubtaskIndex, Mapping[Epoch, Ack]], since: Epoch) -> tuple[Outbox, ...]:
    sent = sorted(
        (epoch, subtask, ack.attempt, ack.outbox)
        for subtask, by_epoch in acks.items()
        for epoch, ack in by_epoch.items()
        if epoch >= since and ack.outbox
    )
    return tuple(Outbox(subtask, attempt, events) for _, subtask, attempt, events in sent)
