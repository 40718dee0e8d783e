"""All jobs at once: what is said of each, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from coord_control.storage.database import Database
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointState,
    JobOverview,
    LiveQuery,
    LiveStatus,
    QuerySample,
    Trend,
)
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.records_kit import JOB, checkpoint, query_part
from tests.storage.kit import register, statements


def only(store: ControlStore) -> JobOverview:
    [overview] = store.fleets.read().jobs
    return overview


def test_a_job_without_history(store: ControlStore) -> None:
    register(store)
    assert only(store) == JobOverview(job=store.jobs.get(JOB), lags=(Trend(query="q"),), backlogs=(Trend(query="q"),))


def test_a_job_comes_with_its_queries_and_operators_as_if_it_were_asked_for_alone(store: ControlStore) -> None:
    register(store)
    register(store, "orders")
    store.jobs.heartbeat(JOB, 1, LiveStatus(queries=(LiveQuery(name="q", epoch=4, state_rows=9),)))
    fleet = store.fleets.read()
    assert [each.job for each in fleet.jobs] == [store.jobs.get(JOB), store.jobs.get("orders")]
    assert fleet.jobs[0].job.queries[0].state_rows == 9
    assert abs(fleet.now - datetime.now(UTC)) < timedelta(minutes=1)


def test_these_jobs_only(store: ControlStore) -> None:
    for name in ("a", "b", "c"):
        register(store, name)
    assert [each.job.name for each in store.fleets.read(["c", "a", "nobody"]).jobs] == ["a", "c"]
    assert store.fleets.read([]).jobs == ()


def test_the_newest_checkpoints_of_each_kind(store: ControlStore) -> None:
    register(store)
    queries = (query_part(query="q"),)
    store.checkpoints.save(JOB, checkpoint(1, kind=CheckpointKind.SAVEPOINT))
    store.checkpoints.save(JOB, checkpoint(2, kind=CheckpointKind.SAVEPOINT, label="best", queries=queries))
    store.checkpoints.save(JOB, checkpoint(3, CheckpointState.FAILED))
    store.checkpoints.save(JOB, checkpoint(4))
    store.checkpoints.save(JOB, checkpoint(5))
    store.checkpoints.save(JOB, checkpoint(6, CheckpointState.FAILED, CheckpointKind.SAVEPOINT))
    overview = only(store)
    assert overview.completed == store.checkpoints.get(JOB, 5)
    assert overview.savepoint == replace(store.checkpoints.get(JOB, 2), queries=())
    assert overview.failed == store.checkpoints.get(JOB, 6)
    store.checkpoints.discarded(JOB, [4, 5])
    assert only(store).completed == overview.savepoint


def test_failures_in_a_row_and_what_is_under_way(store: ControlStore) -> None:
    register(store, generation=3)
    for number, state in enumerate(("failed", "completed", "failed", "failed", "failed", "in_progress"), start=1):
        store.checkpoints.save(JOB, checkpoint(number, CheckpointState(state), generation=3))
    overview = only(store)
    assert (overview.failed_in_a_row, overview.under_way) == (3, 1)
    store.checkpoints.save(JOB, checkpoint(7, CheckpointState.FAILED, reason="aborted"))
    store.checkpoints.save(JOB, checkpoint(8, CheckpointState.FAILED, reason="expired"))
    store.checkpoints.save(JOB, checkpoint(9, CheckpointState.IN_PROGRESS, generation=2))
    overview = only(store)
    assert (overview.failed_in_a_row, overview.under_way) == (4, 1), "nobody's abort, and no older driver's, counts"
    store.checkpoints.save(JOB, checkpoint(10, CheckpointState.DISCARDED))
    assert only(store).failed_in_a_row == 0


def test_recoveries_within_the_window(store: ControlStore) -> None:
    register(store)
    register(store, "orders")
    now = datetime.now(UTC)
    for hours in (30, 2, 0):
        recovery = records.recovery(started_at=now - timedelta(hours=hours))
        store.recoveries.add(recovery)
    for cause in ("driver_start", "restore"):  # asked for
        store.recoveries.add(records.recovery(started_at=now, cause=cause))
    mine, other = store.fleets.read().jobs
    assert (mine.recoveries, other.recoveries) == (1, 0)
    assert (mine.last_recovery, other.last_recovery) == (store.recoveries.list(JOB)[0], None)
    assert store.fleets.read(window=timedelta(hours=3)).jobs[0].recoveries == 2


def sample(ago: float, lag: float | None, query: str = "q") -> QuerySample:
    return QuerySample(job=JOB, query=query, at=datetime.now(UTC) - timedelta(seconds=ago), lag_seconds=lag)


def test_lags_at_both_ends_of_the_window(store: ControlStore) -> None:
    register(store)
    store.samples.add([sample(50 * 60 - 5 * number, 1.0 + number) for number in range(12)])
    store.samples.add([sample(30 * 60, 1000.0)])
    store.samples.add([sample(5 + 5 * number, None if number % 2 else 20.0 + number) for number in range(12)])
    assert only(store).lags == (Trend(query="q", first=6.5, last=25.0),)
    assert store.fleets.read(window=timedelta(minutes=10)).jobs[0].lags == (Trend(query="q", first=25.0, last=25.0),)


def test_a_query_without_a_watermark_has_no_lag(store: ControlStore) -> None:
    register(store)
    store.samples.add([sample(5 * number, None) for number in range(40)])
    assert only(store).lags == (Trend(query="q"),)


def test_backlogs_at_both_ends_of_the_window_of_queries_whose_sources_report_them(store: ControlStore) -> None:
    register(store)
    for ago, waiting in ((51 * 60, 100), (30 * 60, 7000), (70, 300)):
        store.samples.add([replace(sample(ago - 5 * number, None), backlog=waiting + number) for number in range(12)])
    overview = only(store)
    assert overview.backlogs == (Trend(query="q", first=105.5, last=305.5),)
    assert overview.lags == (Trend(query="q"),)


@pytest.mark.parametrize("is_filtered", [False, True])
def test_many_jobs_take_as_many_statements_as_few(database: Database, store: ControlStore, is_filtered: bool) -> None:
    counts = []
    for jobs in (3, 300):
        names = [f"job-{number}" for number in range(jobs)]
        for name in names:
            register(store, name)
            store.checkpoints.save(name, checkpoint(1, job=name))
        with statements() as asked:
            assert len(store.fleets.read(names if is_filtered else None).jobs) == jobs
            changes = store.changes.list(jobs=names if is_filtered else None, limit=1000)
            store.checkpoints.subtasks_of((each.job, 1) for each in changes)
        assert len(changes) == jobs
        counts.append(len(asked))
    assert counts[0] == counts[1]
    assert counts[1] <= 20
