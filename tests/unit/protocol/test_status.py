from __future__ import annotations

import pytest

from coord_control.ids import OperatorUid
from coord_control.protocol.status import OperatorStatus, operator_statuses
from tests.core_kit import OP, QUERY, Stage, spec


def status(stage: Stage) -> OperatorStatus:
    (found,) = operator_statuses(stage.core, {OperatorUid(OP): QUERY}, stage.now)
    return found


@pytest.fixture
def stage() -> Stage:
    stage = Stage([spec()])
    stage.start()
    return stage


def test_an_operator_without_an_epoch_has_open_gateways(stage: Stage) -> None:
    found = status(stage)
    assert (found.uid, found.query, found.epoch) == (OP, QUERY, None)
    assert [(each.subtask, each.is_open, each.blocked) for each in found.gateways] == [(0, True, 0), (1, True, 0)]


def test_what_waits_for_the_next_epoch_is_in_the_mailbox(stage: Stage) -> None:
    stage.send(1, "a")
    stage.send(1, "b")
    assert [each.mailbox for each in status(stage).gateways] == [0, 2]


def test_events_behind_a_closed_gateway_are_blocked_for_as_long_as_it_is(stage: Stage) -> None:
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.send(0, "a")
    stage.now += 2.0
    closed = status(stage).gateways[0]
    assert (closed.is_open, closed.blocked, closed.blocked_total, closed.blocked_seconds) == (False, 1, 1, 2.0)
    assert status(stage).epoch == 0
    stage.ack(0, 0, 1)
    opened = status(stage).gateways[0]
    assert (opened.is_open, opened.blocked, opened.blocked_total, opened.mailbox) == (True, 0, 1, 1)


def test_totals_are_a_copy(stage: Stage) -> None:
    before = status(stage).totals
    stage.send(0, "a")
    assert status(stage).totals != before


def test_an_operator_whose_query_does_not_run_has_no_gateways(stage: Stage) -> None:
    stage.end_run()
    assert status(stage).gateways == ()


def test_an_operator_that_the_core_does_not_know_is_left_out(stage: Stage) -> None:
    assert operator_statuses(stage.core, {OperatorUid("other"): QUERY}, 0.0) == ()
