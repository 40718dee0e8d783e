"""Coordinators without threads of their own: what they save is what they go back to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from coord_control.coordinators import SnapshotCoordinator, StatefulCoordinator
from coord_control.errors import StateInvalid


class Limits(BaseModel):
    by_carrier: dict[str, int] = {}
    budget: int = 10


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)

    count: int = Field(default=0, alias="Count")


class Context:
    """The part of a coordinator's context that is needed here."""

    operator = "op"
    parallelism = 2

    def send(self, subtask: int, event: BaseModel) -> None:
        raise AssertionError("nothing is sent here")

    def broadcast(self, event: BaseModel) -> None:
        raise AssertionError("nothing is sent here")

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        function(*args)

    def control_event_applied(self) -> None:
        raise AssertionError("nothing comes from outside")

    def run_in_background(self, function: Callable[[], Any], then: Callable[[Any], object] | None = None) -> None:
        raise AssertionError("nothing runs here")

    def fail_job(self, error: BaseException) -> None:
        raise error


class Result:
    """Keeps the answer to a snapshot."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def complete(self, data: bytes) -> None:
        self.data = data

    def fail(self, error: BaseException) -> None:
        raise error


def snapshot(coordinator: SnapshotCoordinator) -> bytes:
    result = Result()
    coordinator.checkpoint_coordinator(1, result)
    assert result.data is not None
    return result.data


def test_the_state_of_one_is_the_state_of_the_next() -> None:
    first = StatefulCoordinator(Limits())
    first.state.by_carrier["AA"] = 3
    first.state.budget = 4
    data = snapshot(first)
    first.state.budget = 5
    second = StatefulCoordinator(Limits())
    second.reset_to_checkpoint(1, data)
    assert second.state == Limits(by_carrier={"AA": 3}, budget=4)


def test_without_a_checkpoint_it_begins_as_it_was_made() -> None:
    initial = Limits(by_carrier={"AA": 1})
    coordinator = StatefulCoordinator(initial)
    coordinator.state.by_carrier["AA"] = 2
    coordinator.reset_to_checkpoint(-1, None)
    assert coordinator.state == Limits(by_carrier={"AA": 1})
    coordinator.state.by_carrier["AA"] = 3
    coordinator.reset_to_checkpoint(-1, None)
    assert coordinator.state == Limits(by_carrier={"AA": 1})


def test_fields_with_aliases_are_kept() -> None:
    first = StatefulCoordinator(Aliased.model_validate({"Count": 3}))
    second = StatefulCoordinator(Aliased())
    second.reset_to_checkpoint(1, snapshot(first))
    assert second.state.count == 3


def test_a_state_that_the_model_does_not_accept_any_more_is_named() -> None:
    coordinator = StatefulCoordinator(Limits())
    coordinator.context = Context()
    with pytest.raises(
        StateInvalid, match="operator 'op': the state of the coordinator is not a valid Limits"
    ) as caught:
        coordinator.reset_to_checkpoint(7, b'{"budget": "all of it"}')
    assert "budget" in caught.value.problems
    assert coordinator.state == Limits()


def test_a_state_that_could_not_be_restored_is_not_saved() -> None:
    class Positive(BaseModel):
        count: int = Field(default=1, ge=0)
        most: float | None = None

    coordinator = StatefulCoordinator(Positive())
    coordinator.context = Context()
    coordinator.state.count = -1
    with pytest.raises(StateInvalid, match=r"coordinator is not a valid Positive: (?s:.*)count"):
        snapshot(coordinator)
    coordinator.state = Positive(most=float("inf"))
    with pytest.raises(StateInvalid, match="field most: JSON has no form for infinity and NaN"):
        snapshot(coordinator)


def test_a_coordinator_of_bytes_only_says_them() -> None:
    class Counter(SnapshotCoordinator):
        count = 0

        def snapshot(self) -> bytes:
            return b"%d" % self.count

        def restore(self, data: bytes | None) -> None:
            self.count = 0 if data is None else int(data)

    first, second = Counter(), Counter()
    first.count = 12
    second.reset_to_checkpoint(1, snapshot(first))
    assert second.count == 12
    second.reset_to_checkpoint(-1, None)
    assert second.count == 0
