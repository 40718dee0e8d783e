"""Requests from outside, and committed states: what the core says, and when."""

from __future__ import annotations

from collections.abc import Mapping

from coord_control.ids import Epoch, OperatorUid, SubtaskIndex
from coord_control.protocol.messages import HandleRequests, ResetCoordinator
from coord_control.protocol.operator import OperatorStates
from tests.core_kit import OP, Stage
from tests.unit.protocol.job_kit import BROKEN

SUBTASKS = [SubtaskIndex(0), SubtaskIndex(1)]


def requested(stage: Stage, operator: str = OP) -> list[object]:
    stage.core.requested(OperatorUid(operator))
    return list(stage.execute().notices)


def states(stage: Stage) -> OperatorStates:
    found = stage.core.committed_states(OP, SUBTASKS)
    assert found is not None
    return found


def by_number(values: Mapping[SubtaskIndex, object]) -> dict[int, object]:
    return {int(subtask): value for subtask, value in values.items()}


def test_a_request_is_handed_over_while_the_query_runs(stage: Stage) -> None:
    assert requested(stage) == [HandleRequests(OP, 1)]
    stage.hello(0, 0, task=1)  # the coordinator owes its state: it may be asked all the same
    assert requested(stage) == [HandleRequests(OP, 1)]


def test_a_request_between_two_runs_is_not_handed_over() -> None:
    stage = Stage()
    assert requested(stage) == []
    stage.start()
    stage.end_run()
    assert requested(stage) == []
    stage.start()
    assert requested(stage) == [HandleRequests(OP, 2)]
    assert requested(stage, "unknown") == []


def test_a_request_to_a_query_that_has_failed_waits_for_its_next_run(stage: Stage) -> None:
    stage.core.coordinator_failed(OP, 1, BROKEN)
    stage.execute()
    assert requested(stage) == []
    assert stage.core.committed_states(OP, SUBTASKS) is None


def test_a_request_comes_behind_the_reset_of_its_run(stage: Stage) -> None:
    stage.end_run()
    stage.core.start_run(stage.core._query_of[OP].name, stage.facts, stage.now)
    stage.core.requested(OP)
    assert [type(notice) for notice in stage.execute().notices] == [ResetCoordinator, HandleRequests]


def test_committed_states_are_those_of_committed_epochs(stage: Stage) -> None:
    assert states(stage) == OperatorStates(Epoch(-1), None, dict.fromkeys(SUBTASKS), dict.fromkeys(SUBTASKS, 0))
    stage.hello(0, 0, task=1)
    stage.snapshot(b"S0")
    stage.ack(0, 0, task=1, state=b"s0")
    running = states(stage)
    assert (running.epoch, running.coordinator, by_number(running.subtasks)) == (-1, b"S0", {0: None, 1: None})
    stage.commit(0)
    settled = states(stage)
    assert (settled.epoch, settled.coordinator, by_number(settled.subtasks)) == (0, b"S0", {0: b"s0", 1: None})


def test_a_new_driver_shows_the_same_committed_states(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot(b"S0")
    stage.ack(0, 0, task=1, state=b"s0")
    stage.commit(0)
    before = states(stage)
    stage.new_driver()
    stage.start()
    assert states(stage) == before


def test_an_event_waits_until_an_epoch_that_has_taken_it_is_committed(stage: Stage) -> None:
    stage.send(0, "a")
    stage.send(1, "b")
    assert by_number(states(stage).waiting) == {0: 1, 1: 1}
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.send(0, "held back")
    assert by_number(states(stage).waiting) == {0: 2, 1: 1}
    stage.ack(0, 0, task=1)
    stage.commit(0)
    assert by_number(states(stage).waiting) == {0: 1, 1: 1}, "subtask 1 had no rows"


def test_the_number_of_events_from_outside_is_no_part_of_what_is_shown(stage: Stage) -> None:
    stage.core.control_event(OP, 1, 7)
    stage.hello(0, 0, task=1)
    stage.snapshot(b"S0")
    assert states(stage).coordinator == b"S0"
