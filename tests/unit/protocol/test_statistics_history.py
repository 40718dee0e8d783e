"""The history of a job's checkpoints: what is kept, what is counted, and the summaries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.statistics_history import Counts, Restored, StatisticsHistory, Summary, summary_of
from coord_control.protocol.statistics import CheckpointStatistics, CheckpointStatus


def checkpoint(number: int, status: CheckpointStatus = CheckpointStatus.COMPLETED, **more: Any) -> CheckpointStatistics:
    values = {"kind": CheckpointKind.CHECKPOINT, "triggered_at_seconds": 1e9 + number, **more}
    return CheckpointStatistics(checkpoint=CheckpointId(number), status=status, **values)


def running(number: int, **more: Any) -> CheckpointStatistics:
    return checkpoint(number, CheckpointStatus.IN_PROGRESS, **more)


def failed(number: int) -> CheckpointStatistics:
    return checkpoint(number, CheckpointStatus.FAILED, reason=FailureReason.EXPIRED, message="late")


def savepoint(number: int) -> CheckpointStatistics:
    return checkpoint(number, kind=CheckpointKind.SAVEPOINT)


def history(*statistics: CheckpointStatistics, size: int = 3) -> StatisticsHistory:
    kept = StatisticsHistory(size)
    for each in statistics:
        kept.update(each)
    return kept


# Summaries.


def test_nothing_has_no_summary() -> None:
    assert summary_of([]) is None


def test_one_value_is_all_of_its_summary() -> None:
    assert summary_of([4]) == Summary(4, 4, 4, 4, 4, 4, 4, 4)


def test_percentiles_lie_between_the_closest_values() -> None:
    summary = summary_of([30, 10, 20, 40])
    assert summary is not None
    assert (summary.min, summary.max, summary.avg, summary.p50) == (10, 40, 25, 25)
    assert summary.p90 == pytest.approx(37)
    hundred = summary_of(range(101))
    assert hundred is not None
    assert (hundred.p90, hundred.p95, hundred.p99, hundred.p999) == pytest.approx((90, 95, 99, 99.9))


@given(st.lists(st.integers(0, 2**50), min_size=1))
def test_a_summary_is_in_order(values: list[int]) -> None:
    summary = summary_of(values)
    assert summary is not None
    places = [summary.min, summary.p50, summary.p90, summary.p95, summary.p99, summary.p999, summary.max]
    assert places == sorted(places)
    assert summary.min <= summary.avg <= summary.max


# What is kept.


def test_one_in_progress_is_updated_until_it_ends() -> None:
    kept = history(running(1), running(1, metadata_bytes=5))
    assert kept.overview().counts == Counts(total=1, in_progress=1)
    assert kept.overview().history == (running(1, metadata_bytes=5),)
    kept.update(checkpoint(1))
    assert kept.overview().counts == Counts(total=1, completed=1)
    assert kept.overview().history == (checkpoint(1),)


def test_what_is_told_of_one_that_has_ended_is_ignored() -> None:
    kept = history(running(1), checkpoint(1), running(1), failed(1))
    assert kept.overview().counts == Counts(total=1, completed=1)
    assert kept.get(CheckpointId(1)) == checkpoint(1)


def test_only_the_newest_that_have_ended_are_kept_but_all_in_progress() -> None:
    kept = history(*map(running, range(1, 7)), *map(checkpoint, (1, 2)), failed(3), checkpoint(5), size=3)
    assert [each.checkpoint for each in kept.overview().history] == [6, 5, 4, 3, 2]
    assert kept.overview().counts == Counts(total=6, in_progress=2, completed=3, failed=1)


def test_the_latest_of_each_kind_is_kept_beyond_the_history() -> None:
    kept = history(checkpoint(1), savepoint(2), failed(3), failed(4), size=1)
    overview = kept.overview()
    assert (overview.latest_completed, overview.latest_savepoint) == (checkpoint(1), savepoint(2))
    assert overview.latest_failed == failed(4)
    assert [kept.get(CheckpointId(number)) for number in (1, 2, 3, 4)] == [
        checkpoint(1),
        savepoint(2),
        None,
        failed(4),
    ]


def test_a_savepoint_is_no_latest_checkpoint() -> None:
    assert history(savepoint(1)).overview().latest_completed is None


def test_one_that_is_removed_from_storage_is_marked_wherever_it_is_kept() -> None:
    kept = history(checkpoint(1), checkpoint(2), savepoint(3))
    kept.discarded(CheckpointId(2))
    kept.discarded(CheckpointId(3))
    overview = kept.overview()
    assert [each.discarded for each in overview.history] == [True, True, False]
    assert overview.latest_completed is not None
    assert overview.latest_completed.discarded
    assert overview.latest_savepoint is not None
    assert overview.latest_savepoint.discarded


def test_the_removal_of_an_unknown_one_changes_nothing() -> None:
    kept = history(failed(1))
    before = kept.overview()
    kept.discarded(CheckpointId(9))
    assert kept.overview() == before
    assert kept.get(CheckpointId(9)) is None


def test_a_marked_history_is_bounded_still() -> None:
    kept = history(*map(checkpoint, (1, 2, 3)))
    kept.discarded(CheckpointId(1))
    kept.update(checkpoint(4))
    assert [each.checkpoint for each in kept.overview().history] == [4, 3, 2]


def test_a_restore_is_counted_and_kept() -> None:
    kept = history()
    restored = Restored(CheckpointId(7), "/seven", 1e9)
    kept.restored(restored, 1)
    assert (kept.overview().counts.restored, kept.overview().latest_restored) == (1, restored)


# The summary of the history, and JSON.


def test_only_completed_ones_that_are_kept_are_summarised() -> None:
    numbers = {1: 100.0, 2: 2.0, 3: 4.0}
    completed = [checkpoint(number, duration_seconds=seconds) for number, seconds in numbers.items()]
    summary = history(*completed, failed(4), size=3).overview().summary
    assert summary["duration_seconds"] == summary_of([2.0, 4.0])
    assert summary["state_bytes"] == summary_of([0, 0])
    assert history(failed(1)).overview().summary == {}


def test_the_overview_in_json() -> None:
    kept = history(checkpoint(1, duration_seconds=2.0), savepoint(2), failed(3))
    kept.restored(Restored(CheckpointId(7), "/seven", 1e9), 1)
    plain = kept.overview().to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["counts"] == {"restored": 1, "total": 3, "in_progress": 0, "completed": 2, "failed": 1}
    assert [each["checkpoint"] for each in plain["history"]] == [3, 2, 1]
    assert plain["latest"]["completed"]["checkpoint"] == 1
    assert plain["latest"]["savepoint"]["kind"] == "savepoint"
    assert plain["latest"]["failed"]["reason"] == "expired"
    assert plain["latest"]["restored"]["path"] == "/seven"
    assert set(plain["summary"]["duration_seconds"]) == {"min", "max", "avg", "p50", "p90", "p95", "p99", "p999"}


def test_the_overview_of_nothing() -> None:
    plain = history().overview().to_json()
    assert plain["latest"] == {"completed": None, "savepoint": None, "failed": None, "restored": None}
    assert (plain["history"], plain["summary"]) == ([], {})
