"""The scheduler's ends: timeouts, aborts, restarts, and the failures in a row that fail the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coord_control.errors import Fault, InvalidTransition, TooManyFailedCheckpoints
from coord_control.ids import CheckpointId
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.scheduler import (
    AbortCheckpoint,
    CheckpointScheduler,
    FailJob,
    Finished,
    StartCheckpoint,
    State,
)
from coord_control.protocol.scheduler.tickets import CheckpointOutcome, CheckpointRequest, TicketId, TicketState
from tests.unit.protocol.scheduling_kit import MANUAL, PERIODIC, SAVEPOINT, active, complete, fail, reason, said

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
    assert ended.outcome == CheckpointOutcome(FailureReason.EXPIRED, "after 5 s")


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


def test_a_request_may_have_a_limit_of_its_own() -> None:
    scheduler = active(timeout_seconds=5)
    scheduler.submit(replace(SAVEPOINT, timeout_seconds=3600), 0.0)
    scheduler.tick(3599.0)
    assert said(scheduler) == "start 1"
    assert scheduler.next_wakeup() == 3600.0
    scheduler.tick(3600.0)
    assert said(scheduler) == "abort 1 expired"
    ended = fail(scheduler, 1, 3601.0, FailureReason.INTERNAL)
    assert ended.outcome == CheckpointOutcome(FailureReason.EXPIRED, "after 3600 s")


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
    ends = [effect for effect in scheduler.take() if not isinstance(effect, StartCheckpoint)]
    assert [type(effect) for effect in ends] == [Finished, Finished, FailJob, Finished]
    assert isinstance(ends[2], FailJob)
    error = ends[2].error
    assert isinstance(error, TooManyFailedCheckpoints)
    assert (error.failures, error.fault, error.retry) == (2, Fault.EXTERNAL, True)
    assert str(error) == (
        "2 checkpoints in a row failed, more than tolerable_consecutive_failures allows; the last one: "
        f"checkpoint 2: {FailureReason.DISK_FULL.sentence}"
    )
    scheduler.submit(MANUAL, 2.0)
    fail(scheduler, 4, 3.0, FailureReason.DISK_FULL)
    ends = [effect for effect in scheduler.take() if not isinstance(effect, StartCheckpoint)]
    assert [type(effect) for effect in ends] == [Finished, FailJob]


def test_a_job_that_tolerates_any_number_never_fails() -> None:
    scheduler = failing(None)
    for number in range(1, 50):
        scheduler.submit(MANUAL, 0.0)
        fail(scheduler, number, 1.0, FailureReason.DISK_FULL)
    assert "fail job" not in said(scheduler)


@pytest.mark.parametrize("request_", [MANUAL, SAVEPOINT])
def test_a_success_begins_the_count_anew(request_: CheckpointRequest) -> None:
    scheduler = failing(1)
    scheduler.submit(MANUAL, 0.0)
    fail(scheduler, 1, 1.0, FailureReason.DISK_FULL)
    scheduler.submit(request_, 2.0)
    complete(scheduler, 2, 3.0)
    scheduler.submit(MANUAL, 4.0)
    fail(scheduler, 3, 5.0, FailureReason.DISK_FULL)
    assert "fail job" not in said(scheduler)


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
    assert scheduler.take()[1] == AbortCheckpoint(CheckpointId(1), FailureReason.QUERY_FAILED, "query q")


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
