"""The scheduler's rules, one by one: who starts when, and which request is which."""

from __future__ import annotations

from typing import Any

from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.scheduler import CheckpointScheduler, StartCheckpoint
from coord_control.protocol.scheduler.tickets import CheckpointOutcome, CheckpointRequest, TicketState
from tests.unit.protocol.scheduling_kit import MANUAL, PERIODIC, SAVEPOINT, active, complete, fail, reason, said

# Admission.


def test_a_request_starts_at_once_when_there_is_room() -> None:
    scheduler = active()
    ticket = scheduler.submit(MANUAL, 1.0)
    assert (ticket.state, ticket.checkpoint, ticket.requested_at, ticket.started_at) == (TicketState.RUNNING, 1, 1, 1)
    assert scheduler.take() == [StartCheckpoint(ticket)]
    assert not scheduler.has_output
    assert scheduler.by_checkpoint(CheckpointId(1)) == ticket


def test_the_next_starts_when_one_ends_either_way() -> None:
    scheduler = active()
    for _ in range(3):
        scheduler.submit(MANUAL, 0.0)
    complete(scheduler, 1, 1.0)
    fail(scheduler, 2, 2.0, FailureReason.DISK_FULL)
    assert said(scheduler) == "start 1, done 1, start 2, failed 2 disk_full, start 3"


def test_as_many_run_as_the_options_say() -> None:
    scheduler = active(max_concurrent=2)
    for _ in range(3):
        scheduler.submit(MANUAL, 0.0)
    assert said(scheduler) == "start 1, start 2"
    assert [ticket.id for ticket in scheduler.queued] == [3]


def test_savepoints_are_always_admitted_and_take_nobodys_place() -> None:
    scheduler = active()
    for request in (SAVEPOINT, SAVEPOINT, MANUAL, SAVEPOINT):
        scheduler.submit(request, 0.0)
    assert said(scheduler) == "start 1, start 2, start 3, start 4"


def test_a_rest_holds_up_savepoints_too_and_the_scheduler_wants_to_be_woken_at_its_end() -> None:
    scheduler = active()
    scheduler.submit(SAVEPOINT, 0.0)
    scheduler.completed(CheckpointId(1), 1.0, rest_seconds=0.2)
    scheduler.submit(SAVEPOINT, 1.1)
    scheduler.tick(1.15)
    assert said(scheduler) == "start 1, done 1"
    assert scheduler.next_wakeup() == 1.2
    scheduler.tick(1.2)
    assert said(scheduler) == "start 2"


def test_what_waits_starts_in_the_order_savepoints_people_schedules() -> None:
    scheduler = active()
    scheduler.suspend(0.0)
    for request in (MANUAL, SAVEPOINT, MANUAL, SAVEPOINT):
        scheduler.submit(request, 0.0)
    scheduler.resume(1.0)
    scheduler.submit(PERIODIC, 2.0)
    scheduler.submit(MANUAL, 3.0)
    for number in (3, 4, 5, 6):
        complete(scheduler, number, 4.0 + number)
    started = [effect.ticket.id for effect in scheduler.take() if isinstance(effect, StartCheckpoint)]
    assert started == [2, 4, 1, 3, 6, 5]


def test_one_that_is_being_aborted_keeps_its_place_until_its_end_is_reported() -> None:
    scheduler = active()
    first = scheduler.submit(MANUAL, 0.0)
    scheduler.submit(MANUAL, 0.0)
    scheduler.abort(first.id, 1.0)
    assert said(scheduler) == "start 1, abort 1 aborted"
    fail(scheduler, 1, 2.0, FailureReason.ABORTED)
    assert said(scheduler) == "failed 1 aborted, start 2"


def test_a_full_queue_refuses_the_newcomer_when_nobody_waits_with_less_right() -> None:
    scheduler = active(queue_limit=1)
    tickets = [scheduler.submit(MANUAL, 0.0) for _ in range(3)]
    assert said(scheduler) == "start 1, refused #3 queue_full"
    assert reason(tickets[2]) is FailureReason.QUEUE_FULL


def test_a_full_queue_refuses_who_waits_with_less_right() -> None:
    scheduler = active(queue_limit=1)
    for request in (MANUAL, PERIODIC, MANUAL):
        scheduler.submit(request, 0.0)
    assert said(scheduler) == "start 1, refused #2 queue_full"
    assert [ticket.id for ticket in scheduler.queued] == [3]


def test_what_can_start_at_once_is_not_refused_by_a_full_queue() -> None:
    scheduler = active(queue_limit=1)
    for request in (MANUAL, MANUAL, SAVEPOINT):
        scheduler.submit(request, 0.0)
    assert said(scheduler) == "start 1, start 2"


# Keys.


def keyed(kind: CheckpointKind = CheckpointKind.CHECKPOINT, **values: Any) -> CheckpointRequest:
    return CheckpointRequest(kind=kind, key="k", **values)


def test_the_same_key_is_the_same_ticket_queued_running_and_ended() -> None:
    scheduler = active()
    scheduler.submit(MANUAL, 0.0)
    queued = scheduler.submit(keyed(), 1.0)
    assert scheduler.submit(keyed(cause="again"), 2.0) == queued
    complete(scheduler, 1, 3.0)
    assert scheduler.submit(keyed(), 4.0).checkpoint == 2
    ended = scheduler.completed(CheckpointId(2), 5.0, "/path")
    assert scheduler.submit(keyed(), 6.0) == ended
    assert ended.outcome == CheckpointOutcome(path="/path")
    assert said(scheduler) == "start 1, done 1, start 2, done 2"
    assert scheduler.by_key("k") == ended


def test_the_same_key_gives_the_same_failure() -> None:
    scheduler = active()
    scheduler.submit(keyed(), 0.0)
    failed = fail(scheduler, 1, 1.0, FailureReason.DISK_FULL)
    assert scheduler.submit(keyed(), 2.0) == failed


def test_what_came_to_nothing_before_it_began_can_be_repeated_with_its_key() -> None:
    scheduler = active()
    scheduler.submit(keyed(), 0.0)
    fail(scheduler, 1, 1.0, FailureReason.INVALID_TARGET)
    assert scheduler.submit(keyed(), 2.0).checkpoint == 2


def test_a_key_is_not_lent_to_another_request() -> None:
    scheduler = active()
    first = scheduler.submit(keyed(), 0.0)
    second = scheduler.submit(keyed(CheckpointKind.SAVEPOINT), 0.0)
    assert said(scheduler) == "start 1, refused #2 key_reused"
    assert reason(second) is FailureReason.KEY_REUSED
    assert scheduler.by_key("k") == first


def test_a_checkpoint_of_an_earlier_driver_is_found_by_its_key_and_its_id_is_not_used_again() -> None:
    scheduler = CheckpointScheduler(CheckpointOptions())
    scheduler.remember(keyed(), CheckpointId(6), 0.0, "/six")
    scheduler.remember(MANUAL, CheckpointId(4), 0.0, "/four")
    scheduler.resume(0.0)
    found = scheduler.submit(keyed(), 1.0)
    assert (found.checkpoint, found.outcome) == (6, CheckpointOutcome(path="/six"))
    assert scheduler.submit(MANUAL, 1.0).checkpoint == 7
    assert said(scheduler) == "start 7"


def test_a_request_whose_checkpoint_was_removed_gets_another_one() -> None:
    scheduler = CheckpointScheduler(CheckpointOptions())
    scheduler.remember(keyed(), CheckpointId(6), 0.0, "/six")
    scheduler.resume(0.0)
    scheduler.forget(CheckpointId(6))
    found = scheduler.submit(keyed(), 1.0)
    assert (found.checkpoint, found.outcome) == (7, None)


def test_ids_that_are_taken_are_skipped_and_never_go_back() -> None:
    scheduler = CheckpointScheduler(CheckpointOptions(max_concurrent=9), next_checkpoint=CheckpointId(10))
    scheduler.resume(0.0)
    assert scheduler.submit(MANUAL, 0.0).checkpoint == 10
    scheduler.skip(CheckpointId(20))
    scheduler.skip(CheckpointId(3))
    assert scheduler.submit(MANUAL, 0.0).checkpoint == 21
