"""States and waiting events for another number of subtasks, by a function of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from coord_control.durable.restore.seeds import Redistribution
from coord_control.errors import EventInvalid, RescaleFailed, StateInvalid
from coord_control.ids import SubtaskIndex
from coord_control.protocol.records import EventBatch
from coord_control.spark.job.rescale import RescaleFunction, SubtaskSnapshot, rescaling
from coord_control.spark.worker.model_codec import EventTypes, StateType


class Counts(BaseModel):
    counts: dict[str, int] = {}


class Limit(BaseModel):
    limit: int


class Other(BaseModel):
    pass


OLD = Redistribution(
    {SubtaskIndex(0): b'{"counts":{"a":1}}', SubtaskIndex(1): None},
    {SubtaskIndex(1): (EventBatch(0, 2, b'{"limit":1},{"limit":2}'),)},
)


def rescaled(function: RescaleFunction, parallelism: int, old: Redistribution = OLD) -> Redistribution:
    wrapped = rescaling("op", StateType("op", Counts), EventTypes("op", "down", [Limit]), parallelism, function)
    return wrapped(old, 3)


def merge(subtasks: list[SubtaskSnapshot[Counts]], parallelism: int) -> Sequence[SubtaskSnapshot[Counts]]:
    counts = {key: count for one in subtasks for key, count in one.state.counts.items()}
    events = [event for one in subtasks for event in one.events]
    return [SubtaskSnapshot(Counts(counts=counts), events) for _ in range(parallelism)]


def test_the_function_sees_models_of_all_old_subtasks_in_order() -> None:
    seen: list[Any] = []

    def look(subtasks: list[SubtaskSnapshot[Any]], parallelism: int) -> Sequence[SubtaskSnapshot[Any]]:
        seen.extend(subtasks)
        return [SubtaskSnapshot(Counts()) for _ in range(parallelism)]

    assert rescaled(look, 1).events == {}
    assert seen == [
        SubtaskSnapshot(Counts(counts={"a": 1}), []),
        SubtaskSnapshot(Counts(), [Limit(limit=1), Limit(limit=2)]),
        SubtaskSnapshot(Counts(), []),
    ]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_the_new_subtasks_get_what_it_returns(parallelism: int) -> None:
    found = rescaled(merge, parallelism)
    assert found.states == dict.fromkeys(range(parallelism), b'{"counts":{"a":1}}')
    assert found.events == dict.fromkeys(range(parallelism), OLD.events[SubtaskIndex(1)])


def failing(subtasks: object, parallelism: int) -> Sequence[SubtaskSnapshot[Any]]:
    raise KeyError("b")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (failing, "raised KeyError: 'b'"),
        (lambda old, n: old, "returned 3 values, and must return 2 of SubtaskSnapshot"),
        (lambda old, n: [one.state for one in old[:n]], "must return 2 of SubtaskSnapshot"),
    ],
)
def test_a_function_that_does_not_give_what_is_needed_is_told_so(function: RescaleFunction, problem: str) -> None:
    with pytest.raises(RescaleFailed, match=problem):
        rescaled(function, 2)


def test_what_it_gives_must_fit_the_models() -> None:
    with pytest.raises(StateInvalid, match="was replaced by a Other"):
        rescaled(lambda old, n: [SubtaskSnapshot(Other())], 1)
    with pytest.raises(EventInvalid):
        rescaled(lambda old, n: [SubtaskSnapshot(Counts(), [Limit.model_construct(limit="x")])], 1)
    with pytest.raises(StateInvalid, match="the state of subtask 0 is not a valid Counts"):
        rescaled(merge, 1, Redistribution({SubtaskIndex(0): b'{"counts":1}'}, {}))
