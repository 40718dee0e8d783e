from __future__ import annotations

from coord_control.ids import OperatorUid
from coord_control.protocol.status import OperatorStatus, operator_statuses
from tests.core_kit import OP, QUERY, Stage


def status(stage: Stage) -> OperatorStatus:
    (found,) = operator_statuses(stage.core, {OperatorUid(OP): QUERY}, stage.now)
    return found


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


def test_what_subtasks_have_sent_waits_for_the_commit(stage: Stage) -> None:
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.ack(0, 0, 1, outbox="x y")
    assert [each.outbox for each in status(stage).gateways] == [2, 0]
    stage.commit(0)
    assert [each.outbox for each in status(stage).gateways] == [0, 0]


def test_bytes_wait_before_and_behind_a_barrier(stage: Stage) -> None:
    stage.send(0, "abc")
    stage.hello(1, 0, 1)
    stage.snapshot()
    stage.send(1, "de")
    assert [each.waiting_bytes for each in status(stage).gateways] == [3, 2]  # abc returns if subtask 0 has no rows
    stage.hello(0, 0, 2)
    assert [each.waiting_bytes for each in status(stage).gateways] == [0, 2]


def test_blocked_events_say_for_how_long_and_because_of_what(stage: Stage) -> None:
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.send(0, "a")
    stage.now += 1.5
    before = status(stage)
    assert (before.gateways[0].blocked_age_seconds, before.blocked_by_epochs) == (1.5, 1)
    assert dict(before.blocked_by_checkpoints) == {}
    stage.trigger_checkpoint(7)
    stage.snapshot()
    stage.send(0, "b")
    stage.send(1, "c")
    both = status(stage)
    assert (both.blocked_by_epochs, dict(both.blocked_by_checkpoints)) == (1, {7: 2})
    stage.ack(0, 0, 1)
    stage.commit(0)
    after = status(stage)
    assert (after.blocked_by_epochs, dict(after.blocked_by_checkpoints)) == (0, {})
    assert after.gateways[0].blocked_age_seconds == 0.0


def test_totals_of_blocked_events_are_known_by_cause_and_outlive_a_restart_of_the_query(stage: Stage) -> None:
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.send(0, "a")
    stage.now += 1.5
    stage.trigger_checkpoint(7)
    stage.snapshot()
    stage.send(0, "b")
    stage.send(1, "c")
    stage.now += 2.0
    before = status(stage)
    assert (before.blocked_events_total, before.checkpoint_blocked_events_total) == (3, 2)
    assert (before.blocked_seconds_total, before.checkpoint_blocked_seconds_total) == (5.5, 4.0)
    stage.end_run()
    ended = status(stage)
    assert (ended.checkpoint_blocked_events_total, ended.checkpoint_blocked_seconds_total) == (2, 4.0)


def test_what_was_blocked_stays_counted_when_the_query_is_restarted(stage: Stage) -> None:
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.send(0, "a")
    stage.now += 2.0
    before = status(stage)
    assert (before.blocked_events_total, before.blocked_seconds_total) == (1, 2.0)
    stage.end_run()
    ended = status(stage)
    assert (ended.blocked_events_total, ended.blocked_seconds_total) == (1, 2.0)
    stage.start()
    stage.now += 5.0
    again = status(stage)
    assert (again.blocked_events_total, again.blocked_seconds_total) == (1, 2.0)


def test_an_epoch_is_measured_from_its_first_hello_to_its_commit(stage: Stage) -> None:
    stage.hello(0, 0, 1)
    stage.now += 1.0
    stage.snapshot()
    stage.now += 2.0
    stage.ack(0, 0, 1)
    stage.now += 4.0
    stage.commit(0)
    totals = status(stage).totals
    assert [each.seconds for each in (totals.begin, totals.ack, totals.settle, totals.epoch)] == [1.0, 2.0, 4.0, 7.0]
    assert (totals.snapshot.seconds, totals.snapshot.count, totals.epoch.count) == (1.0, 1, 1)


def test_an_epoch_that_is_run_again_has_no_begin_of_its_own(stage: Stage) -> None:
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.end_run()
    stage.start()
    stage.hello(0, 0, 2)
    stage.now += 3.0
    stage.ack(0, 0, 2)
    stage.commit(0)
    totals = status(stage).totals
    assert (totals.begin.count, totals.ack.count, totals.epoch.seconds) == (0, 1, 3.0)


def test_an_epoch_that_nobody_had_to_run_again_is_not_measured(stage: Stage) -> None:
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.ack(0, 0, 1, outbox="x")
    stage.end_run()
    stage.start()
    assert [each.outbox for each in status(stage).gateways] == [1, 0]
    stage.commit(0)
    totals = status(stage).totals
    assert (totals.epochs, totals.epoch.count) == (1, 0)
