"""Pages of committed states."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, Field, ValidationError

from coord_control.coordinators.requests import MAX_ANSWER_BYTES, MAX_STATES, CommittedStates, StatesPage
from coord_control.errors import NoSuchSubtask, StateInvalid
from coord_control.ids import NO_EPOCH, Epoch
from coord_control.protocol import operator
from coord_control.spark.job.states_page import states_page, wanted_subtasks
from coord_control.spark.loop.request_types import RequestTypes
from coord_control.spark.worker.model_codec import StateType
from tests.core_kit import OP


class Seen(BaseModel):
    late: int = Field(default=7, alias="Late")
    note: str = ""


SEEN = StateType(OP, Seen)


def page(
    request: CommittedStates, states: dict[int, bytes | None], coordinator: bytes | None = b'{"minutes":45}'
) -> StatesPage:
    """A page of an operator with as many subtasks as states."""
    wanted = wanted_subtasks(request, OP, len(states))
    found = operator.OperatorStates(
        Epoch(3), coordinator, {each: states[each] for each in wanted}, dict.fromkeys(wanted, 2)
    )
    made = states_page(request, found, SEEN, len(states))
    RequestTypes(OP).answer(request, made)  # it fits into an answer
    return made


def stored(note: str) -> bytes:
    return json.dumps({"late": 1, "note": note}).encode()


def test_states_are_shown_as_the_models_say() -> None:
    shown = page(CommittedStates(), {0: stored("x"), 1: None})
    assert (shown.epoch, shown.parallelism, shown.next_after) == (3, 2, None)
    assert (shown.coordinator, shown.coordinator_size) == ({"minutes": 45}, 14)
    assert [(each.subtask, each.state, each.size, each.waiting) for each in shown.subtasks] == [
        (0, {"late": 1, "note": "x"}, 24, 2),
        (1, {"late": 7, "note": ""}, 0, 2),
    ]


@pytest.mark.parametrize(
    ("data", "value"), [(b"\xff\0", "/wA="), (b"NaN", "TmFO"), (b"[1]", [1]), (None, None), (b"", "")]
)
def test_the_state_of_a_coordinator_is_json_or_base64(data: bytes | None, value: object) -> None:
    assert page(CommittedStates(), {0: None}, data).coordinator == value
    assert page(CommittedStates(coordinator=False), {0: None}, data).coordinator is None


def test_pages_follow_each_other_and_end() -> None:
    states: dict[int, bytes | None] = {number: stored(str(number)) for number in range(5)}
    seen: list[int] = []
    after: int | None = None
    for _ in range(3):
        shown = page(CommittedStates(limit=2, after=after), states)
        seen += [each.subtask for each in shown.subtasks]
        after = shown.next_after
    assert (seen, after) == ([0, 1, 2, 3, 4], None)
    assert page(CommittedStates(limit=0), states).subtasks == ()


def test_only_some_subtasks_are_shown() -> None:
    states: dict[int, bytes | None] = dict.fromkeys(range(5))
    shown = page(CommittedStates(subtasks=(4, 1, 1)), states)
    assert [each.subtask for each in shown.subtasks] == [1, 4]
    assert [each.subtask for each in page(CommittedStates(subtasks=(4, 1), after=1), states).subtasks] == [4]
    with pytest.raises(NoSuchSubtask):
        page(CommittedStates(subtasks=(5,)), states)


def test_a_page_ends_before_the_answer_is_too_large() -> None:
    large = MAX_ANSWER_BYTES // 3
    states: dict[int, bytes | None] = {number: stored("x" * large) for number in range(4)}
    first = page(CommittedStates(), states)
    assert [each.subtask for each in first.subtasks] == [0, 1]
    second = page(CommittedStates(after=first.next_after), states)
    assert ([each.subtask for each in second.subtasks], second.next_after) == ([2, 3], None)


def test_a_state_that_is_too_large_alone_is_left_out_and_its_size_is_shown() -> None:
    huge = stored("x" * MAX_ANSWER_BYTES)
    shown = page(CommittedStates(), {0: huge, 1: stored("y")}, huge)
    assert (shown.coordinator, shown.coordinator_size) == (None, len(huge))
    assert [(each.state, each.size) for each in shown.subtasks] == [
        (None, len(huge)),
        ({"late": 1, "note": "y"}, 24),
    ]


def test_a_coordinator_that_fills_the_answer_leaves_the_subtasks_to_the_next_page() -> None:
    full = json.dumps("x" * (MAX_ANSWER_BYTES - 2_000)).encode()
    states: dict[int, bytes | None] = {0: stored("y" * 1_000), 1: stored("z")}
    first = page(CommittedStates(), states, full)
    assert (first.coordinator_size, first.subtasks, first.next_after) == (len(full), (), -1)
    second = page(CommittedStates(after=first.next_after), states, full)
    assert (second.coordinator, [each.subtask for each in second.subtasks], second.next_after) == (None, [0, 1], None)


def test_without_subtasks_there_is_one_page() -> None:
    shown = page(CommittedStates(limit=0), {0: stored("y"), 1: stored("z")})
    assert (shown.coordinator, shown.subtasks, shown.next_after) == ({"minutes": 45}, (), None)


def test_nothing_is_committed_at_first() -> None:
    found = operator.OperatorStates(NO_EPOCH, None, {}, {})
    shown = states_page(CommittedStates(), found, SEEN, 0)
    assert (shown.epoch, shown.coordinator, shown.coordinator_size) == (None, None, 0)


def test_a_state_that_does_not_fit_its_model_is_named() -> None:
    with pytest.raises(StateInvalid, match="subtask 0"):
        page(CommittedStates(), {0: b'{"late": "many"}'})


def test_what_can_be_asked_for_is_bounded() -> None:
    for values in ({"limit": MAX_STATES + 1}, {"subtasks": range(MAX_STATES + 1)}, {"limit": -1}, {"other": 1}):
        with pytest.raises(ValidationError):
            CommittedStates.model_validate(values)
