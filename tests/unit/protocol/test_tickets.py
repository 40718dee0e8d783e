"""Requests and tickets: what goes together, who goes first, and every step of a ticket."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from coord_control.errors import InvalidName, InvalidTransition
from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.tickets import (
    TRANSITIONS,
    CheckpointOutcome,
    CheckpointRequest,
    Ticket,
    TicketId,
    TicketInput,
    TicketState,
)

MANUAL = CheckpointRequest()
PERIODIC = CheckpointRequest(periodic=True)
SAVEPOINT = CheckpointRequest(kind=CheckpointKind.SAVEPOINT)
PAIRS = list(itertools.product(TicketState, TicketInput))


def ticket_in(state: TicketState) -> Ticket:
    ticket = Ticket(TicketId(4), MANUAL, 10.0)
    if state is TicketState.QUEUED:
        return ticket
    ticket = ticket.started(CheckpointId(7), 11.0)
    if state is TicketState.ABORTING:
        return ticket.aborted(FailureReason.EXPIRED, "after 1 s", 12.0)
    return ticket.completed("/path", 13.0) if state is TicketState.ENDED else ticket


def give(ticket: Ticket, input_: TicketInput) -> Ticket:
    inputs: dict[TicketInput, Callable[[], Ticket]] = {
        TicketInput.START: lambda: ticket.started(CheckpointId(9), 20.0),
        TicketInput.ABORT: lambda: ticket.aborted(FailureReason.ABORTED, "detail", 20.0),
        TicketInput.COMPLETE: lambda: ticket.completed("/new", 20.0),
        TicketInput.FAIL: lambda: ticket.failed(FailureReason.DISK_FULL, "detail", 20.0),
    }
    return inputs[input_]()


# Requests.


def test_savepoints_go_before_what_people_ask_for_and_that_before_what_schedules_ask_for() -> None:
    assert sorted([PERIODIC, SAVEPOINT, MANUAL], key=lambda each: each.rank) == [SAVEPOINT, MANUAL, PERIODIC]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": CheckpointKind.SAVEPOINT, "periodic": True}, "ask for a checkpoint"),
        ({"target": "/here"}, "ask for a savepoint"),
        ({"key": ""}, "left out"),
        ({"kind": CheckpointKind.SAVEPOINT, "target": ""}, "left out"),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CheckpointRequest(**values)


def test_a_label_becomes_part_of_a_folders_name() -> None:
    assert CheckpointRequest(label="before-2.0").label == "before-2.0"
    with pytest.raises(InvalidName, match=r"label name '\.\./up' is invalid"):
        CheckpointRequest(label="../up")


@pytest.mark.parametrize("label", ["2", "latest"])
def test_a_label_does_not_name_another_checkpoint(label: str) -> None:
    """Bug: `dispose 2` removed the checkpoint of that id, and not the savepoint of that label."""
    with pytest.raises(InvalidName, match="Not 'latest', nor digits alone: those name other checkpoints"):
        CheckpointRequest(label=label)


def test_who_asks_and_why_makes_no_difference() -> None:
    assert CheckpointRequest(cause="a", requested_by="x").is_same(CheckpointRequest(cause="b", key="k"))
    assert not MANUAL.is_same(SAVEPOINT)
    assert not MANUAL.is_same(CheckpointRequest(label="l"))
    assert not SAVEPOINT.is_same(CheckpointRequest(kind=CheckpointKind.SAVEPOINT, target="/t"))


def test_the_message_is_the_sentence_and_the_detail() -> None:
    assert CheckpointOutcome(path="/p").message == ""
    assert CheckpointOutcome(FailureReason.ABORTED).message == FailureReason.ABORTED.sentence
    assert CheckpointOutcome(FailureReason.ABORTED, "by ada").message == f"{FailureReason.ABORTED.sentence} (by ada)"


# Steps.


@pytest.mark.parametrize("state", TicketState)
def test_every_state_can_be_reached(state: TicketState) -> None:
    assert ticket_in(state).state is state


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PAIRS if pair in TRANSITIONS])
def test_a_legal_pair_leads_where_the_table_says(state: TicketState, input_: TicketInput) -> None:
    assert give(ticket_in(state), input_).state is TRANSITIONS[state, input_]


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PAIRS if pair not in TRANSITIONS])
def test_any_other_pair_is_refused_with_all_three_parts_named(state: TicketState, input_: TicketInput) -> None:
    with pytest.raises(InvalidTransition) as raised:
        give(ticket_in(state), input_)
    assert str(raised.value) == (
        f"checkpoint: input {input_.name} of ticket 4 is not allowed in state {state.name}; nothing was changed"
    )


@pytest.mark.parametrize(("state", "input_"), [pair for pair, target in TRANSITIONS.items() if pair[0] is target])
def test_late_news_changes_nothing(state: TicketState, input_: TicketInput) -> None:
    assert give(ticket_in(state), input_) == ticket_in(state)


def test_a_ticket_has_an_outcome_exactly_when_it_has_ended() -> None:
    tickets = [give(ticket_in(state), input_) for state, input_ in TRANSITIONS] + [*map(ticket_in, TicketState)]
    for ticket in tickets:
        ended = ticket.state is TicketState.ENDED
        assert ((ticket.outcome is not None), (ticket.ended_at is not None)) == (ended, ended)


def test_the_numbers_and_times_of_a_completed_one() -> None:
    ticket = ticket_in(TicketState.ENDED)
    assert (ticket.checkpoint, ticket.requested_at, ticket.started_at, ticket.ended_at) == (7, 10.0, 11.0, 13.0)
    assert ticket.is_completed
    assert ticket.outcome == CheckpointOutcome(path="/path")


def test_an_abort_ends_what_waits_and_is_a_wish_for_what_runs() -> None:
    waiting = ticket_in(TicketState.QUEUED).aborted(FailureReason.ABORTED, "", 20.0)
    running = ticket_in(TicketState.RUNNING).aborted(FailureReason.ABORTED, "", 20.0)
    assert (waiting.outcome, waiting.ended_at, waiting.checkpoint) == (
        CheckpointOutcome(FailureReason.ABORTED),
        20.0,
        None,
    )
    assert (running.outcome, running.abort) == (None, CheckpointOutcome(FailureReason.ABORTED))


def test_what_it_was_aborted_for_goes_before_what_happened_then() -> None:
    failed = ticket_in(TicketState.ABORTING).failed(FailureReason.STORAGE_ERROR, "no", 20.0)
    assert failed.outcome == CheckpointOutcome(FailureReason.EXPIRED, "after 1 s")
    assert not failed.is_completed


def test_an_abort_may_come_too_late() -> None:
    assert ticket_in(TicketState.ABORTING).completed("/path", 20.0).is_completed
