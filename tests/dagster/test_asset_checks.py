from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from coord_control.dagster.asset_checks import CHECKS, CheckOutcome, build_checks, check_names, evaluate
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.spec import CheckBounds
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.storage.records import (
    ENDED_TO_RESTART,
    CheckpointRecord,
    CheckpointState,
    JobOverview,
    JobRecord,
    JobState,
    QueryRecord,
    Trend,
)
from tests import records_kit as records
from tests.dagster.sensor_kit import Jobs, jobs_in, spec
from tests.records_kit import NOON

_WARN, _ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


def _job(**changes: Any) -> JobRecord:
    values: dict[str, Any] = {
        "generation": 3,
        "created_at": NOON - timedelta(days=1),
        "driver_started_at": NOON - timedelta(hours=1),
        "heartbeat_at": NOON - timedelta(seconds=1),
        "queries": (QueryRecord(name="q1"), QueryRecord(name="q2")),
    }
    return records.job(**values | changes)


def _dead(**changes: Any) -> JobRecord:
    return _job(is_alive=False, heartbeat_at=NOON - timedelta(minutes=5), **changes)


def _checkpoint(age: float = 60.0, number: int = 7, **changes: Any) -> CheckpointRecord:
    finished = NOON - timedelta(seconds=age)
    values: dict[str, Any] = {
        "triggered_at": finished - timedelta(seconds=2),
        "finished_at": finished,
        "duration_seconds": 2.0,
    }
    return records.checkpoint(number, **values | changes)


def _outcome(name: str, overview: JobOverview | None, **bounds: Any) -> CheckOutcome:
    [found] = [each for each in evaluate(overview, CheckBounds(**bounds), NOON) if each.name == name]
    return found


def _numbers(outcome: CheckOutcome) -> dict[str, Any]:
    return {name.removeprefix("coord_control/"): value.value for name, value in outcome.metadata.items()}


def test_a_job_that_is_well_passes_everything() -> None:
    outcomes = evaluate(JobOverview(job=_job(), completed=_checkpoint()), CheckBounds(), NOON)

    assert [outcome.name for outcome in outcomes] == list(CHECKS)
    assert all(outcome.passed for outcome in outcomes)


def test_a_bound_of_none_switches_a_check_off() -> None:
    off = CheckBounds(
        checkpoint_age=None,
        failed_in_a_row=None,
        checkpoint_duration=None,
        blocked=None,
        restarts_per_hour=None,
        lag=None,
        backlog=None,
    )

    assert check_names(off) == ("running",)
    assert [outcome.name for outcome in evaluate(JobOverview(job=_job()), off, NOON)] == ["running"]
    assert [outcome.name for outcome in evaluate(None, off, NOON)] == ["running"]


def test_a_job_that_the_database_does_not_know_only_does_not_run() -> None:
    outcomes = evaluate(None, CheckBounds(), NOON)

    assert [(outcome.name, outcome.passed) for outcome in outcomes] == [(name, name != "running") for name in CHECKS]


@pytest.mark.parametrize(
    ("job", "passed", "severity", "said"),
    [
        (_job(state=JobState.STARTING), True, _ERROR, "starting on here"),
        (_dead(), False, _ERROR, "silent for 5m 0s: it is dead"),
        (_dead(state=JobState.FAILED, end_reason="out of disk"), False, _ERROR, "it has failed: out of disk"),
        (_dead(state=JobState.ENDED, end_reason="stop"), False, _WARN, "it has ended: stop"),
        (
            _dead(state=JobState.ENDED, ended_at=NOON, end_reason=ENDED_TO_RESTART),
            False,
            _ERROR,
            "not restarted it",
        ),
    ],
)
def test_whether_a_job_runs(job: JobRecord, passed: bool, severity: dg.AssetCheckSeverity, said: str) -> None:
    outcome = _outcome("running", JobOverview(job=job))

    assert (outcome.passed, outcome.severity) == (passed, severity)
    assert said in outcome.description


@pytest.mark.parametrize(("age", "passed"), [(900.0, True), (901.0, False)])
def test_the_age_of_the_newest_checkpoint_is_by_the_clock_of_the_database(age: float, passed: bool) -> None:
    outcome = _outcome("checkpoint_freshness", JobOverview(job=_job(), completed=_checkpoint(age)), checkpoint_age=900)

    assert outcome.passed is passed
    assert _numbers(outcome) == {
        "age_seconds": age,
        "bound": 900.0,
        "checkpoint_id": "7",
        "finished_at": (NOON - timedelta(seconds=age)).timestamp(),
    }


def test_a_job_without_a_checkpoint_has_time_since_its_driver_was_started() -> None:
    young = JobOverview(job=_job(driver_started_at=NOON - timedelta(seconds=5)))
    old = JobOverview(job=_job())

    assert _outcome("checkpoint_freshness", young).passed
    assert not _outcome("checkpoint_freshness", old).passed


def test_old_checkpoints_of_a_job_that_has_ended_are_in_order_and_of_a_dead_one_are_not() -> None:
    ended = JobOverview(job=_dead(state=JobState.ENDED), completed=_checkpoint(5000))
    dead = JobOverview(job=_dead(), completed=_checkpoint(5000))

    assert _outcome("checkpoint_freshness", ended).passed
    assert not _outcome("checkpoint_freshness", dead).passed


@pytest.mark.parametrize(("count", "bound", "passed"), [(0, 1, True), (1, 1, False), (1, 2, True), (2, 2, False)])
def test_failed_checkpoints_in_a_row(count: int, bound: int, passed: bool) -> None:
    failed = _checkpoint(number=8, state=CheckpointState.FAILED, reason="timeout", message="too slow")
    overview = JobOverview(job=_job(), completed=_checkpoint(), failed=failed, failed_in_a_row=count)
    outcome = _outcome("failed_checkpoints", overview, failed_in_a_row=bound)

    assert outcome.passed is passed
    assert _numbers(outcome)["failed_in_a_row"] == count
    assert ("timeout: too slow" in outcome.description) is (count > 0)


@pytest.mark.parametrize(("seconds", "passed"), [(2.0, True), (2.5, False)])
def test_duration_and_blocked_time_of_the_newest_one(seconds: float, passed: bool) -> None:
    record = _checkpoint(duration_seconds=seconds, blocked_seconds=seconds)
    overview = JobOverview(job=_job(), completed=record)

    for name in ("checkpoint_duration", "blocked_time"):
        outcome = _outcome(name, overview, checkpoint_duration=2.0, blocked=2.0)
        assert (outcome.passed, outcome.severity) == (passed, _WARN)
        assert _numbers(outcome) == {"seconds": seconds, "bound": 2.0, "checkpoint_id": "7"}
    assert _outcome("checkpoint_duration", JobOverview(job=_job())).passed


@pytest.mark.parametrize(
    ("recoveries", "restarts", "passed"), [(0, 0, True), (2, 1, True), (3, 2, False), (5, 3, False)]
)
def test_a_driver_that_starts_recovers_all_queries_and_counts_once(
    recoveries: int, restarts: int, passed: bool
) -> None:
    last = records.recovery(generation=3, cause="driver_died", what="taken up")
    overview = JobOverview(job=_job(), recoveries=recoveries, last_recovery=last)
    outcome = _outcome("restart_rate", overview, restarts_per_hour=2)

    assert outcome.passed is passed
    assert _numbers(outcome) == {"restarts": restarts, "bound": 2} | ({"recoveries": recoveries})
    assert ("taken up" in outcome.description) is (restarts > 0)


@pytest.mark.parametrize(
    ("trend", "passed"),
    [
        (Trend(query="q1", first=10.0, last=300.0), True),
        (Trend(query="q1", first=10.0, last=301.0), False),
        (Trend(query="q1", first=400.0, last=301.0), True),
        (Trend(query="q1", first=None, last=301.0), False),
        (Trend(query="q1", first=10.0, last=None), True),
    ],
)
def test_a_lag_is_bad_when_it_is_long_and_grows(trend: Trend, passed: bool) -> None:
    overview = JobOverview(job=_job(), lags=(Trend(query="q2", first=900.0, last=800.0), trend))

    assert _outcome("lag", overview, lag=300).passed is passed


def test_the_query_that_falls_behind_is_named() -> None:
    lags = (Trend(query="q1", first=9000.0, last=8000.0), Trend(query="q2", first=10.0, last=600.0))
    outcome = _outcome("lag", JobOverview(job=_job(), lags=lags))

    assert "q2 is 10m 0s behind, 10.0 s an hour ago" in outcome.description
    assert _numbers(outcome) == {"lag_seconds": 600.0, "lag_before_seconds": 10.0, "query": "q2", "bound": 300.0}


def test_the_lag_of_a_dead_job_is_not_its_own() -> None:
    lags = (Trend(query="q1", first=10.0, last=8000.0),)

    assert _outcome("lag", JobOverview(job=_dead(), lags=lags)).passed


@pytest.mark.parametrize(
    ("trend", "passed", "how"),
    [
        (Trend(query="q1", first=10.0, last=1000.0), True, "growing"),  # not many yet
        (Trend(query="q1", first=10.0, last=1001.0), False, "growing"),
        (Trend(query="q1", first=0.0, last=1001.0), False, "growing"),
        (Trend(query="q1", first=None, last=1001.0), False, "growing"),
        (Trend(query="q1", first=1000.0, last=1200.0), True, "large, but not growing"),  # comes and goes
        (Trend(query="q1", first=9000.0, last=8000.0), True, "large, but not growing"),
        (Trend(query="q1", first=500.0, last=400.0), True, "small"),
    ],
)
def test_a_backlog_is_bad_when_it_is_large_and_grows(trend: Trend, passed: bool, how: str) -> None:
    outcome = _outcome("backlog", JobOverview(job=_job(), backlogs=(trend,)), backlog=1000)

    assert outcome.passed is passed
    assert how in outcome.description
    assert ("the bound is 1,000" in outcome.description) is not passed


def test_the_query_whose_backlog_grows_is_named_and_so_are_those_of_which_nothing_is_known() -> None:
    trends = (
        Trend(query="q1", first=90_000.0, last=80_000.0),
        Trend(query="q2", first=10.0, last=20_000.0),
        Trend(query="q3"),
    )
    outcome = _outcome("backlog", JobOverview(job=_job(), backlogs=trends))

    assert not outcome.passed
    assert "20,000 records wait for q2, 10 an hour ago: growing" in outcome.description
    assert outcome.description.endswith("that cannot be seen: q3")
    assert _numbers(outcome) == {"backlog": 20_000.0, "backlog_before": 10.0, "query": "q2", "bound": 10_000}


def test_neither_lag_nor_backlog_is_claimed_of_a_query_that_reports_none() -> None:
    overview = JobOverview(job=_job(), lags=(Trend(query="q1"),), backlogs=(Trend(query="q1"),))

    assert "no running query has a watermark" in _outcome("lag", overview).description
    assert "no source of a running query reports what waits in it" in _outcome("backlog", overview).description
    some = JobOverview(job=_job(), lags=(Trend(query="q1"), Trend(query="q2", first=1.0, last=2.0)))
    assert _outcome("lag", some).description.endswith("without a watermark: q1")


@pytest.mark.parametrize(
    ("arriving", "processed", "lag", "passed"),
    [
        (100.0, 100.0, None, False),
        (90.0, 100.0, None, False),
        (50.0, 100.0, None, True),  # it waits for half of the time
        (0.0, 0.0, None, True),
        (None, None, None, True),
        (100.0, 100.0, 5.0, True),  # its watermark says how far behind it is
    ],
)
def test_a_query_that_never_pauses_and_shows_neither_lag_nor_backlog_does_not_pass(
    arriving: float | None, processed: float | None, lag: float | None, passed: bool
) -> None:
    query = QueryRecord(name="q1", input_rows_per_second=arriving, rows_per_second=processed)
    known = Trend(query="q2", first=1.0, last=2.0)
    job = _job(queries=(query, QueryRecord(name="q2")))
    for backlogs in ((Trend(query="q1"),), (Trend(query="q1"), known)):
        outcome = _outcome("backlog", JobOverview(job=job, lags=(Trend(query="q1", last=lag),), backlogs=backlogs))

        assert outcome.passed is passed
        assert ("cannot tell whether q1 keeps up" in outcome.description) is not passed
    assert _outcome("backlog", JobOverview(job=_dead(queries=(query,)))).passed


def test_the_backlog_of_a_dead_job_is_not_its_own() -> None:
    backlogs = (Trend(query="q1", first=10.0, last=80_000.0),)

    assert _outcome("backlog", JobOverview(job=_dead(), backlogs=backlogs)).passed


# --- run by a person


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with jobs_in(tmp_path / "control.db") as jobs:
        yield jobs


def _defs(tmp_path: Path, **bounds: Any) -> tuple[dg.Definitions, dg.AssetKey]:
    job, translator = spec(checks=CheckBounds(**bounds)), StreamingJobTranslator()
    key = translator.checkpoint_key(job)
    return (
        dg.Definitions(
            assets=[dg.AssetSpec(key)],
            asset_checks=build_checks([job], translator),
            jobs=[dg.define_asset_job("look", dg.AssetSelection.all_asset_checks())],
            resources={
                RESOURCE_KEY: ControlPlaneResource(database=f"sqlite:///{tmp_path}/control.db", retry_seconds=0.1)
            },
        ),
        key,
    )


def _look(defs: dg.Definitions, *, only: set[dg.AssetCheckKey] | None = None, **options: Any) -> dict[str, bool]:
    job = defs.resolve_job_def("look")
    if only is not None:
        job = job.get_subset(asset_check_selection=only)
    result = job.execute_in_process(**options)
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations()}


def test_a_person_can_run_all_checks_of_a_job(jobs: Jobs, tmp_path: Path) -> None:
    jobs.put()
    jobs.checkpoint()
    jobs.failed()
    defs, _ = _defs(tmp_path, lag=None)

    assert _look(defs) == {name: name != "failed_checkpoints" for name in CHECKS if name != "lag"}


def test_a_person_can_run_one_of_them(jobs: Jobs, tmp_path: Path) -> None:
    jobs.put()
    defs, key = _defs(tmp_path)

    assert _look(defs, only={dg.AssetCheckKey(key, "running")}) == {"running": True}


def test_the_checks_of_a_job_that_has_never_run_can_be_run(jobs: Jobs, tmp_path: Path) -> None:
    jobs.put("another")
    defs, _ = _defs(tmp_path)
    assert _look(defs)["running"] is False
    jobs.put()

    assert _look(defs)["running"] is True


def test_checks_fail_with_the_cause_when_there_is_no_database(tmp_path: Path) -> None:
    defs, _ = _defs(tmp_path)
    result = defs.resolve_job_def("look").execute_in_process(raise_on_error=False)
    [failure] = [event for event in result.all_events if event.is_step_failure]

    assert failure.step_failure_data.user_failure_data is not None
    assert "there is no control database" in str(failure.step_failure_data.user_failure_data.description)
