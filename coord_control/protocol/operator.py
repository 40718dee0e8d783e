"""One operator in one run of its query: hello, begin, ack, settle, and the cost rule.

```
coordinator   => a . b . |S_e| c . . d . . . . . . . . . . e . .
subtask 0        (a b) -> [==== epoch e ====]ack -> open, (c d e) wait in the mailbox for epoch e+1
subtask 1        (   ) -> [=========== epoch e ===========]ack -> open later than subtask 0
upstream                     x  y  (outbox of e) ....... commit e -> coordinator sees x, y
```

What leaves is appended to the :class:`~coord_control.protocol.messages.Batch` of the job, whose order is the
guarantee: records first, then answers, then notices.

Cost rule: a begin is not recorded when the coordinator's state is that of the newest record, no input is waiting and
no outbox has been delivered since; an ack is not recorded when it changes nothing, consumed nothing and sent nothing.
Each operator of a query begins an epoch with its own first hello: channels of different operators share no events.

Single-threaded; owned by the protocol core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from coord_control.errors import ChannelFull, OutputNotConsumed
from coord_control.ids import NO_EPOCH, AttemptId, BarrierId, Epoch, OperatorUid, QueryName, RunId, SubtaskIndex
from coord_control.protocol import messages
from coord_control.protocol.channel import OperatorChannel
from coord_control.protocol.control_events import Seal, unseal
from coord_control.protocol.cut import PendingCut
from coord_control.protocol.durations import Durations
from coord_control.protocol.epoch import OperatorEpoch, Phase, PhaseInput
from coord_control.protocol.messages import Acknowledge, Batch, Token, Welcome
from coord_control.protocol.records import Ack, Begin, EventBatch, count, pack
from coord_control.protocol.recovery import Outbox, RecoveredOperator

__all__ = ["MAX_CHANNEL_BYTES", "OperatorRun", "OperatorSpec", "OperatorStates", "Totals"]


#: What may wait for one subtask, or be sent by one in one epoch: all of it stands in one begin record, or in one ack.
MAX_CHANNEL_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """What does not change about an operator."""

    uid: OperatorUid
    parallelism: int
    observes_attempts: bool = False  #: the coordinator wants ready/failed/reset calls; they cost one call per hello
    snapshot_timeout_seconds: float = 60.0
    channel_bytes: int = MAX_CHANNEL_BYTES  #: what may wait for one subtask
    wake: bool = False  #: events that wait for a subtask without rows get an epoch


@dataclass(slots=True)
class Totals:
    """Counters over the runs of one driver, for people."""

    epochs: int = 0
    begins_recorded: int = 0
    acks: int = 0
    acks_recorded: int = 0
    events_down: int = 0
    events_up: int = 0
    rows_in: int = 0
    rows_out: int = 0
    nondeterministic: int = 0
    stale_refused: int = 0
    attempts_failed: int = 0
    blocked_events: int = 0  #: that had to wait at gateways of runs that have ended
    blocked_seconds: float = 0.0  #: ... and for how long, over all gateways
    checkpoint_blocked_events: int = 0  #: of these, behind checkpoints
    checkpoint_blocked_seconds: float = 0.0
    begin: Durations = field(default_factory=Durations)  #: from an epoch's first hello to the coordinator's state
    ack: Durations = field(default_factory=Durations)  #: from then to the last ack
    settle: Durations = field(default_factory=Durations)  #: from then to the settled commit
    epoch: Durations = field(default_factory=Durations)  #: all three
    snapshot: Durations = field(
        default_factory=Durations
    )  #: from the question for the coordinator's state to its answer


@dataclass(frozen=True, slots=True)
class OperatorStates:
    """States that no recovery goes back behind.

    Attributes:
        epoch: the query's newest commit.
        coordinator: of the newest begin record, or None if there is none.
        subtasks: at the end of their newest committed epoch, or None for the default state.
        waiting: how many of the coordinator's events no committed epoch of a subtask has taken.
    """

    epoch: Epoch
    coordinator: bytes | None
    subtasks: Mapping[SubtaskIndex, bytes | None]
    waiting: Mapping[SubtaskIndex, int]


class OperatorRun:
    """One operator between two restarts of its query."""

    def __init__(
        self,
        spec: OperatorSpec,
        query: QueryName,
        recovered: RecoveredOperator,
        incarnation: int,
        totals: Totals,
        next_barrier: Callable[[], BarrierId],
        committed: Epoch = NO_EPOCH,
        seal: Seal | None = None,
    ) -> None:
        self.spec = spec
        self.query = query
        self.totals = totals
        self.channel = OperatorChannel(spec.uid, spec.parallelism, incarnation)
        self.states: dict[SubtaskIndex, bytes | None] = dict(recovered.states)
        self.epoch: OperatorEpoch | None = None
        self.committed = committed
        self.cuts: dict[BarrierId, PendingCut] = {}  #: of triggered checkpoints that are not captured yet, oldest first
        self._deferred: list[messages.Notice] = []  # notices for the coordinator, held until it has answered
        self.completed = recovered.barrier  #: newest barrier that is complete, for subtask_reset
        self._next_barrier = next_barrier
        self._seal = seal or Seal()
        self._recorded_number = self._seal.number
        # Of the newest begin record; None until there is one, so the first epoch is always recorded.
        self._recorded_state = recovered.coordinator_state
        self._delivered_since = bool(recovered.undelivered)
        self._is_waiting_said = False
        self.channel.put_back(recovered.mailboxes)
        if recovered.replay is not None:
            self._replay(recovered)

    def _replay(self, recovered: RecoveredOperator) -> None:
        assert recovered.replay is not None
        replay = recovered.replay
        self.epoch = OperatorEpoch(replay.epoch, replay.barrier)
        self.epoch.begun(replay.inputs)
        self.epoch.before = replay.acks
        if replay.barrier is not None:
            self.channel.close_again(replay.barrier)

    def runs_again(self) -> None:
        """Void what was acknowledged in the planned epoch before the restart, because Spark runs that epoch again."""
        assert self.epoch is not None, "the planned epoch is not settled"
        self.epoch.before = {}

    # Attempts.

    def hello(self, attempt: AttemptId, token: Token, now: float, batch: Batch) -> None:
        """Handle an attempt that has rows. The caller has settled earlier epochs and refused stale attempts."""
        if self.epoch is None:
            barrier = self._next_barrier()
            self.epoch = OperatorEpoch(attempt.epoch, barrier)
            self._ask(self.channel.trigger(barrier, now), now, batch)
        if self.epoch.started_at is None:
            self.epoch.started_at = now
        self.epoch.hello(attempt)
        if self.spec.observes_attempts:
            batch.notices.append(messages.AttemptReady(self.spec.uid, attempt.subtask, attempt.task_attempt))
        if self.epoch.phase is Phase.RUNNING:
            self._welcome(self.epoch, attempt, token, batch)
        else:
            self.epoch.waiting.append((attempt, token))

    def acknowledge(self, ack: Acknowledge, token: Token, now: float, batch: Batch) -> str | None:
        """Handle an attempt that has produced all its output. Return why it is refused, or None."""
        attempt, epoch = ack.attempt, self.epoch
        if epoch is None or epoch.epoch != attempt.epoch or epoch.phase is not Phase.RUNNING:
            return f"epoch {attempt.epoch} is not running"
        participant = epoch.participant(attempt.subtask)
        if participant is None:
            return "an ack without a hello"
        if participant.ack is not None and participant.ack.attempt == attempt:
            batch.answers.append(messages.Answered(token, messages.Accepted()))  # late news: a duplicate
            return None
        if attempt.task_attempt not in participant.alive:
            return "this attempt was abandoned: its connection broke, or it failed"
        before = self.states.get(attempt.subtask)
        ack = Acknowledge(attempt, before if ack.state is None else ack.state, pack(ack.outbox), ack.measurements)
        participant.acknowledge(ack)
        epoch.acked_at = now
        self.totals.acks += 1
        if participant.recorded or ack.state != before or ack.outbox or attempt.subtask in epoch.inputs:
            record = Ack(self.spec.uid, attempt.subtask, epoch.epoch, attempt.task_attempt, ack.state, ack.outbox)
            batch.persist.append(messages.Persist(self.query, record))
            participant.recorded = True
            self.totals.acks_recorded += 1
        batch.answers.append(messages.Answered(token, messages.Accepted()))
        for cut in self.cuts.values():
            cut.acknowledged(attempt.subtask, epoch.epoch, now)
        self._open(epoch, attempt.subtask, now)
        self.say_waiting((attempt.subtask,), batch)
        return None

    def attempt_ended(self, attempt: AttemptId, reason: str, batch: Batch) -> None:
        """Handle the end of an attempt without an ack (local failover). Spark will try again, or fail the batch."""
        epoch = self.epoch
        participant = epoch.participant(attempt.subtask) if epoch and epoch.epoch == attempt.epoch else None
        if epoch is None or participant is None or attempt.task_attempt not in participant.alive:
            return  # late news
        participant.alive.discard(attempt.task_attempt)
        epoch.waiting = [(other, token) for other, token in epoch.waiting if other != attempt]
        self.totals.attempts_failed += 1
        if not self.spec.observes_attempts:
            return
        uid, subtask = self.spec.uid, attempt.subtask
        batch.notices.append(messages.AttemptFailed(uid, subtask, attempt.task_attempt, reason))
        # Never while another attempt of the subtask is alive (C14), nor when one is through: nothing is run again then.
        if not participant.alive and participant.ack is None:
            batch.notices.append(messages.SubtaskReset(uid, subtask, self.completed))

    # The coordinator.

    def send(self, subtask: SubtaskIndex, event: EventBatch, now: float) -> ChannelFull | None:
        """Send an event of the coordinator. Return the error of a channel in which too much waits, or None.

        Raises:
            NoSuchSubtask: there is no such subtask.
        """
        self.channel.send(subtask, event, now)
        self.totals.events_down += event.length
        waiting, limit = self.waiting_bytes(subtask), self.spec.channel_bytes
        return ChannelFull(self.spec.uid, subtask, "down", waiting, limit) if waiting > limit else None

    def waiting_bytes(self, subtask: SubtaskIndex) -> int:
        """Return what waits for a subtask: before and behind its valve, and the inputs of the running epoch that return
        to it if it turns out to have no rows."""
        frozen = 0 if self.epoch is None else self.epoch.unclaimed_bytes.get(subtask, 0)
        return self.channel.gateways[subtask].waiting_bytes + frozen

    def say_waiting(self, subtasks: Iterable[SubtaskIndex], batch: Batch) -> None:
        """Say that an epoch is needed: for events of some of these subtasks that their next epoch brings, or for a
        control event that no record contains; once, until :meth:`to_wake`."""
        if not self.spec.wake or self._is_waiting_said:
            return
        if self.has_unrecorded_event or any(self._has_mail(subtask) for subtask in subtasks):
            self._is_waiting_said = True
            batch.notices.append(messages.EventsWait(self.spec.uid))

    def to_wake(self) -> tuple[SubtaskIndex, ...]:
        """Return the subtasks to which an epoch that is being planned brings events, also without rows.

        The epoch before it is committed, though perhaps not settled: inputs that no attempt has taken are about to
        return. Where nothing waits for any, but the coordinator has applied a control event that no record contains,
        one subtask begins the epoch whose record does.
        """
        self._is_waiting_said = False
        returning = {} if self.epoch is None else self.epoch.returned()
        found = tuple(subtask for subtask in self._all if self._has_mail(subtask) or subtask in returning)
        return found or ((SubtaskIndex(0),) if self.has_unrecorded_event else ())

    @property
    def has_unrecorded_event(self) -> bool:
        """Whether the coordinator has applied a control event that no begin record contains."""
        return self._recorded_number < self._seal.number

    @property
    def _all(self) -> Iterator[SubtaskIndex]:
        return map(SubtaskIndex, range(self.spec.parallelism))

    def _has_mail(self, subtask: SubtaskIndex) -> bool:
        return bool(self.channel.gateways[subtask].mailbox)

    def control_event(self, number: int, refused: tuple[int, ...], batch: Batch) -> None:
        """Count an event from outside from here on: the coordinator's next state contains it."""
        self._seal.mark(number, refused)
        self.say_waiting((), batch)

    def snapshot_completed(self, barrier: BarrierId, data: bytes, now: float, batch: Batch) -> None:
        """Handle the coordinator's state; this call is the snapshot point (C2)."""
        if not self.channel.answered(barrier, now):
            return  # late news: aborted before
        self.totals.snapshot = self.totals.snapshot.plus(self.channel.asked_for(now))
        state = self._seal.seal(data)
        epoch = self.epoch
        if epoch is not None and epoch.barrier == barrier:
            epoch.begun_at = now
            self._begin(epoch, barrier, state, batch)
        elif (cut := self.cuts.get(barrier)) is not None:
            cut.answered(state, now)
            self._pass_late(cut, now)
        self._catch_up(batch)
        self._ask(self.channel.next_phase(now), now, batch)

    def committed_states(self, subtasks: Iterable[SubtaskIndex]) -> OperatorStates:
        """Return the coordinator's state and those of some subtasks, as a recovery would find them at least."""
        wanted = list(subtasks)
        coordinator = unseal(self.spec.uid, self._recorded_state).data
        states = {each: self.states.get(each) for each in wanted}
        return OperatorStates(self.committed, coordinator, states, {each: self._waiting(each) for each in wanted})

    def _waiting(self, subtask: SubtaskIndex) -> int:
        gateway, frozen = (
            self.channel.gateways[subtask],
            () if self.epoch is None else self.epoch.inputs.get(subtask, ()),
        )
        return count(gateway.mailbox) + gateway.blocked + count(frozen)

    def overdue(self, now: float) -> BarrierId | None:
        """Return the barrier for which the coordinator has owed its state for too long."""
        return self.channel.overdue(now, self.spec.snapshot_timeout_seconds)

    def is_asked_for(self, barrier: BarrierId) -> bool:
        """Return whether the coordinator owes its state for ``barrier``."""
        return self.channel.asked == barrier

    # Triggered checkpoints.

    def trigger(self, cut: PendingCut, now: float, batch: Batch) -> None:
        """Begin the cut of a checkpoint: the coordinator is asked for its state, now or when it has given earlier
        ones."""
        self.cuts[cut.barrier] = cut
        self._ask(self.channel.trigger(cut.barrier, now, is_checkpoint=True), now, batch)

    def abort(self, barrier: BarrierId, now: float, batch: Batch) -> None:
        """Abort a checkpoint in which this operator takes part; its events move on in order (C6)."""
        cut = self.cuts.pop(barrier, None)
        if cut is not None:
            self.channel.abort(barrier, now)
            self.say_waiting(self._all, batch)
            self._catch_up(batch)
        if cut is None or cut.asked_at is not None:
            self._tell(messages.CheckpointAborted(self.spec.uid, barrier), batch)
        self._ask(self.channel.next_phase(now), now, batch)

    def stored(self, barrier: BarrierId, batch: Batch) -> None:
        """Notify the coordinator of a complete checkpoint."""
        self.completed = max(self.completed, barrier)
        self._tell(messages.CheckpointComplete(self.spec.uid, barrier), batch)

    # The end of an epoch.

    def is_run_by_another(self, run: RunId, committed: Epoch) -> bool:
        """Return whether an epoch up to ``committed`` was begun, and by another run than ``run``."""
        epoch = self.epoch
        return epoch is not None and epoch.epoch <= committed and epoch.run not in (None, run)

    def check_consumed(self, committed: Epoch) -> OutputNotConsumed | None:
        """Return the error of an epoch that Spark committed without reading all output; to be asked before
        :meth:`settle`."""
        if self.epoch is None or self.epoch.epoch > committed:
            return None
        subtasks = self.epoch.unconsumed()
        return OutputNotConsumed(self.spec.uid, list(subtasks), self.epoch.epoch) if subtasks else None

    def unfinished(self) -> Epoch | None:
        """Return the epoch that subtasks are in the middle of, if they are."""
        return self.epoch.epoch if self.epoch is not None and self.epoch.is_unfinished() else None

    def settle(self, committed: Epoch, now: float, batch: Batch) -> None:
        """Settle an epoch that Spark has committed: states advance, unconsumed inputs return, outboxes are
        delivered."""
        if self.epoch is not None and self.epoch.epoch <= committed:
            self._settle(self.epoch, now, batch)
        self.committed = committed
        for cut in list(self.cuts.values()):
            self._pass_late(cut, now)
        self.say_waiting(self._all, batch)

    def _settle(self, epoch: OperatorEpoch, now: float, batch: Batch) -> None:
        epoch.step(PhaseInput.SETTLE)
        self.epoch = None
        self.channel.put_back(epoch.returned())
        completed = list(epoch.completed())
        for subtask, _, state, _ in completed:
            self.states[subtask] = state
        outboxes = [Outbox(subtask, attempt, outbox) for subtask, attempt, _, outbox in completed if outbox]
        for cut in self.cuts.values():
            cut.settled(epoch.epoch, outboxes)
        for index in range(self.spec.parallelism):
            self._open(epoch, SubtaskIndex(index), now)
        for outbox in outboxes:
            self._delivered_since = True
            self._tell(messages.DeliverEvents(self.spec.uid, outbox.subtask, outbox.attempt, outbox.events), batch)
        if epoch.barrier is not None:
            self.completed = max(self.completed, epoch.barrier)
            self._tell(messages.CheckpointComplete(self.spec.uid, epoch.barrier), batch)
        self._summarise(epoch, batch)
        self._measure(epoch, now)

    def fail(self, batch: Batch) -> None:
        """End the run of the query: pending requests are refused, durable facts decide what comes next."""
        if self.epoch is None:
            return
        reason = "the query is being restarted"
        for _, token in self.epoch.waiting:
            batch.answers.append(messages.Answered(token, messages.Refused(reason)))
        if self.spec.observes_attempts:  # before the reset that follows (C14)
            for subtask, task_attempt in self.epoch.alive():
                batch.notices.append(messages.AttemptFailed(self.spec.uid, subtask, task_attempt, reason))
        self.epoch.step(PhaseInput.FAIL)
        self.epoch = None

    def retire(self, now: float) -> None:
        """The run of the query has ended: what its gateways counted is kept in the totals."""
        for gateway in self.channel.gateways:
            self.totals.blocked_events += gateway.blocked_total
            self.totals.blocked_seconds += gateway.blocked_seconds_at(now)
            self.totals.checkpoint_blocked_events += gateway.checkpoint_blocked_total
            self.totals.checkpoint_blocked_seconds += gateway.checkpoint_blocked_seconds_at(now)

    # Parts.

    def _begin(self, epoch: OperatorEpoch, barrier: BarrierId, state: bytes, batch: Batch) -> None:
        inputs = {subtask: pack(batches) for subtask, batches in self.channel.freeze().items()}
        epoch.begun(inputs)
        # Behind older barriers, so it is no input; but the state that is recorded here has sent it.
        held = {subtask: pack(batches) for subtask, batches in self.channel.held().items()} if self.cuts else {}
        if inputs or held or self._delivered_since or state != self._recorded_state:
            record = Begin(self.spec.uid, epoch.epoch, barrier, state, inputs, held)
            batch.persist.append(messages.Persist(self.query, record))
            self._recorded_state, self._delivered_since = state, False
            self.totals.begins_recorded += 1
            if self.has_unrecorded_event:
                self._recorded_number = self._seal.number
                batch.notices.append(messages.EventsDurable(self.spec.uid, self._recorded_number))
        for attempt, token in epoch.waiting:
            self._welcome(epoch, attempt, token, batch)
        epoch.waiting = []

    def _welcome(self, epoch: OperatorEpoch, attempt: AttemptId, token: Token, batch: Batch) -> None:
        state, inputs = self.states.get(attempt.subtask), epoch.inputs.get(attempt.subtask, ())
        batch.answers.append(messages.Answered(token, Welcome(state, inputs)))

    def _open(self, epoch: OperatorEpoch, subtask: SubtaskIndex, now: float) -> None:
        gateway = self.channel.gateways[subtask]
        if epoch.barrier is not None:
            gateway.open(epoch.barrier, now)
        for cut in self.cuts.values():
            if cut.boundary <= epoch.epoch:
                cut.passes(subtask, gateway, now)

    def _pass_late(self, cut: PendingCut, now: float) -> None:
        """Take up what happened before the coordinator's answer, or does not concern single subtasks."""
        if not cut.is_answered:
            return
        epoch, is_over = self.epoch, cut.boundary <= self.committed
        for subtask, gateway in enumerate(self.channel.gateways):
            if is_over or (epoch is not None and epoch.has_passed(SubtaskIndex(subtask))):
                cut.passes(SubtaskIndex(subtask), gateway, now)
        if is_over:
            cut.capture(self.spec.uid, self.states)
            del self.cuts[cut.barrier]

    def _ask(self, barrier: BarrierId | None, now: float, batch: Batch) -> None:
        if barrier is None:
            return
        if (cut := self.cuts.get(barrier)) is not None:
            cut.asked_at = now
        batch.notices.append(messages.AskSnapshot(self.spec.uid, self.channel.incarnation, barrier))

    def _catch_up(self, batch: Batch) -> None:
        if self.channel.asked is None:
            batch.notices += self._deferred
            self._deferred = []

    def _tell(self, notice: messages.Notice, batch: Batch) -> None:
        # A notice between the question and its answer could be part of the coordinator's state, or not.
        (batch.notices if self.channel.asked is None else self._deferred).append(notice)

    def _measure(self, epoch: OperatorEpoch, now: float) -> None:
        if epoch.started_at is None or epoch.acked_at is None:
            return  # its output was there already: Spark has committed it without running it
        totals, begun_at = self.totals, epoch.started_at
        if epoch.begun_at is not None:
            begun_at = epoch.begun_at
            totals.begin = totals.begin.plus(begun_at - epoch.started_at)
        totals.ack = totals.ack.plus(epoch.acked_at - begun_at)
        totals.settle = totals.settle.plus(now - epoch.acked_at)
        totals.epoch = totals.epoch.plus(now - epoch.started_at)

    def _summarise(self, epoch: OperatorEpoch, batch: Batch) -> None:
        acked = list(epoch.acked())
        completed = list(epoch.completed())
        measured = [ack.measurements for _, _, ack in acked]
        summary = messages.EpochSettled(
            query=self.query,
            operator=self.spec.uid,
            epoch=epoch.epoch,
            ran=len(completed),
            events_down=sum(count(epoch.inputs.get(done.subtask, ())) for done in completed),
            events_up=sum(count(done.outbox) for done in completed),
            rows_in=sum(measurement.rows_in for measurement in measured),
            rows_out=sum(measurement.rows_out for measurement in measured),
            nondeterministic_subtasks=sum(participant.differed for _, participant, _ in acked),
        )
        batch.notices.append(summary)
        self.totals.epochs += 1
        self.totals.events_up += summary.events_up
        self.totals.rows_in += summary.rows_in
        self.totals.rows_out += summary.rows_out
        self.totals.nondeterministic += summary.nondeterministic_subtasks
