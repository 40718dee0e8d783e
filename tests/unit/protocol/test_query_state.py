"""Where a query stands, what is wanted of it, and what follows: every pair of the tables."""

from __future__ import annotations

import itertools

import pytest

from coord_control.errors import InvalidTransition
from coord_control.protocol.query_state import (
    FOLLOWS,
    TRANSITIONS,
    WISHES,
    QueryInput,
    QueryState,
    RunEnd,
    Wish,
    WishInput,
    next_state,
    shall_wait,
)

PAIRS = list(itertools.product(QueryState, QueryInput))


def reached_from(state: QueryState) -> set[QueryState]:
    """All states that may follow, at once or later."""
    reached: set[QueryState] = set()
    todo = [state]
    while todo:
        found = {target for (source, _), target in TRANSITIONS.items() if source is todo[-1]} - reached
        todo.pop()
        reached |= found
        todo += found
    return reached


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PAIRS if pair in TRANSITIONS])
def test_a_legal_pair_leads_where_the_table_says(state: QueryState, input_: QueryInput) -> None:
    assert next_state(state, input_) is TRANSITIONS[state, input_]


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PAIRS if pair not in TRANSITIONS])
def test_any_other_pair_is_refused(state: QueryState, input_: QueryInput) -> None:
    with pytest.raises(InvalidTransition, match=f"query: input {input_.name} is not allowed in state {state.name}"):
        next_state(state, input_)


def test_a_query_that_runs_may_come_to_any_state() -> None:
    assert reached_from(QueryState.RUNNING) == set(QueryState)


@pytest.mark.parametrize("state", QueryState)
def test_what_is_not_active_has_ended_and_stays_so(state: QueryState) -> None:
    assert bool(reached_from(state)) is state.is_active


@pytest.mark.parametrize("state", [state for state in QueryState if state.is_active])
def test_whatever_is_active_can_be_stopped_can_fail_and_can_run_again(state: QueryState) -> None:
    assert next_state(state, QueryInput.STOP) is QueryState.STOPPED
    assert next_state(state, QueryInput.FAIL) is QueryState.FAILED
    assert next_state(state, QueryInput.RUN) is QueryState.RUNNING


@pytest.mark.parametrize("state", [state for state in QueryState if state is not QueryState.RUNNING])
def test_only_a_query_that_runs_pauses_or_finishes(state: QueryState) -> None:
    for input_ in (QueryInput.PAUSE, QueryInput.FINISH):
        with pytest.raises(InvalidTransition):
            next_state(state, input_)


# What is wanted of it.


def test_every_pair_of_a_wish_and_its_inputs_is_in_the_table() -> None:
    assert WISHES.keys() == set(itertools.product(Wish, WishInput))


@pytest.mark.parametrize("input_", WishInput)
def test_a_stop_stays(input_: WishInput) -> None:
    assert WISHES[Wish.STOP, input_] is Wish.STOP


@pytest.mark.parametrize("wish", [Wish.RUN, Wish.PAUSE])
def test_a_pause_begins_and_ends_and_a_stop_overrides_it(wish: Wish) -> None:
    assert [WISHES[wish, input_] for input_ in WishInput] == [Wish.PAUSE, Wish.RUN, Wish.STOP]


@pytest.mark.parametrize(
    ("wish", "has_paused", "waits"),
    [
        (Wish.RUN, False, False),
        (Wish.RUN, True, False),
        (Wish.PAUSE, False, False),  # it runs its epoch again first
        (Wish.PAUSE, True, True),
        (Wish.STOP, False, False),
        (Wish.STOP, True, False),
    ],
)
def test_only_a_query_that_paused_waits_for_the_end_of_the_pause(wish: Wish, *, has_paused: bool, waits: bool) -> None:
    assert shall_wait(wish, has_paused=has_paused) is waits


# What follows the end of a run.


def test_every_pair_of_a_wish_and_an_end_is_in_the_table() -> None:
    assert FOLLOWS.keys() == set(itertools.product(Wish, RunEnd))


@pytest.mark.parametrize(("wish", "end"), FOLLOWS)
def test_what_follows_is_legal_for_a_query_that_runs(wish: Wish, end: RunEnd) -> None:
    assert (QueryState.RUNNING, FOLLOWS[wish, end]) in TRANSITIONS


@pytest.mark.parametrize("state", [QueryState.PAUSED, QueryState.RESTARTING])
@pytest.mark.parametrize(("wish", "end"), [pair for pair in FOLLOWS if pair[1] in (RunEnd.FAILED, RunEnd.FATAL)])
def test_a_failure_is_dealt_with_in_each_active_state(state: QueryState, wish: Wish, end: RunEnd) -> None:
    assert (state, FOLLOWS[wish, end]) in TRANSITIONS


@pytest.mark.parametrize("end", [end for end in RunEnd if end is not RunEnd.FATAL])
def test_a_query_that_shall_stop_stops_whichever_way_its_run_has_ended(end: RunEnd) -> None:
    assert FOLLOWS[Wish.STOP, end] is QueryInput.STOP


@pytest.mark.parametrize("wish", Wish)
def test_an_error_for_good_is_never_hidden(wish: Wish) -> None:
    assert FOLLOWS[wish, RunEnd.FATAL] is QueryInput.FAIL


def test_only_a_run_that_was_told_to_end_is_followed_by_a_pause() -> None:
    assert [pair for pair, input_ in FOLLOWS.items() if input_ is QueryInput.PAUSE] == [(Wish.PAUSE, RunEnd.REQUESTED)]


@pytest.mark.parametrize("wish", [Wish.RUN, Wish.PAUSE])
def test_a_query_that_was_not_to_stop_finishes_or_runs_again(wish: Wish) -> None:
    assert FOLLOWS[wish, RunEnd.FINISHED] is QueryInput.FINISH
    assert FOLLOWS[wish, RunEnd.FAILED] is QueryInput.RETRY


def test_a_run_that_was_told_to_end_for_a_pause_that_is_over_runs_on() -> None:
    assert FOLLOWS[Wish.RUN, RunEnd.REQUESTED] is QueryInput.RUN
