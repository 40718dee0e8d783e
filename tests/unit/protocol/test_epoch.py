"""One epoch of one operator: who takes part, and what each part comes to."""

from __future__ import annotations

import pytest

from coord_control.errors import InvalidTransition
from coord_control.ids import BarrierId, Epoch, SubtaskIndex
from coord_control.protocol.epoch import OperatorEpoch, Participant, Participation, Phase, PhaseInput
from coord_control.protocol.messages import Acknowledge
from tests.core_kit import attempt, events

S0, S1, S2 = SubtaskIndex(0), SubtaskIndex(1), SubtaskIndex(2)


@pytest.fixture
def epoch() -> OperatorEpoch:
    running = OperatorEpoch(Epoch(0), BarrierId(1))
    running.begun({S0: events("a"), S2: events("b")})
    return running


def acknowledge(epoch: OperatorEpoch, subtask: int, task: int, state: bytes = b"s", outbox: str = "") -> None:
    participant = epoch.participant(SubtaskIndex(subtask))
    assert participant is not None
    participant.acknowledge(Acknowledge(attempt(subtask, task=task), state, events(outbox)))


def test_an_epoch_begins_without_inputs_and_freezes_them_once() -> None:
    epoch = OperatorEpoch(Epoch(0), BarrierId(1))
    phases = [epoch.phase]
    epoch.begun({S0: events("a")})
    assert [*phases, epoch.phase] == [Phase.BEGINNING, Phase.RUNNING]
    with pytest.raises(InvalidTransition):
        epoch.begun({S0: events("b")})
    assert epoch.inputs == {S0: events("a")}


def test_a_subtask_takes_part_when_an_attempt_says_hello(epoch: OperatorEpoch) -> None:
    assert epoch.participant(S0) is None
    epoch.hello(attempt(0, task=7))
    participant = epoch.participant(S0)
    assert participant is not None
    assert participant.state is Participation.RUNNING
    assert participant.alive == {7}


def test_attempts_of_one_subtask_are_alive_together(epoch: OperatorEpoch) -> None:
    epoch.hello(attempt(0, task=7))
    epoch.hello(attempt(0, task=8))
    participant = epoch.participant(S0)
    assert participant is not None
    assert participant.alive == {7, 8}
    acknowledge(epoch, 0, task=8)
    assert participant.alive == {7}


def test_an_ack_without_a_hello_is_refused_and_changes_nothing() -> None:
    participant = Participant()
    with pytest.raises(InvalidTransition, match="subtask: input ACK is not allowed in state ABSENT"):
        participant.acknowledge(Acknowledge(attempt(), b"s"))
    assert participant == Participant()


def test_the_later_ack_replaces_the_earlier_one(epoch: OperatorEpoch) -> None:
    for task in (7, 8):
        epoch.hello(attempt(0, task=task))
        acknowledge(epoch, 0, task, state=b"s%d" % task)
    [(subtask, participant, ack)] = epoch.acked()
    assert (subtask, ack.state) == (S0, b"s8")
    assert participant.differed


@pytest.mark.parametrize(
    ("state", "outbox", "differs"),
    [(b"s", "x", False), (b"other", "x", True), (b"s", "y", True), (b"s", "", True)],
)
def test_a_second_ack_is_compared_with_the_first(
    epoch: OperatorEpoch, state: bytes, outbox: str, differs: bool
) -> None:
    for task, (its_state, its_outbox) in enumerate([(b"s", "x"), (state, outbox)]):
        epoch.hello(attempt(0, task=task))
        acknowledge(epoch, 0, task, its_state, its_outbox)
    participant = epoch.participant(S0)
    assert participant is not None
    assert participant.differed is differs


def test_acks_are_listed_in_the_order_of_the_subtasks(epoch: OperatorEpoch) -> None:
    for subtask in (2, 0, 1):
        epoch.hello(attempt(subtask, task=subtask))
        if subtask != 1:
            acknowledge(epoch, subtask, task=subtask)
    assert [subtask for subtask, _, _ in epoch.acked()] == [S0, S2]


def test_a_hello_without_an_ack_is_unconsumed_output(epoch: OperatorEpoch) -> None:
    for subtask in (2, 1, 0):
        epoch.hello(attempt(subtask, task=subtask))
    acknowledge(epoch, 1, task=1)
    assert epoch.unconsumed() == [S0, S2]


def test_inputs_of_subtasks_without_rows_are_returned(epoch: OperatorEpoch) -> None:
    epoch.hello(attempt(0))
    assert epoch.returned() == {S2: events("b")}


def test_an_attempt_after_the_ack_leaves_the_subtask_acknowledged(epoch: OperatorEpoch) -> None:
    epoch.hello(attempt(0, task=1))
    acknowledge(epoch, 0, task=1)
    epoch.hello(attempt(0, task=2))
    assert epoch.unconsumed() == []


def test_a_settled_epoch_takes_no_further_input(epoch: OperatorEpoch) -> None:
    epoch.step(PhaseInput.SETTLE)
    for input_ in PhaseInput:
        with pytest.raises(InvalidTransition, match=f"epoch: input {input_.name} is not allowed in state SETTLED"):
            epoch.step(input_)
    assert epoch.phase is Phase.SETTLED
