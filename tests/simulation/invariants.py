"""What must always hold, checked from outside: a second, simpler bookkeeping beside the real one.

The names are those of docs/protocol.md, section 7; ``C9`` is the order of barrier ids, ``cost`` the rule that an idle
epoch writes nothing. I1 and I2 are checked by the simulated user code itself (:mod:`.values`), which counts what it
receives, and once more at the end, when everything that was sent must have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from coord_control.errors import OutputNotConsumed
from coord_control.ids import NO_CHECKPOINT, BarrierId, Epoch, Generation, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol import gateway
from coord_control.protocol.cut import OperatorCut
from coord_control.protocol.epoch import OperatorEpoch, Phase
from coord_control.protocol.messages import Acknowledge, AskSnapshot, EpochSettled, Welcome
from coord_control.protocol.operator import OperatorRun
from coord_control.protocol.records import Ack, Begin, Record
from coord_control.protocol.recovery import Facts, History, in_sequence, recover
from tests.simulation.checkpoints import Served, Watched
from tests.simulation.spark import Attempt, SparkLog
from tests.simulation.values import (
    NUMBERED,
    CoordinatorState,
    SubtaskState,
    Violation,
    events_of,
    uids_of,
)

__all__ = ["BarriersSeen", "Invariants", "View"]

_Channel = tuple[OperatorUid, SubtaskIndex]
#: The newest barrier id that each coordinator has seen, by generation.
BarriersSeen: TypeAlias = dict[tuple[Generation, OperatorUid], BarrierId]


@dataclass(frozen=True, slots=True)
class View:
    """What a driver that started now would read."""

    records: Sequence[Record]
    history: History

    @classmethod
    def of(cls, records: Sequence[Record]) -> View:
        return cls(records, History.of(records))

    def state_before(self, channel: _Channel, epoch: Epoch) -> bytes | None:
        """The subtask's state when ``epoch`` begins, by what is durable."""
        acks = self.history.acks.get(channel, {})
        earlier = [other for other in acks if other < epoch]
        return acks[max(earlier)].state if earlier else None


@dataclass(slots=True)
class _Costs:
    """What the cost rule compares an operator's next begin with; of one driver."""

    recorded_state: bytes | None
    delivered: bool


@dataclass(slots=True)
class Invariants:
    """The checks, for all drivers of one lineage of a simulated job.

    Attributes:
        logs: Spark's logs.
        durable: what the successor of a driver of this generation has read, or would read now.
        barriers: what coordinators have seen, in all lineages.
        is_deaf: what subtasks send does not change the state of a coordinator.
    """

    logs: dict[QueryName, SparkLog]
    durable: Callable[[QueryName, Generation], View]
    barriers: BarriersSeen
    is_deaf: bool = False
    served: Served = field(default_factory=dict)
    consumed: dict[int, tuple[_Channel, Epoch]] = field(default_factory=dict)
    flows: dict[tuple[Generation, OperatorUid, SubtaskIndex], list[int]] = field(default_factory=dict)
    #: What was in each channel when the coordinator answered for a barrier.
    answers: dict[tuple[Generation, OperatorUid, BarrierId], dict[SubtaskIndex, list[int]]] = field(
        default_factory=dict
    )
    acked: dict[tuple[Generation, OperatorUid], set[SubtaskIndex]] = field(default_factory=dict)
    begun: dict[OperatorUid, set[Epoch]] = field(default_factory=dict)  #: with a snapshot of their own
    greeted: set[tuple[Generation, OperatorUid, Epoch]] = field(default_factory=set)
    costs: dict[tuple[Generation, OperatorUid], _Costs] = field(default_factory=dict)
    recorded: set[tuple[OperatorUid, SubtaskIndex, Epoch]] = field(default_factory=set)
    acked_epochs: dict[_Channel, set[Epoch]] = field(default_factory=dict)

    # Recovery.

    def taken_over(self, served: Served) -> None:
        """The lineage begins with an epoch that was planned in another one, where attempts were given this.

        Their acks count when Spark commits the epoch without running it, so what they were given may be consumed.
        """
        self.served.update(served)
        for (operator, subtask, epoch), (_, inputs) in served.items():
            self.consumed.update(dict.fromkeys(inputs, ((operator, subtask), epoch)))

    def recovered(self, generation: Generation, operator: OperatorRun, facts: Facts) -> None:
        """A driver has recovered an operator from ``facts``."""
        uid = operator.spec.uid
        self.served = {key: seen for key, seen in self.served.items() if key[0] != uid or key[2] <= facts.planned}
        self.consumed = {
            event: seen for event, seen in self.consumed.items() if seen[0][0] != uid or seen[1] <= facts.planned
        }
        for subtask in range(operator.spec.parallelism):
            channel = (generation, uid, SubtaskIndex(subtask))
            self.flows[channel] = _content(operator, SubtaskIndex(subtask))
        self.acked[generation, uid] = set()
        self.greeted = {key for key in self.greeted if key[:2] != (generation, uid)}
        self._check_delivered_once(uid, facts)
        recovered = recover(facts, uid)
        self.costs[generation, uid] = _Costs(recovered.coordinator_state, bool(recovered.undelivered))

    def _check_delivered_once(self, uid: OperatorUid, facts: Facts) -> None:
        """The outboxes that must be delivered again do not pile up: the next begin covers them."""
        history = History.of(facts.records)
        newest = max((epoch for epoch in history.begins.get(uid, {}) if epoch <= facts.committed), default=Epoch(0))
        sent = [
            epoch
            for (operator, _), acks in history.acks.items()
            for epoch, ack in acks.items()
            if operator == uid and newest <= epoch <= facts.committed and ack.outbox
        ]
        self.begun[uid] = {epoch for epoch in self.begun.get(uid, ()) if epoch <= facts.planned}
        for epoch in self.begun[uid]:
            if sent and min(sent) < epoch <= facts.committed:
                raise Violation(
                    f"cost: the coordinator of {uid} gets the outbox of epoch {min(sent)} again, although "
                    f"epoch {epoch} has begun after it"
                )

    # The core, after each of its inputs.

    def sent(self, generation: Generation, operator: OperatorUid, subtask: SubtaskIndex, event: int) -> None:
        """A coordinator has sent an event, and its incarnation is current."""
        self.flows[generation, operator, subtask].append(event)

    def acknowledged(self, generation: Generation, ack: Acknowledge) -> None:
        """The core has taken an ack."""
        self.acked[generation, ack.attempt.operator].add(ack.attempt.subtask)

    def check_channels(self, generation: Generation, operator: OperatorRun) -> None:
        """I5: no event is dropped, doubled or moved; a gateway is closed exactly until its subtask has acknowledged."""
        uid, epoch = operator.spec.uid, operator.epoch
        acked = self.acked[generation, uid]
        if epoch is None or epoch.phase is Phase.BEGINNING:
            acked.clear()
        for index in range(operator.spec.parallelism):
            subtask = SubtaskIndex(index)
            self._check_flow(generation, operator, subtask)
            self._check_bound(operator, subtask)
            if epoch is None or epoch.barrier is None or epoch.phase is not Phase.RUNNING:
                continue
            state = operator.channel.gateways[index].state(epoch.barrier)
            expected = gateway.State.OPENED if subtask in acked else gateway.State.CLOSED
            if state is not expected:
                raise Violation(
                    f"I5: the gateway of {uid}[{subtask}] is {state.value} in epoch {epoch.epoch}, not {expected.value}"
                )
        self._check_checkpoints(generation, operator)

    def _check_checkpoints(self, generation: Generation, operator: OperatorRun) -> None:
        """I5: for a checkpoint too, from the coordinator's answer until the subtask has passed the boundary."""
        uid, epoch = operator.spec.uid, operator.epoch
        for index, valve in enumerate(operator.channel.gateways):
            for barrier in valve._barriers:
                if barrier not in operator.cuts and (epoch is None or barrier != epoch.barrier):
                    raise Violation(f"I5: the gateway of {uid}[{index}] waits for barrier {barrier}, which is over")
            for barrier, cut in operator.cuts.items():
                expected = gateway.State.CLOSED
                if (generation, uid, barrier) not in self.answers:
                    expected = gateway.State.MARKED
                elif epoch is not None and epoch.epoch >= cut.boundary and index in self.acked[generation, uid]:
                    expected = gateway.State.OPENED
                if (state := valve.state(barrier)) is not expected:
                    raise Violation(
                        f"I5: the gateway of {uid}[{index}] is {state.value} for checkpoint {cut.checkpoint}, not "
                        f"{expected.value}"
                    )

    def _check_bound(self, operator: OperatorRun, subtask: SubtaskIndex) -> None:
        """What may wait for a subtask without rows is bounded: by the limit, and the event that exceeds it."""
        epoch = operator.epoch
        has_come = epoch is not None and epoch.participant(subtask) is not None
        valve = operator.channel.gateways[subtask]
        batches = [*valve.mailbox, *valve.held()]
        if epoch is not None and not has_come:
            batches += epoch.inputs.get(subtask, ())
        # Event by event: what waits is larger as a batch, in which a recovery gives it.
        sizes = [len(event) for batch in batches for event in batch.payload.split(b",")]
        waiting, largest = sum(sizes), max(sizes, default=0)
        if waiting > operator.spec.channel_bytes + largest:
            raise Violation(
                f"bound: {waiting} bytes wait for {operator.spec.uid}[{subtask}], the limit is "
                f"{operator.spec.channel_bytes}"
            )

    def _check_flow(self, generation: Generation, operator: OperatorRun, subtask: SubtaskIndex) -> None:
        uid = operator.spec.uid
        flow, content = self.flows[generation, uid, subtask], _content(operator, subtask)
        if flow == content:
            return
        gone = flow[: len(flow) - len(content)]
        if flow[len(gone) :] != content:
            raise Violation(
                f"I5: the channel to {uid}[{subtask}] holds the events {content}, it must hold the last of {flow}"
            )
        for event in gone:
            if event not in self.consumed:
                raise Violation(f"I5: event #{event} to {uid}[{subtask}] is gone, and no attempt was given it")
        self.flows[generation, uid, subtask] = content

    # What a driver executes.

    def persisted(self, generation: Generation, record: Record, operator: OperatorRun | None) -> None:
        """The cost rule: a record has a reason."""
        if isinstance(record, Begin):
            costs = self.costs[generation, record.operator]
            if not record.inputs and not record.held and record.state == costs.recorded_state and not costs.delivered:
                raise Violation(f"cost: the begin of epoch {record.epoch} of {record.operator} had nothing to record")
            costs.recorded_state, costs.delivered = record.state, False
        elif isinstance(record, Ack) and operator is not None and operator.epoch is not None:
            before = operator.states.get(record.subtask)
            inputs = operator.epoch.inputs.get(record.subtask, ())
            channel = (record.operator, record.subtask)
            is_change = record.state != before or bool(record.outbox) or bool(inputs)
            if not is_change and (*channel, record.epoch) not in self.recorded:
                raise Violation(f"cost: the ack of {channel} in epoch {record.epoch} had nothing to record")
            self.recorded.add((*channel, record.epoch))

    def welcomed(self, query: QueryName, attempt: Attempt, welcome: Welcome, epoch: OperatorEpoch | None) -> None:
        """An attempt is answered: I3 and I4. ``epoch`` is what the core runs now."""
        if epoch is not None and epoch.epoch == attempt.id.epoch and epoch.barrier is not None:
            self.begun.setdefault(attempt.id.operator, set()).add(epoch.epoch)
        who = attempt.id
        channel = (who.operator, who.subtask)
        inputs = tuple(uids_of(welcome.inputs))
        seen = self.served.setdefault((*channel, who.epoch), (welcome.state, inputs))
        if seen != (welcome.state, inputs):
            raise Violation(
                f"I3: attempt {who} is given state {_text(welcome.state)} and events {list(inputs)}; an earlier "
                f"attempt of the same epoch got {_text(seen[0])} and {list(seen[1])}"
            )
        self.greeted.add((who.generation, who.operator, who.epoch))
        self._check_consumed_once(channel, who.epoch, inputs)
        view = self.durable(query, who.generation)
        if inputs:
            begin = view.history.begins.get(who.operator, {}).get(who.epoch)
            if begin is None or tuple(uids_of(begin.inputs.get(who.subtask, ()))) != inputs:
                raise Violation(f"I4: attempt {who} is given events {list(inputs)} that no durable begin record holds")
        durable = view.state_before(channel, who.epoch)
        if durable != welcome.state:
            raise Violation(f"I4: attempt {who} is given state {_text(welcome.state)}, durable is {_text(durable)}")

    def _check_consumed_once(self, channel: _Channel, epoch: Epoch, inputs: Sequence[int]) -> None:
        committed_acks = self.consumed
        for event in inputs:
            seen = committed_acks.get(event)
            if seen is not None and seen != (channel, epoch) and self._has_acked(channel, seen[1]):
                raise Violation(
                    f"I1: event #{event} is given to {channel} in epoch {epoch}, and was consumed in epoch {seen[1]}"
                )
            committed_acks[event] = (channel, epoch)

    def _has_acked(self, channel: _Channel, epoch: Epoch) -> bool:
        return epoch in self.acked_epochs.get(channel, ())

    def accepted(self, query: QueryName, ack: Acknowledge, welcome: Welcome) -> None:
        """An ack is answered: I4."""
        who = ack.attempt
        channel = (who.operator, who.subtask)
        self.acked_epochs.setdefault(channel, set()).add(who.epoch)
        if ack.state is None and not ack.outbox and not welcome.inputs:
            return  # it may have been saved
        state = welcome.state if ack.state is None else ack.state
        durable = self.durable(query, who.generation).history.acks.get(channel, {}).get(who.epoch)
        if durable is None:
            raise Violation(f"I4: the ack of attempt {who} is answered and not durable")
        if durable.attempt == who.task_attempt and durable.state != state:
            raise Violation(f"I4: the ack of attempt {who} is durable with another state")

    def asked(self, generation: Generation, ask: AskSnapshot) -> None:
        """C9: a coordinator's barrier ids grow strictly, also from one generation to the next."""
        newest = max(
            (
                barrier
                for (other, uid), barrier in self.barriers.items()
                if other < generation or (other == generation and uid == ask.operator)
            ),
            default=NO_CHECKPOINT,
        )
        if ask.barrier <= newest:
            raise Violation(f"C9: the coordinator of {ask.operator} sees barrier {ask.barrier} after {newest}")
        self.barriers[generation, ask.operator] = ask.barrier

    def answered(self, generation: Generation, operator: OperatorRun, barrier: BarrierId) -> None:
        """A coordinator gives its state for a barrier: what it has sent by now belongs to it."""
        uid = operator.spec.uid
        self.answers[generation, uid, barrier] = {
            SubtaskIndex(index): list(self.flows[generation, uid, SubtaskIndex(index)])
            for index in range(operator.spec.parallelism)
        }

    def captured(self, generation: Generation, operator: OperatorRun, watched: Watched, view: View) -> None:
        """I6: what one operator contributes to a checkpoint is a consistent cut at its query's boundary.

        Args:
            view: everything that is durable when the checkpoint is announced.
        """
        uid, boundary, cut = watched.operator, watched.boundary, watched.cut.captured
        assert cut is not None
        committed = self.logs[watched.query].committed
        if boundary > committed:
            raise Violation(f"I6: {uid} is cut at epoch {boundary}, Spark has committed {committed}")
        self.check_channels(generation, operator)
        for index in range(operator.spec.parallelism):
            subtask = SubtaskIndex(index)
            durable = view.state_before((uid, subtask), Epoch(boundary + 1))
            if cut.states.get(subtask) != durable:
                raise Violation(
                    f"I6: {uid}[{subtask}] is cut with state {_text(cut.states.get(subtask))}; at the end of epoch "
                    f"{boundary} it is {_text(durable)}"
                )
            left = set(self.flows[generation, uid, subtask])
            on_its_way = [
                event for event in self.answers[generation, uid, watched.cut.barrier][subtask] if event in left
            ]
            if (kept := uids_of(cut.down.get(subtask, ()))) != on_its_way:
                raise Violation(f"I6: {uid}[{subtask}] is cut with events {kept} on their way, these are {on_its_way}")
        self.check_cut(cut, operator.spec.parallelism)

    def check_cut(self, cut: OperatorCut, parallelism: int) -> None:
        """I6: what is reflected as sent on one side is received on the other, or on its way; no gap, no duplicate."""
        state = cut.coordinator_state
        coordinator = CoordinatorState.recorded(cut.operator, state, parallelism)
        for index in range(parallelism):
            who, subtask = f"{cut.operator}[{index}]", SubtaskState.of(cut.states.get(SubtaskIndex(index)))
            waiting = in_sequence(cut.replay.inputs if cut.replay is not None else {}, cut.down)
            down = events_of(waiting.get(SubtaskIndex(index), ()))
            numbers = [event.number for event in down if event.kind == NUMBERED]
            if numbers != list(range(subtask.received, coordinator.sent[index])):
                raise Violation(
                    f"I6: {who} has received {subtask.received} of {coordinator.sent[index]} events, on their way "
                    f"are {numbers}"
                )
            up = [event.number for sent in cut.up if sent.subtask == index for event in events_of(sent.events)]
            if not self.is_deaf and up != list(range(coordinator.received[index], subtask.sent)):
                raise Violation(
                    f"I6: the coordinator of {who} has received {coordinator.received[index]} of {subtask.sent} "
                    f"events, on their way are {up}"
                )

    def delivered(self, generation: Generation, operator: OperatorUid) -> None:
        """An outbox goes to the coordinator."""
        self.costs[generation, operator].delivered = True

    def settled(self, generation: Generation, settled: EpochSettled) -> None:
        """An epoch whose output was cut off must fail the query instead."""
        log = self.logs[settled.query]
        plan = log.plans[settled.epoch]
        if settled.epoch > log.committed:
            raise Violation(f"I4: epoch {settled.epoch} is settled, Spark has committed {log.committed}")
        if plan.is_cut and (generation, settled.operator, settled.epoch) in self.greeted:
            raise Violation(f"output: epoch {settled.epoch} is settled although its output was cut off")

    def not_consumed(self, query: QueryName, error: OutputNotConsumed) -> None:
        """A query fails because an epoch's output was cut off."""
        if not self.logs[query].plans[Epoch(error.epoch)].is_cut:
            raise Violation(f"output: epoch {error.epoch} was consumed to its end, and is said to be cut off")

    def rolled_back(self, operators: Sequence[OperatorUid], planned: Epoch) -> None:
        """Spark's log was set back: what was after it has not happened."""
        for channel, epochs in self.acked_epochs.items():
            if channel[0] in operators:
                epochs.difference_update([epoch for epoch in epochs if epoch > planned])


def _content(operator: OperatorRun, subtask: SubtaskIndex) -> list[int]:
    # Frozen, waiting, held: the order in which the subtask will see them.
    valve = operator.channel.gateways[subtask]
    epoch = operator.epoch
    content = uids_of(epoch.inputs.get(subtask, ())) if epoch is not None and epoch.phase is Phase.RUNNING else []
    content += uids_of(valve.mailbox)
    for held in valve._barriers.values():
        content += uids_of(held or ())
    return content


def _text(data: bytes | None) -> str:
    return "none" if data is None else data.decode()
