"""Every pair of the gateway's table, and any sequence of calls against a model that fits in one sentence.

The model: an event reaches the mailbox when every barrier that was closed at the time it was sent has been opened, and
all events stand in the order in which they were sent.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings

from coord_control.errors import InvalidTransition
from coord_control.ids import BarrierId, OperatorUid, SubtaskIndex
from coord_control.protocol.channel import OperatorChannel
from coord_control.protocol.gateway import TRANSITIONS, Gateway, Input, State
from coord_control.protocol.records import EventBatch
from tests.core_kit import event, names
from tests.machines.schedules import Schedule, schedules

BARRIER = BarrierId(7)
PAIRS = list(itertools.product(State, Input))


def gateway_in(state: State) -> Gateway:
    """A gateway at which :data:`BARRIER` stands in ``state``, with an event held by an older barrier."""
    gateway = Gateway()
    gateway.mark(BarrierId(1))
    gateway.close(BarrierId(1))
    gateway.send(event("older"), 0.0)
    if state is not State.UNSEEN:
        gateway.mark(BARRIER)
    if state is State.CLOSED:
        gateway.close(BARRIER)
    if state is State.OPENED:
        gateway.open(BARRIER, 0.0)
    return gateway


def give(gateway: Gateway, input_: Input, barrier: BarrierId = BARRIER) -> None:
    inputs: dict[Input, Callable[[], object]] = {
        Input.MARK: lambda: gateway.mark(barrier),
        Input.CLOSE: lambda: gateway.close(barrier),
        Input.OPEN: lambda: gateway.open(barrier, 0.0),
    }
    inputs[input_]()


def everything(gateway: Gateway) -> dict[str, object]:
    return {slot: copy.deepcopy(getattr(gateway, slot)) for slot in Gateway.__slots__}


@pytest.mark.parametrize("state", State)
def test_every_state_can_be_reached(state: State) -> None:
    assert gateway_in(state).state(BARRIER) is state


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PAIRS if pair in TRANSITIONS])
def test_a_legal_pair_leads_where_the_table_says(state: State, input_: Input) -> None:
    gateway = gateway_in(state)
    give(gateway, input_)
    assert gateway.state(BARRIER) is TRANSITIONS[state, input_]


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PAIRS if pair not in TRANSITIONS])
def test_any_other_pair_is_refused_with_all_three_parts_named_and_changes_nothing(state: State, input_: Input) -> None:
    gateway = gateway_in(state)
    before = everything(gateway)
    with pytest.raises(InvalidTransition) as raised:
        give(gateway, input_)
    assert (raised.value.machine, raised.value.state) == ("gateway", state)
    assert str(raised.value) == (
        f"gateway: input {input_.name} of barrier {BARRIER} is not allowed in state {state.name}; nothing was changed"
    )
    assert everything(gateway) == before


@pytest.mark.parametrize(("state", "input_"), [pair for pair, target in TRANSITIONS.items() if pair[0] is target])
def test_late_news_changes_nothing(state: State, input_: Input) -> None:
    gateway = gateway_in(state)
    before = everything(gateway)
    give(gateway, input_)
    assert everything(gateway) == before


# Any sequence at one gateway, legal or not.


@settings(max_examples=300)
@given(schedules(60))
def test_no_sequence_of_calls_loses_doubles_or_reorders_an_event(schedule: Schedule) -> None:
    gateway = Gateway()
    sent: list[str] = []
    while not schedule.is_over:
        input_ = schedule.pick([None, None, *Input])
        if input_ is None:
            sent.append(str(len(sent)))
            gateway.send(event(sent[-1]), 0.0)
            continue
        barrier = BarrierId(schedule.pick(range(1, 6)))
        try:
            give(gateway, input_, barrier)
        except InvalidTransition:
            assert (gateway.state(barrier), input_) not in TRANSITIONS
        assert names(gateway.mailbox).split() == sent[: len(gateway.mailbox)]
        assert len(gateway.mailbox) + gateway.blocked == len(sent)
    for barrier in map(BarrierId, range(5, 0, -1)):  # the worst order: newest first
        if gateway.state(barrier) is not State.UNSEEN:
            gateway.open(barrier, 0.0)
    assert names(gateway.mailbox).split() == sent
    assert (gateway.is_open, gateway.blocked) == (True, 0)


# A channel with two subtasks under every schedule of triggers, answers, aborts, acks, sends and freezes.


@dataclass
class Sent:
    """What the model knows of one event."""

    name: str
    waits_for: set[BarrierId]


class ChannelModel:
    """A channel, and beside it the one sentence that says where every event must be."""

    subtasks = (SubtaskIndex(0), SubtaskIndex(1))

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.channel = OperatorChannel(OperatorUid("op"), len(self.subtasks), incarnation=1)
        self.triggered: list[BarrierId] = []
        self.asked: BarrierId | None = None
        self.waiting: list[BarrierId] = []
        self.closed: dict[SubtaskIndex, set[BarrierId]] = {subtask: set() for subtask in self.subtasks}
        self.sent: dict[SubtaskIndex, list[Sent]] = {subtask: [] for subtask in self.subtasks}
        self.frozen: dict[SubtaskIndex, tuple[EventBatch, ...]] = {}
        self.consumed: dict[SubtaskIndex, list[EventBatch]] = {subtask: [] for subtask in self.subtasks}

    def play(self) -> None:
        while not self.schedule.is_over:
            steps = [self.send, self.send, self.send, self.trigger, self.put_back if self.frozen else self.freeze]
            if self.triggered:
                steps += [self.answer, self.answer_what_was_asked, self.abort, self.acknowledge, self.acknowledge]
            self.schedule.pick(steps)()
            self.check()

    def trigger(self) -> None:
        barrier = BarrierId(len(self.triggered) + 1)
        self.triggered.append(barrier)
        asked = self.channel.trigger(barrier, 0.0)
        assert asked == (barrier if self.asked is None else None)
        if self.asked is None:
            self.asked = barrier
        else:
            self.waiting.append(barrier)

    def answer(self) -> None:
        self.answered(self.schedule.pick(self.triggered))

    def answer_what_was_asked(self) -> None:
        if self.asked is not None:
            self.answered(self.asked)

    def answered(self, barrier: BarrierId) -> None:
        assert self.channel.answered(barrier, 0.0) is (barrier == self.asked)
        if barrier == self.asked:
            for subtask in self.subtasks:
                self.closed[subtask].add(barrier)
            self.phase_ended()

    def abort(self) -> None:
        barrier = self.schedule.pick(self.triggered)
        self.channel.abort(barrier, 0.0)
        for subtask in self.subtasks:
            self.opened(subtask, barrier)
        if barrier in self.waiting:
            self.waiting.remove(barrier)
        if barrier == self.asked:
            self.phase_ended()

    def acknowledge(self) -> None:
        answered = [barrier for barrier in self.triggered if barrier != self.asked and barrier not in self.waiting]
        if not answered:
            return
        barrier, subtask = self.schedule.pick(answered[-4:]), self.schedule.pick(self.subtasks)
        assert self.channel.gateways[subtask].open(barrier, 0.0) is (barrier in self.closed[subtask])
        self.opened(subtask, barrier)

    def send(self) -> None:
        subtask = self.schedule.pick(self.subtasks)
        name = str(len(self.sent[subtask]))
        self.sent[subtask].append(Sent(name, set(self.closed[subtask])))
        self.channel.send(subtask, event(name), 0.0)

    def freeze(self) -> None:
        self.frozen = self.channel.freeze()

    def put_back(self) -> None:
        """An epoch has ended: a subtask that ran has consumed its inputs, one that did not gets them back."""
        for subtask in self.subtasks:
            if self.schedule.pick([True, False]):
                self.consumed[subtask] += self.frozen.pop(subtask, ())
        self.channel.put_back(self.frozen)
        self.frozen = {}

    def phase_ended(self) -> None:
        self.asked = self.waiting.pop(0) if self.waiting else None
        assert self.channel.next_phase(0.0) == self.asked

    def opened(self, subtask: SubtaskIndex, barrier: BarrierId) -> None:
        self.closed[subtask].discard(barrier)
        for sent in self.sent[subtask]:
            sent.waits_for.discard(barrier)

    def check(self) -> None:
        for subtask in self.subtasks:
            gateway, sent = self.channel.gateways[subtask], self.sent[subtask]
            passed = names([*self.consumed[subtask], *self.frozen.get(subtask, ()), *gateway.mailbox]).split()
            assert passed == [each.name for each in sent if not each.waits_for]
            assert gateway.blocked == len(sent) - len(passed)
            assert gateway.is_open is not bool(self.closed[subtask])


@settings(max_examples=200)
@given(schedules(120))
def test_every_event_of_a_channel_is_where_the_model_says(schedule: Schedule) -> None:
    ChannelModel(schedule).play()
