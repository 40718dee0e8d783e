"""Where a query stands: every pair of its table."""

from __future__ import annotations

import itertools

import pytest

from coord_control.errors import InvalidTransition
from coord_control.protocol.query_state import TRANSITIONS, QueryInput, QueryState, next_state

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
