"""The scheduler's rules, one by one: who starts when, what ends it, and what fails the job."""

from __future__ import annotations

from typing import Any

import pytest

from coord_control.errors import Fault, InvalidTransition, TooManyFailedCheckpoints
from coord_control.ids import CheckpointId
from coord_control.protocol.checkpoint_options import CheckpointOptions
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduling import Abort, CheckpointScheduler, Effect, FailJob, Finished, Start, State
from coord_control.protocol.tickets import CheckpointKind, CheckpointRequest, Outcome, Ticket, TicketId, TicketState

MANUAL = CheckpointRequest()
PERIODIC = CheckpointRequest(periodic=True, cause="outside")
SAVEPOINT = CheckpointRequest(kind=CheckpointKind.SAVEPOINT)


def active(now: float = 0.0, **options: Any) -> CheckpointScheduler:
    """A scheduler of a job whose queries run."""
    scheduler = CheckpointScheduler(CheckpointOptions(**options))
    scheduler.resume(now)
    return scheduler


def said(scheduler: CheckpointScheduler) -> str:
    """Take the effects, in short: ``start 1``, ``abort 1 expired``, ``done 1``, ``failed 1 expired``, ``fail job``.

    Those that never started are named by their tickets: ``refused #3 queue_full``.
    """
    return ", ".join(map(_said, scheduler.take()))


def _said(effect: Effect) -> str:
    if isinstance(effect, Start):
        return f"start {effect.checkpoint}"
    if isinstance(effect, Abort):
        return f"abort {effect.checkpoint} {effect.reason.code}"
    if isinstance(effect, FailJob):
        return "fail job"
    assert isinstance(effect, Finished)
    ticket, outcome = effect.ticket, effect.ticket.outcome
    assert outcome is not None
    if outcome.reason is None:
        return f"done {ticket.checkpoint}"
    code = outcome.reason.code
    return f"refused #{ticket.id} {code}" if ticket.checkpoint is None else f"failed {ticket.checkpoint} {code}"


def reason(ticket: Ticket) -> FailureReason | None:
    assert ticket.outcome is not None
    return ticket.outcome.reason


def complete(scheduler: CheckpointScheduler, number: int, now: float) -> Ticket:
    return scheduler.completed(CheckpointId(number), now)


def fail(scheduler: CheckpointScheduler, number: int, now: float, why: FailureReason) -> Ticket:
    return scheduler.failed(CheckpointId(number), why, now)


# Admission.


def test_a_request_starts_at_once_when_there_is_room() -> None:
    scheduler = active()
    ticket = scheduler.submit(MANUAL, 1.0)
    assert (ticket.state, ticket.checkpoint, ticket.requested_at, ticket.started_at) == (TicketState.RUNNING, 1, 1, 1)
    assert scheduler.take() == [Start(ticket)]
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
    started = [effect.ticket.id for effect in scheduler.take() if isinstance(effect, Start)]
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
    assert ended.outcome == Outcome(path="/path")
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
    assert (found.checkpoint, found.outcome) == (6, Outcome(path="/six"))
    assert scheduler.submit(MANUAL, 1.0).checkpoint == 7
    assert said(scheduler) == "start 7"


def test_ids_that_are_taken_are_skipped_and_never_go_back() -> None:
    scheduler = CheckpointScheduler(CheckpointOptions(max_concurrent=9), next_checkpoint=CheckpointId(10))
    scheduler.resume(0.0)
    assert scheduler.submit(MANUAL, 0.0).checkpoint == 10
    scheduler.skip(CheckpointId(20))
    scheduler.skip(CheckpointId(3))
    assert scheduler.submit(MANUAL, 0.0).checkpoint == 21


# Periods and pauses.


def test_without_an_interval_nothing_is_periodic_and_nothing_is_waited_for() -> None:
    scheduler = active()
    scheduler.tick(1e6)
    assert (scheduler.next_wakeup(), said(scheduler)) == (None, "")


def test_the_first_period_comes_after_the_delay_that_the_driver_drew() -> None:
    scheduler = CheckpointScheduler(CheckpointOptions(interval_seconds=10), first_delay_seconds=4.0)
    assert scheduler.next_wakeup() is None
    scheduler.resume(100.0)
    assert scheduler.next_wakeup() == 104.0
    scheduler.tick(103.9)
    assert said(scheduler) == ""
    scheduler.tick(104.0)
    [start] = scheduler.take()
    assert isinstance(start, Start)
    assert (start.ticket.request.periodic, start.ticket.request.cause) == (True, "interval")
    assert scheduler.next_wakeup() == 114.0


def test_only_one_periodic_checkpoint_waits_however_long_the_one_before_takes() -> None:
    scheduler = active(interval_seconds=10)
    for now in (10.0, 20.0, 30.0, 40.0):
        scheduler.tick(now)
    assert [ticket.requested_at for ticket in scheduler.queued] == [20.0]
    complete(scheduler, 1, 41.0)
    assert said(scheduler) == "start 1, done 1, start 2"


def test_a_periodic_one_waits_for_the_pause_and_is_woken_for_it() -> None:
    scheduler = active(interval_seconds=10, min_pause_seconds=6)
    scheduler.tick(10.0)
    complete(scheduler, 1, 17.0)
    scheduler.tick(20.0)
    assert said(scheduler) == "start 1, done 1"
    assert scheduler.next_wakeup() == 23.0
    scheduler.tick(22.9)
    assert said(scheduler) == ""
    scheduler.tick(23.0)
    assert said(scheduler) == "start 2"


def test_a_pause_follows_every_end_also_of_a_failed_savepoint() -> None:
    scheduler = active(interval_seconds=10, min_pause_seconds=6)
    scheduler.submit(SAVEPOINT, 5.0)
    fail(scheduler, 1, 8.0, FailureReason.DISK_FULL)
    scheduler.tick(10.0)
    scheduler.tick(14.0)
    assert said(scheduler) == "start 1, failed 1 disk_full, start 2"
    assert scheduler.running[0].started_at == 14.0


def test_with_a_pause_a_periodic_one_waits_for_other_checkpoints_to_end() -> None:
    scheduler = active(interval_seconds=10, min_pause_seconds=6, max_concurrent=5)
    scheduler.submit(MANUAL, 9.0)
    scheduler.tick(10.0)
    assert said(scheduler) == "start 1"
    assert scheduler.next_wakeup() == 20.0
    complete(scheduler, 1, 11.0)
    assert scheduler.next_wakeup() == 17.0


def test_people_and_savepoints_do_not_wait_for_the_pause() -> None:
    scheduler = active(interval_seconds=10, min_pause_seconds=6)
    scheduler.tick(10.0)
    complete(scheduler, 1, 11.0)
    scheduler.submit(MANUAL, 12.0)
    scheduler.submit(SAVEPOINT, 12.0)
    assert said(scheduler) == "start 1, done 1, start 2, start 3"


def test_a_schedule_from_outside_is_refused_within_the_pause() -> None:
    scheduler = active(min_pause_seconds=6)
    scheduler.submit(MANUAL, 0.0)
    complete(scheduler, 1, 1.0)
    assert reason(scheduler.submit(PERIODIC, 6.9)) is FailureReason.MIN_PAUSE
    assert scheduler.submit(PERIODIC, 7.0).state is TicketState.RUNNING


def test_a_period_that_finds_the_queue_full_is_given_up() -> None:
    scheduler = active(interval_seconds=10, queue_limit=1)
    scheduler.submit(MANUAL, 0.0)
    scheduler.submit(MANUAL, 0.0)
    scheduler.tick(10.0)
    assert said(scheduler) == "start 1, refused #3 queue_full"


# Timeouts and aborts.


def test_one_that_takes_too_long_is_aborted_once_and_told_so() -> None:
    scheduler = active(timeout_seconds=5)
    scheduler.submit(MANUAL, 1.0)
    assert scheduler.next_wakeup() == 6.0
    scheduler.tick(5.9)
    assert said(scheduler) == "start 1"
    scheduler.tick(6.0)
    scheduler.tick(7.0)
    assert said(scheduler) == "abort 1 expired"
    assert scheduler.next_wakeup() is None
    ended = fail(scheduler, 1, 8.0, FailureReason.INTERNAL)
    assert ended.outcome == Outcome(FailureReason.EXPIRED, "after 5 s")


def test_the_time_in_the_queue_does_not_count() -> None:
    scheduler = active(timeout_seconds=5)
    scheduler.submit(MANUAL, 0.0)
    scheduler.submit(MANUAL, 0.0)
    complete(scheduler, 1, 4.0)
    assert scheduler.next_wakeup() == 9.0


def test_savepoints_expire_as_well() -> None:
    scheduler = active(timeout_seconds=5)
    scheduler.submit(SAVEPOINT, 0.0)
    scheduler.tick(5.0)
    assert said(scheduler) == "start 1, abort 1 expired"


def test_what_was_written_before_the_abort_arrived_exists() -> None:
    scheduler = active()
    ticket = scheduler.submit(MANUAL, 0.0)
    scheduler.abort(ticket.id, 1.0)
    assert complete(scheduler, 1, 2.0).is_completed
    assert said(scheduler) == "start 1, abort 1 aborted, done 1"


def test_an_abort_says_whether_it_did_anything() -> None:
    scheduler = active()
    running, queued = scheduler.submit(MANUAL, 0.0), scheduler.submit(MANUAL, 0.0)
    assert scheduler.abort(queued.id, 1.0, detail="by ada")
    assert scheduler.abort(running.id, 1.0)
    assert not scheduler.abort(running.id, 2.0)
    assert not scheduler.abort(queued.id, 2.0)
    assert not scheduler.abort(TicketId(99), 2.0)
    assert said(scheduler) == "start 1, refused #2 aborted, abort 1 aborted"


@pytest.mark.parametrize(("number", "state"), [(1, "ENDED"), (2, "UNSEEN")])
def test_an_end_is_reported_once_and_of_what_was_started(number: int, state: str) -> None:
    scheduler = active()
    scheduler.submit(MANUAL, 0.0)
    complete(scheduler, 1, 1.0)
    said(scheduler)
    with pytest.raises(InvalidTransition, match=f"COMPLETE of checkpoint {number} is not allowed in state {state}"):
        complete(scheduler, number, 2.0)
    with pytest.raises(InvalidTransition, match=f"FAIL of checkpoint {number} is not allowed in state {state}"):
        fail(scheduler, number, 2.0, FailureReason.DISK_FULL)
    assert not scheduler.has_output


# Failures in a row.


def failing(tolerable: int | None) -> CheckpointScheduler:
    return active(tolerable_consecutive_failures=tolerable, max_concurrent=9)


def test_one_failure_more_than_is_tolerated_fails_the_job_and_the_count_begins_anew() -> None:
    scheduler = failing(1)
    for number in (1, 2, 3):
        scheduler.submit(MANUAL, 0.0)
        fail(scheduler, number, 1.0, FailureReason.DISK_FULL)
    ends = [effect for effect in scheduler.take() if not isinstance(effect, Start)]
    assert [type(effect) for effect in ends] == [Finished, Finished, FailJob, Finished]
    assert scheduler.consecutive_failures == 1
    assert isinstance(ends[2], FailJob)
    error = ends[2].error
    assert isinstance(error, TooManyFailedCheckpoints)
    assert (error.failures, error.fault, error.retry) == (2, Fault.EXTERNAL, True)
    assert str(error) == (
        "2 checkpoints in a row failed, more than tolerable_consecutive_failures allows; the last one: "
        f"checkpoint 2: {FailureReason.DISK_FULL.sentence}"
    )


def test_a_job_that_tolerates_any_number_never_fails() -> None:
    scheduler = failing(None)
    for number in range(1, 50):
        scheduler.submit(MANUAL, 0.0)
        fail(scheduler, number, 1.0, FailureReason.DISK_FULL)
    assert "fail job" not in said(scheduler)
    assert scheduler.consecutive_failures == 49


@pytest.mark.parametrize("request_", [MANUAL, SAVEPOINT])
def test_a_success_begins_the_count_anew(request_: CheckpointRequest) -> None:
    scheduler = failing(1)
    scheduler.submit(MANUAL, 0.0)
    fail(scheduler, 1, 1.0, FailureReason.DISK_FULL)
    scheduler.submit(request_, 2.0)
    complete(scheduler, 2, 3.0)
    assert scheduler.consecutive_failures == 0


def test_a_failure_that_is_older_than_the_last_success_does_not_count() -> None:
    scheduler = failing(0)
    for _ in range(2):
        scheduler.submit(MANUAL, 0.0)
    complete(scheduler, 2, 1.0)
    fail(scheduler, 1, 2.0, FailureReason.DISK_FULL)
    assert said(scheduler) == "start 1, start 2, done 2, failed 1 disk_full"


def test_savepoints_and_what_is_not_the_checkpoints_doing_do_not_count() -> None:
    scheduler = failing(0)
    scheduler.submit(SAVEPOINT, 0.0)
    fail(scheduler, 1, 1.0, FailureReason.DISK_FULL)
    scheduler.submit(MANUAL, 0.0)
    fail(scheduler, 2, 1.0, FailureReason.QUERY_FAILED)
    assert scheduler.consecutive_failures == 0
    assert "fail job" not in said(scheduler)


def test_an_expired_one_counts_for_its_timeout_whatever_the_driver_reports() -> None:
    scheduler = active(tolerable_consecutive_failures=0, timeout_seconds=5)
    scheduler.submit(MANUAL, 0.0)
    scheduler.tick(5.0)
    fail(scheduler, 1, 6.0, FailureReason.ABORTED)
    assert said(scheduler) == "start 1, abort 1 expired, failed 1 expired, fail job"


# Restarts and the end.


def test_nothing_starts_before_all_queries_run() -> None:
    scheduler = CheckpointScheduler(CheckpointOptions(interval_seconds=1))
    scheduler.submit(MANUAL, 0.0)
    scheduler.submit(SAVEPOINT, 0.0)
    scheduler.suspend(0.5)
    scheduler.tick(1000.0)
    assert (said(scheduler), scheduler.state) == ("", State.STARTING)
    scheduler.resume(1000.0)
    assert said(scheduler) == "start 1, start 2"


def test_a_restart_aborts_what_runs_gives_up_what_periods_asked_for_and_keeps_what_people_asked_for() -> None:
    scheduler = active(interval_seconds=10)
    scheduler.tick(10.0)
    scheduler.submit(SAVEPOINT, 11.0)
    scheduler.submit(MANUAL, 12.0)
    scheduler.tick(20.0)
    said(scheduler)
    scheduler.suspend(21.0)
    scheduler.suspend(22.0)
    assert said(scheduler) == "abort 1 query_restarting, abort 2 query_restarting, refused #4 query_restarting"
    assert [ticket.id for ticket in scheduler.queued] == [3]


def test_while_queries_restart_people_wait_and_schedules_are_refused() -> None:
    scheduler = active(interval_seconds=10)
    scheduler.suspend(1.0)
    assert reason(scheduler.submit(PERIODIC, 2.0)) is FailureReason.NOT_RUNNING
    assert scheduler.submit(SAVEPOINT, 2.0).state is TicketState.QUEUED
    scheduler.tick(1000.0)
    assert said(scheduler) == "refused #1 not_running"
    assert scheduler.next_wakeup() is None


def test_periods_go_on_one_pause_after_a_restart() -> None:
    scheduler = active(interval_seconds=10, min_pause_seconds=6)
    scheduler.suspend(3.0)
    scheduler.resume(50.0)
    assert reason(scheduler.submit(PERIODIC, 55.0)) is FailureReason.MIN_PAUSE
    scheduler.tick(55.9)
    assert scheduler.next_wakeup() == 56.0
    scheduler.tick(56.0)
    assert said(scheduler) == "refused #1 min_pause, start 1"
    assert scheduler.next_wakeup() == 66.0


def test_a_restart_says_why() -> None:
    scheduler = active()
    scheduler.submit(MANUAL, 0.0)
    scheduler.suspend(1.0, FailureReason.QUERY_FAILED, "query q")
    assert scheduler.take()[1] == Abort(CheckpointId(1), FailureReason.QUERY_FAILED, "query q")


def test_the_end_of_the_job_ends_everything() -> None:
    scheduler = active(interval_seconds=10)
    scheduler.submit(MANUAL, 0.0)
    scheduler.submit(MANUAL, 0.0)
    scheduler.shutdown(1.0)
    scheduler.shutdown(2.0)
    assert said(scheduler) == "start 1, abort 1 job_ending, refused #2 job_ending"
    assert not scheduler.is_idle
    fail(scheduler, 1, 3.0, FailureReason.JOB_ENDING)
    assert reason(scheduler.submit(SAVEPOINT, 4.0)) is FailureReason.JOB_ENDING
    scheduler.tick(1000.0)
    assert said(scheduler) == "failed 1 job_ending, refused #3 job_ending"
    assert (scheduler.is_idle, scheduler.next_wakeup()) == (True, None)
