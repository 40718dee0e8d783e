"""The scheduler's periods: when the next one comes due, and what its pause holds up."""

from __future__ import annotations

from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.scheduler import CheckpointScheduler, StartCheckpoint
from coord_control.protocol.scheduler.tickets import TicketState
from tests.unit.protocol.scheduling_kit import MANUAL, PERIODIC, SAVEPOINT, active, complete, fail, reason, said


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
    assert isinstance(start, StartCheckpoint)
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
