from __future__ import annotations

import pytest

from coord_control.ids import CheckpointId, CheckpointKind, OperatorUid
from coord_control.metrics.observer import LastCompleted, Observer
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.job_facts import JobListener, RecoveryCause
from coord_control.protocol.statistics import CheckpointTotals
from tests.unit.metrics.facts_kit import ended, recovery, statistics

CHECKPOINT, SAVEPOINT = CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT


@pytest.fixture
def observer() -> Observer:
    return Observer()


def test_it_is_a_listener_of_a_job(observer: Observer) -> None:
    listener: JobListener = observer
    listener.on_query_changed()
    listener.on_feed_open(OperatorUid("op"), 0)
    listener.on_events_durable(OperatorUid("op"), 0)
    assert observer.observed() == Observer().observed()


def test_a_checkpoint_that_comes_further_is_one_checkpoint(observer: Observer) -> None:
    for _ in range(3):
        observer.on_checkpoint(statistics(1))
    observer.on_checkpoint(statistics(2))
    under_way = observer.observed()
    assert under_way.kinds[CHECKPOINT].started == 2
    assert [each.checkpoint for each in under_way.in_progress] == [1, 2]
    observer.on_checkpoint(ended(1))
    observer.on_checkpoint(ended(2, FailureReason.ABORTED))
    assert observer.observed().in_progress == ()
    assert observer.observed().kinds[CHECKPOINT].started == 2


def test_the_sums_of_the_newest_completed_one_are_kept(observer: Observer) -> None:
    observer.on_checkpoint(ended(7))
    observer.on_checkpoint(ended(6))  # completed later, started earlier
    numbers = observer.observed().kinds[CHECKPOINT]
    totals = CheckpointTotals(
        duration_seconds=2.0, metadata_bytes=7, state_bytes=142, new_bytes=142, linked_bytes=60, copied_bytes=40,
        channel_bytes=5, blocked_events=4, blocked_seconds=0.5, snapshot_seconds=0.3, subtasks=1, passed_subtasks=1,
    )  # fmt: skip
    assert numbers.last == LastCompleted(CheckpointId(7), 2002.0, totals)
    assert (numbers.completed, numbers.duration.count, numbers.duration.seconds) == (2, 2, 4.0)
    assert observer.observed().kinds[SAVEPOINT].last is None


def test_failures_are_counted_by_reason_and_only_those_in_a_row_that_count(observer: Observer) -> None:
    observer.on_checkpoint(ended(1, FailureReason.EXPIRED))
    observer.on_checkpoint(ended(2, FailureReason.ABORTED))
    observer.on_checkpoint(ended(3, FailureReason.EXPIRED, kind=SAVEPOINT))
    observer.on_checkpoint(ended(4, FailureReason.DISK_FULL))
    found = observer.observed()
    assert found.failures_in_a_row == 2
    assert dict(found.failed) == {
        (CHECKPOINT, "expired"): 1,
        (CHECKPOINT, "aborted"): 1,
        (SAVEPOINT, "expired"): 1,
        (CHECKPOINT, "disk_full"): 1,
    }
    failed = found.kinds[CHECKPOINT].last_failed
    assert failed is not None
    assert (failed.checkpoint, failed.at_seconds) == (4, 2002.0)
    observer.on_checkpoint(ended(5))
    assert observer.observed().failures_in_a_row == 0


def test_recoveries_by_query_and_cause(observer: Observer) -> None:
    observer.on_recovery(recovery(RecoveryCause.QUERY_FAILED))
    observer.on_recovery(recovery(RecoveryCause.QUERY_FAILED, duration_seconds=None))
    observer.on_recovery(recovery(RecoveryCause.RESTORE, checkpoint=CheckpointId(4), epochs_again=0))
    found = observer.observed()
    assert dict(found.recoveries) == {("q", "query_failed"): 2, ("q", "restore"): 1}
    assert dict(found.rerun) == {"q": 4}
    assert found.recovery_durations[RecoveryCause.QUERY_FAILED].count == 1
    assert (found.restored["q"].checkpoint, found.restored["q"].at_seconds) == (4, 3000.0)


def test_events_from_outside_by_outcome(observer: Observer) -> None:
    uid = OperatorUid("op")
    observer.on_event_applied(uid, 1)
    observer.on_event_applied(uid, 2)
    observer.on_event_refused(uid, 3, ValueError("no"))
    assert dict(observer.observed().events) == {(uid, "applied"): 2, (uid, "refused"): 1}


def test_what_was_observed_does_not_change_any_more(observer: Observer) -> None:
    before = observer.observed()
    observer.on_checkpoint(ended(1))
    observer.on_checkpoint_discarded(CheckpointId(1))
    assert before == Observer().observed()
    assert observer.observed().discarded == 1
