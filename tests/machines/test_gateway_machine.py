"""Every pair of the gateway's table, and any sequence of calls against a model that fits in one sentence.

The model: an event reaches the mailbox when every barrier that was closed at the time it was sent has been opened, and
all events stand in the order in which they were sent.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coord_control.errors import InvalidTransition
from coord_control.ids import BarrierId, OperatorUid, SubtaskIndex
from coord_control.protocol.channel import OperatorChannel
from coord_control.protocol.gateway import TRANSITIONS, Gateway, Input, State
from coord_control.protocol.records import EventBatch
from tests.core_kit import event, names

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


# Any sequence at one gateway, in any order, legal or not.


@given(st.lists(st.one_of(st.just(None), st.tuples(st.sampled_from(Input), st.integers(1, 5)))))
def test_no_sequence_of_calls_loses_doubles_or_reorders_an_event(calls: list[tuple[Input, int] | None]) -> None:
    gateway, sent = Gateway(), []
    for number, call in enumerate(calls):
        if call is None:
            sent.append(str(number))
            gateway.send(event(str(number)), 0.0)
            continue
        try:
            give(gateway, call[0], BarrierId(call[1]))
        except InvalidTransition:
            assert (gateway.state(BarrierId(call[1])), call[0]) not in TRANSITIONS
    assert names(gateway.mailbox).split() == sent[: len(gateway.mailbox)]
    assert len(gateway.mailbox) + gateway.blocked == len(sent)
    for barrier in range(5, 0, -1):  # the worst order: newest first
        if gateway.state(BarrierId(barrier)) is not State.UNSEEN:
            gateway.open(BarrierId(barrier), 0.0)
    assert names(gateway.mailbox).split() == sent
    assert (gateway.is_open, gateway.blocked) == (True, 0)


class Sent:
    """What the model knows of one event."""

    def __init__(self, name: str, waits_for: set[BarrierId]) -> None:
        self.name = name
        self.waits_for = waits_for


class ChannelModel(RuleBasedStateMachine):
    """A channel with two subtasks under every schedule of triggers, answers, aborts, acks, sends and freezes."""

    subtasks = (SubtaskIndex(0), SubtaskIndex(1))

    @initialize()
    def begin(self) -> None:
        self.channel = OperatorChannel(OperatorUid("op"), len(self.subtasks), incarnation=1)
        self.ids = itertools.count(1)
        self.numbers = itertools.count()
        self.triggered: list[BarrierId] = []
        self.asked: BarrierId | None = None
        self.waiting: list[BarrierId] = []
        self.closed: dict[SubtaskIndex, set[BarrierId]] = {subtask: set() for subtask in self.subtasks}
        self.sent: dict[SubtaskIndex, list[Sent]] = {subtask: [] for subtask in self.subtasks}
        self.frozen: dict[SubtaskIndex, list[EventBatch]] = {subtask: [] for subtask in self.subtasks}

    def phase_ended(self) -> None:
        self.asked = self.waiting.pop(0) if self.waiting else None
        assert self.channel.next_phase(0.0) == self.asked

    @rule()
    def trigger(self) -> None:
        barrier = BarrierId(next(self.ids))
        self.triggered.append(barrier)
        asked = self.channel.trigger(barrier, 0.0)
        if self.asked is None:
            assert asked == barrier
            self.asked = barrier
        else:
            assert asked is None
            self.waiting.append(barrier)

    @precondition(lambda self: self.triggered)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        barrier = data.draw(st.sampled_from(self.triggered))
        assert self.channel.answered(barrier, 0.0) is (barrier == self.asked)
        if barrier == self.asked:
            for subtask in self.subtasks:
                self.closed[subtask].add(barrier)
            self.phase_ended()

    @precondition(lambda self: self.triggered)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        barrier = data.draw(st.sampled_from(self.triggered))
        self.channel.abort(barrier, 0.0)
        for subtask in self.subtasks:
            self.opened(subtask, barrier)
        if barrier in self.waiting:
            self.waiting.remove(barrier)
        if barrier == self.asked:
            self.phase_ended()

    @precondition(lambda self: any(self.closed.values()))
    @rule(data=st.data(), subtask=st.sampled_from(subtasks))
    def acknowledge(self, data: st.DataObject, subtask: SubtaskIndex) -> None:
        answered = [barrier for barrier in self.triggered if barrier != self.asked and barrier not in self.waiting]
        barrier = data.draw(st.sampled_from(answered))
        assert self.channel.gateways[subtask].open(barrier, 0.0) is (barrier in self.closed[subtask])
        self.opened(subtask, barrier)

    @rule(subtask=st.sampled_from(subtasks))
    def send(self, subtask: SubtaskIndex) -> None:
        name = str(next(self.numbers))
        self.sent[subtask].append(Sent(name, set(self.closed[subtask])))
        self.channel.send(subtask, event(name), 0.0)

    @rule()
    def freeze(self) -> None:
        for subtask, batches in self.channel.freeze().items():
            self.frozen[subtask] += batches

    @rule()
    def freeze_and_put_back(self) -> None:
        self.channel.put_back(self.channel.freeze())

    def opened(self, subtask: SubtaskIndex, barrier: BarrierId) -> None:
        self.closed[subtask].discard(barrier)
        for sent in self.sent[subtask]:
            sent.waits_for.discard(barrier)

    @invariant()
    def every_event_is_where_it_must_be(self) -> None:
        for subtask in self.subtasks:
            gateway, sent = self.channel.gateways[subtask], self.sent[subtask]
            passed = names([*self.frozen[subtask], *gateway.mailbox]).split()
            assert passed == [each.name for each in sent if not each.waits_for]
            assert gateway.blocked == len(sent) - len(passed)
            assert gateway.is_open is not bool(self.closed[subtask])


TestChannelModel = ChannelModel.TestCase
