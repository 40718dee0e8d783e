"""Every pair of the two tables of an epoch."""

from __future__ import annotations

import copy
import itertools

import pytest

from coord_control.errors import InvalidTransition
from coord_control.ids import BarrierId, Epoch
from coord_control.protocol.epoch import (
    PARTICIPATION,
    PHASES,
    Input,
    OperatorEpoch,
    Participant,
    Participation,
    Phase,
    PhaseInput,
)

PHASE_PAIRS = list(itertools.product(Phase, PhaseInput))
PARTICIPATION_PAIRS = list(itertools.product(Participation, Input))

WAYS_TO_PHASES = {
    Phase.BEGINNING: [],
    Phase.RUNNING: [PhaseInput.BEGUN],
    Phase.SETTLED: [PhaseInput.BEGUN, PhaseInput.SETTLE],
    Phase.FAILED: [PhaseInput.FAIL],
}
WAYS_TO_PARTICIPATION = {
    Participation.ABSENT: [],
    Participation.RUNNING: [Input.HELLO],
    Participation.ACKED: [Input.HELLO, Input.ACK],
}


def epoch_in(phase: Phase) -> OperatorEpoch:
    epoch = OperatorEpoch(Epoch(3), BarrierId(7))
    for input_ in WAYS_TO_PHASES[phase]:
        epoch.step(input_)
    return epoch


def participant_in(state: Participation) -> Participant:
    participant = Participant()
    for input_ in WAYS_TO_PARTICIPATION[state]:
        participant.step(input_)
    return participant


def everything(epoch: OperatorEpoch) -> dict[str, object]:
    return {slot: copy.deepcopy(getattr(epoch, slot)) for slot in OperatorEpoch.__slots__}


def test_every_state_can_be_reached() -> None:
    assert [epoch_in(phase).phase for phase in Phase] == list(Phase)
    assert [participant_in(state).state for state in Participation] == list(Participation)


@pytest.mark.parametrize(("phase", "input_"), [pair for pair in PHASE_PAIRS if pair in PHASES])
def test_a_legal_phase_pair_leads_where_the_table_says(phase: Phase, input_: PhaseInput) -> None:
    epoch = epoch_in(phase)
    epoch.step(input_)
    assert epoch.phase is PHASES[phase, input_]


@pytest.mark.parametrize(("phase", "input_"), [pair for pair in PHASE_PAIRS if pair not in PHASES])
def test_any_other_phase_pair_is_refused_and_changes_nothing(phase: Phase, input_: PhaseInput) -> None:
    epoch = epoch_in(phase)
    before = everything(epoch)
    with pytest.raises(InvalidTransition) as raised:
        epoch.step(input_)
    assert (raised.value.machine, raised.value.state, raised.value.input) == ("epoch", phase, input_)
    assert str(raised.value) == (
        f"epoch: input {input_.name} is not allowed in state {phase.name}; nothing was changed"
    )
    assert everything(epoch) == before


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PARTICIPATION_PAIRS if pair in PARTICIPATION])
def test_a_legal_subtask_pair_leads_where_the_table_says(state: Participation, input_: Input) -> None:
    participant = participant_in(state)
    participant.step(input_)
    assert participant.state is PARTICIPATION[state, input_]


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PARTICIPATION_PAIRS if pair not in PARTICIPATION])
def test_any_other_subtask_pair_is_refused_and_changes_nothing(state: Participation, input_: Input) -> None:
    participant = participant_in(state)
    before = copy.deepcopy(participant)
    with pytest.raises(InvalidTransition) as raised:
        participant.step(input_)
    assert (raised.value.machine, raised.value.state, raised.value.input) == ("subtask", state, input_)
    assert participant == before


def test_an_ended_epoch_takes_nothing() -> None:
    assert {phase for phase, _ in PHASES} == {Phase.BEGINNING, Phase.RUNNING}
