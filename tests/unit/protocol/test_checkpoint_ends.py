"""Every way in which a checkpoint ends before it is complete: restarts, aborts, coordinators that refuse or hang."""

from __future__ import annotations

import pytest

from coord_control.errors import CoordinatorFailed, CoordinatorTimeout
from coord_control.ids import Epoch, OperatorUid
from coord_control.protocol.checkpoint import PendingCheckpoints
from coord_control.protocol.control_events import Sealed, unseal
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.messages import (
    AskSnapshot,
    Batch,
    CheckpointAborted,
    CheckpointComplete,
    CheckpointFailed,
    DeliverEvents,
    FailQuery,
    QueryCaptured,
)
from coord_control.protocol.records import Begin
from coord_control.protocol.recovery import Facts
from tests.core_kit import OP, QUERY, Stage, names, of_type, spec
from tests.unit.protocol.checkpoint_kit import (
    C1,
    C2,
    LOST,
    OTHER,
    S0,
    A,
    B,
    begun,
    captured,
    cut,
    ended,
    failed,
    mailboxes,
    started,
    trigger,
    with_another_query,
)

# Restarts.


@pytest.mark.parametrize("how", ["ended", "failing", "never started"])
def test_a_checkpoint_of_a_query_that_does_not_run_fails_at_once_and_asks_nobody(how: str) -> None:
    stage = Stage(specs=[spec("a", 1)])
    stage.core.add_query(OTHER, "id-of-other", [spec("b", 1)])
    stage.start()
    if how == "ended":
        stage.core.start_run(OTHER, Facts((), Epoch(-1), Epoch(-1)), 0.0)
        stage.core.end_run(OTHER, None, 0.0)
    elif how == "failing":
        stage.core.start_run(OTHER, Facts((), Epoch(-1), Epoch(-1)), 0.0)
        stage.core.coordinator_failed(B, 1, CoordinatorFailed("b", "handle_event_from_operator", "boom"))
    stage.execute()
    barrier = trigger(stage)
    batch = stage.execute()
    assert failed(batch).reason is FailureReason.QUERY_RESTARTING
    assert failed(batch).barrier == barrier
    assert "'other'" in failed(batch).detail
    assert len(batch.notices) == 1
    assert stage.core.checkpoint_progress(C1) is None


def test_the_end_of_a_run_fails_what_was_not_captured_of_it_in_all_queries() -> None:
    stage = with_another_query()
    barrier = trigger(stage)
    stage.execute()
    stage.snapshot(b"CB", "b")
    stage.send(0, "x", "b")
    batch = stage.end_run()
    assert failed(batch).reason is FailureReason.QUERY_FAILED
    assert failed(batch).barrier == barrier
    assert QUERY in failed(batch).detail
    assert set(of_type(CheckpointAborted, batch)) == {CheckpointAborted(A, barrier), CheckpointAborted(B, barrier)}
    assert not stage.checkpoint_stored(1)


def test_what_was_captured_of_a_query_stays_good_when_its_run_ends() -> None:
    stage = with_another_query()
    barrier = trigger(stage)
    stage.execute()
    stage.snapshot(b"CA", "a")
    assert of_type(CheckpointFailed, stage.end_run()) == []
    assert captured(stage.snapshot(b"CB", "b")).query == OTHER
    stage.start()
    assert stage.checkpoint_stored(1).notices == [CheckpointComplete(B, barrier)], "the other one has been reset"


def test_a_restarted_query_is_not_told_of_an_abort_either() -> None:
    stage = with_another_query()
    barrier = trigger(stage)
    stage.execute()
    stage.snapshot(b"CA", "a")
    stage.end_run()
    stage.start()
    assert stage.abort_checkpoint(1).notices == [CheckpointAborted(B, barrier)]


def test_an_answer_from_before_the_restart_has_not_happened() -> None:
    stage = started()
    stage.trigger_checkpoint(1)
    late = stage.asked[OP]
    stage.end_run()
    stage.start()
    stage.core.snapshot_completed(OP, late.incarnation, late.barrier, b"late", 0.0)
    assert not stage.execute()
    stage.trigger_checkpoint(2)
    assert cut(stage.snapshot(b"C2")).coordinator_state == b"C2"


def test_when_the_store_is_lost_every_checkpoint_under_way_fails() -> None:
    stage = with_another_query()
    barriers = trigger(stage, 1), trigger(stage, 2, [OTHER])
    stage.execute()
    stage.core.fail_all(LOST, 0.0)
    batch = stage.execute()
    found = of_type(CheckpointFailed, batch)
    assert [notice.checkpoint for notice in found] == [C1, C2]
    assert {notice.reason for notice in found} == {FailureReason.QUERY_FAILED}
    assert tuple(notice.barrier for notice in found) == barriers
    assert {notice.query for notice in of_type(FailQuery, batch)} == {QUERY, OTHER}
    assert of_type(CheckpointAborted, batch) == [], "that they were asked may have been lost; they are reset next"


def test_a_failure_that_nobody_has_heard_of_yet_is_told_although_the_store_is_lost() -> None:
    stage = started()
    stage.trigger_checkpoint(1)
    stage.now = 61.0
    stage.core.tick(stage.now)
    stage.core.fail_all(LOST, stage.now)
    assert failed(stage.execute()).reason is FailureReason.COORDINATOR_TIMEOUT


# Aborts.


def test_an_abort_before_the_coordinator_is_asked_is_not_told_to_it() -> None:
    stage = started()
    stage.trigger_checkpoint(1)
    assert not stage.trigger_checkpoint(2)
    assert not stage.abort_checkpoint(2)
    assert captured(stage.snapshot(b"C1")).checkpoint == C1
    assert stage.core.operators()[0].channel.asked is None, "and it is never asked"


def test_an_abort_between_question_and_answer_closes_nothing_and_lets_the_next_one_begin() -> None:
    stage = started()
    stage.trigger_checkpoint(1)
    late = stage.asked[OP]
    stage.trigger_checkpoint(2)
    batch = stage.abort_checkpoint(1)
    assert [type(notice) for notice in batch.notices] == [CheckpointAborted, AskSnapshot]
    stage.core.snapshot_completed(OP, late.incarnation, late.barrier, b"late", 0.0)
    assert not stage.execute()
    stage.send(0, "a")
    assert mailboxes(stage) == ["a"]
    assert cut(stage.snapshot(b"C2")).coordinator_state == b"C2"


def test_what_waits_for_an_answer_that_is_given_up_is_delivered() -> None:
    stage = started()
    begun(stage, 0)
    stage.trigger_checkpoint(1)
    ended(stage, 0, outbox="x")
    batch = stage.abort_checkpoint(1)
    assert [type(notice) for notice in batch.notices] == [DeliverEvents, CheckpointComplete, CheckpointAborted]


def test_an_abort_after_the_answer_lets_the_events_go_on_and_later_acks_are_late_news() -> None:
    stage = started()
    begun(stage, 0)
    stage.trigger_checkpoint(1)
    stage.snapshot(b"C1")
    stage.send(0, "a b")
    assert of_type(CheckpointAborted, stage.abort_checkpoint(1))
    assert mailboxes(stage) == [""], "the epoch still holds them"
    assert of_type(QueryCaptured, ended(stage, 0)) == []
    assert mailboxes(stage) == ["a b"]


def test_an_abort_after_the_capture_is_told() -> None:
    stage = started()
    stage.trigger_checkpoint(1)
    stage.snapshot(b"C1")
    assert of_type(CheckpointAborted, stage.abort_checkpoint(1))
    assert not stage.checkpoint_stored(1), "late news"


def test_an_abort_of_an_older_one_keeps_the_order_behind_the_younger() -> None:
    stage = started()
    begun(stage, 0)
    for number in (1, 2):
        stage.trigger_checkpoint(number)
        stage.snapshot(f"C{number}".encode())
        stage.send(0, str(number))
    stage.abort_checkpoint(1)
    stage.send(0, "3")
    batch = ended(stage, 0)
    assert captured(batch).checkpoint == C2
    assert names(cut(batch).down[S0]) == "1", "C2 has sent it"
    assert mailboxes(stage) == ["1 2 3"]


def test_news_of_a_checkpoint_that_is_over_or_unknown_do_nothing() -> None:
    stage = started()
    assert not stage.abort_checkpoint(9)
    assert not stage.checkpoint_stored(9)
    stage.trigger_checkpoint(1)
    stage.snapshot(b"C1")
    stage.checkpoint_stored(1)
    assert not stage.abort_checkpoint(1)


def test_a_completion_that_comes_while_the_coordinator_owes_another_state_is_told_after_it() -> None:
    stage = started()
    stage.trigger_checkpoint(1)
    first = stage.asked[OP].barrier
    stage.snapshot(b"C1")
    stage.trigger_checkpoint(2)
    assert not stage.checkpoint_stored(1)
    assert stage.snapshot(b"C2").notices[0] == CheckpointComplete(OP, first)


# Coordinators that refuse, or take too long.


def test_a_coordinator_that_refuses_fails_one_checkpoint_and_nothing_else() -> None:
    stage = with_another_query()
    trigger(stage)
    stage.execute()
    stage.snapshot(b"CB", "b")
    batch = stage.snapshot_fails("a")
    assert failed(batch).reason is FailureReason.COORDINATOR_FAILED
    assert "boom" in failed(batch).detail
    assert of_type(FailQuery, batch) == []
    assert len(of_type(CheckpointAborted, batch)) == 2
    stage.trigger_checkpoint(2)
    assert captured(stage.snapshot(b"C2", "a")).checkpoint == C2


def test_a_refusal_that_comes_after_the_abort_is_late_news() -> None:
    stage = started()
    stage.trigger_checkpoint(1)
    stage.abort_checkpoint(1)
    assert not stage.snapshot_fails()


def test_a_refusal_of_an_earlier_incarnation_is_late_news() -> None:
    stage = started()
    stage.trigger_checkpoint(1)
    late = stage.asked[OP]
    stage.end_run()
    stage.start()
    stage.trigger_checkpoint(2)
    error = CoordinatorFailed(OP, "checkpoint_coordinator", "boom")
    stage.core.snapshot_failed(OP, late.incarnation, stage.asked[OP].barrier, error, 0.0)
    assert not stage.execute()


def test_a_refusal_of_an_epoch_fails_the_query() -> None:
    stage = started()
    stage.hello(0, 0, 1)
    assert len(of_type(FailQuery, stage.snapshot_fails())) == 1


def test_a_coordinator_that_hangs_fails_the_checkpoint_it_was_asked_for_and_not_the_later_one() -> None:
    stage = started()
    stage.trigger_checkpoint(1)
    stage.now = 50.0
    stage.trigger_checkpoint(2)
    stage.now = 61.0
    stage.core.tick(stage.now)
    batch = stage.execute()
    assert (failed(batch).checkpoint, failed(batch).reason) == (C1, FailureReason.COORDINATOR_TIMEOUT)
    assert [type(notice) for notice in batch.notices] == [CheckpointAborted, AskSnapshot, CheckpointFailed]
    stage.now = 120.0
    stage.core.tick(stage.now)
    assert not stage.execute(), "its time counts from its own question"
    result = cut(stage.snapshot(b"C2"))
    assert (result.asked_seconds, result.snapshot_seconds) == (11.0, 59.0)


def test_an_epoch_waits_for_a_slow_checkpoint_and_fails_only_by_its_own_time() -> None:
    stage = started()
    stage.trigger_checkpoint(1)
    assert not stage.hello(0, 0, 1)
    stage.now = 61.0
    stage.core.tick(stage.now)
    batch = stage.execute()
    assert of_type(FailQuery, batch) == []
    assert len(of_type(AskSnapshot, batch)) == 1
    stage.now = 122.0
    stage.core.tick(stage.now)
    [fails] = of_type(FailQuery, stage.execute())
    assert isinstance(fails.error, CoordinatorTimeout)


def test_events_that_waited_for_a_checkpoint_are_counted_with_their_time() -> None:
    stage = started()
    begun(stage, 0)
    stage.now = 10.0
    stage.trigger_checkpoint(1)
    stage.now = 12.0
    stage.snapshot(b"C")
    stage.send(0, "a")
    stage.send(0, "b")
    stage.now = 20.0
    [part] = cut(ended(stage, 0)).subtasks
    assert (part.subtask, part.passed_seconds, part.blocked_events, part.blocked_seconds) == (S0, 10.0, 2, 8.0)
    assert part.ack_seconds == 10.0


def test_an_ack_before_the_coordinator_answers_is_earlier_than_the_opening_of_the_gateway() -> None:
    stage = started(parallelism=2)
    begun(stage, 0)
    stage.now = 10.0
    stage.trigger_checkpoint(1)
    stage.now = 13.0
    stage.ack(0, 0, 0, b"s0")
    stage.now = 15.0
    stage.snapshot(b"C")
    stage.now = 20.0
    first, second = cut(stage.commit(0)).subtasks
    assert (first.ack_seconds, first.passed_seconds, first.blocked_seconds) == (3.0, 5.0, 0.0)
    assert (second.ack_seconds, second.passed_seconds) == (None, 10.0)  # without rows it passes with the commit


def test_an_ack_before_the_trigger_is_no_part_of_the_checkpoint() -> None:
    stage = started()
    begun(stage, 0)
    stage.ack(0, 0, 0, b"s0")
    stage.now = 10.0
    stage.trigger_checkpoint(1)
    stage.now = 12.0
    stage.snapshot(b"C")
    [part] = cut(stage.commit(0)).subtasks
    assert (part.ack_seconds, part.passed_seconds) == (None, 2.0)


def test_the_failure_of_a_checkpoint_that_was_given_up_already_is_no_news() -> None:
    batch = Batch()
    PendingCheckpoints().fail(C1, FailureReason.COORDINATOR_FAILED, "late", 0.0, batch)
    assert batch == Batch()


@pytest.mark.parametrize(("ahead", "numbers"), [(0, {"": 7}), (1, {})])
def test_an_event_from_outside_counts_only_at_the_coordinator_that_lives(ahead: int, numbers: dict[str, int]) -> None:
    stage = started()
    stage.hello(0, 0, 0)
    stage.core.control_event(OperatorUid(OP), stage.incarnation(OP) + ahead, 7)
    stage.snapshot(b"S")
    [state] = [record.state for record in stage.log if isinstance(record, Begin)]
    assert unseal(OP, state) == Sealed(b"S", numbers)
