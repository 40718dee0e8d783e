from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.errors import DatabaseUnavailable
from coord_control.metrics.database_collector import DatabaseCollector
from coord_control.metrics.metric import Source
from coord_control.metrics.names import METRICS
from coord_control.metrics.subtasks import MAX_SUBTASKS
from coord_control.storage.records import (
    ENDED_TO_RESTART,
    AgentMetrics,
    CheckpointKind,
    CheckpointState,
    CommandState,
    Fleet,
    GatewayRecord,
    JobState,
    LiveOperator,
    LiveQuery,
    LiveStatus,
    Outcome,
)
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.metrics_kit import Scraped, scraped
from tests.records_kit import recovery, request
from tests.storage.kit import statements


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Outage(ControlClient):
    """A client whose database can go away."""

    is_away = False

    def fleet(self, jobs: Collection[str] | None = None, *, window: timedelta = timedelta(hours=1)) -> Fleet:
        if self.is_away:
            raise DatabaseUnavailable(self.url, "away")
        return super().fleet(jobs, window=window)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    with kit.opened(tmp_path) as store:
        kit.put_job(store)
        yield store


@pytest.fixture
def client(tmp_path: Path, store: ControlStore) -> Iterator[Outage]:
    with Outage(settings=kit.settings(tmp_path)) as client:
        yield client


def scrape(client: ControlClient, subtasks: int = 0, jobs: Collection[str] | None = None) -> Scraped:
    return scraped(DatabaseCollector(client, jobs, cache_seconds=0.0).page(subtasks))


def put_everything(store: ControlStore) -> None:
    now = datetime.now(UTC)
    gateways = (GatewayRecord(subtask=0, is_open=False, blocked=2, blocked_total=5, blocked_seconds=1.5, mailbox=1),)
    operator = LiveOperator(
        uid=kit.OPERATOR, epoch=42, blocked_now=2, blocked_total=5, blocked_seconds=1.5, closed=1, gateways=gateways
    )
    query = LiveQuery(
        name="alerts",
        state="running",
        epoch=42,
        input_rows_per_second=8.0,
        rows_per_second=9.0,
        backlog=70,
        lag_seconds=2.5,
        state_rows=3,
        watermark=now,
    )
    agent = AgentMetrics(buffered=3, dropped=1, database_failures=2)
    store.jobs.heartbeat(kit.JOB, 1, LiveStatus(queries=(query,), operators=(operator,)), agent)
    kit.put_live_value(store, carrier="UA", minutes=45, on=False)
    kit.put_checkpoint(store, 1)
    kit.put_checkpoint(store, 2, kind=CheckpointKind.SAVEPOINT)
    kit.put_checkpoint(store, 3, state=CheckpointState.FAILED, reason="expired", triggered_at=now, path=None)
    kit.put_recovery(store, "it died")
    store.recoveries.add(recovery(started_at=now, duration_seconds=3.0))
    for key in ("done", "waits"):
        store.commands.submit(request(job=kit.JOB, key=key))
    [command] = store.commands.claim(kit.JOB, 1, 1)
    store.commands.finish(command.id, 1, Outcome(state=CommandState.COMPLETED))
    kit.put_job(store, "over")
    store.jobs.ended("over", 1, JobState.FAILED, "it has failed")


def test_every_metric_of_the_table_has_a_sample_when_everything_has_happened(
    store: ControlStore, client: ControlClient
) -> None:
    put_everything(store)
    expected = {name for name, metric in METRICS.items() if metric.source is Source.EXPORTER}
    found = scrape(client, subtasks=5)
    assert expected - found.names == set()
    assert not {name for name in found.names if METRICS[name].source is Source.DRIVER}


def test_nothing_per_subtask_unless_it_is_asked_for(store: ControlStore, client: ControlClient) -> None:
    put_everything(store)
    assert not [sample for sample in scrape(client).samples if "subtask" in sample.labels]


def test_a_job_as_its_driver_last_said(store: ControlStore, client: ControlClient) -> None:
    put_everything(store)
    found = scrape(client, subtasks=1)
    where = {"job_name": kit.JOB, "query": "alerts", "operator": kit.OPERATOR}
    assert found.get("fleet_blocked_events", **where) == 2
    assert found.get("fleet_events_blocked_total", **where) == 5
    assert found.get("fleet_blocked_seconds_total", **where) == 1.5
    assert found.get("fleet_subtask_blocked_events", subtask="0", **where) == 2
    assert found.get("fleet_query_epoch", job_name=kit.JOB) == 42
    assert found.get("fleet_query_state", job_name=kit.JOB, state="running") == 1
    assert found.get("fleet_agent_buffered_records", job_name=kit.JOB) == 3
    assert found.get("fleet_job_alive", job_name=kit.JOB) == 1
    samples = {each.labels["field"]: each.value for each in found.all("fleet_live_value", live="limits")}
    assert samples == {"minutes": 45, "on": 0}
    assert found.get("fleet_live_value_version", job_name=kit.JOB, live="limits") == 3
    assert found.get("fleet_live_value_query_version", job_name=kit.JOB, query="alerts", live="limits") == 2
    assert found.get("fleet_job_state", job_name="over", state="failed") == 1
    assert found.get("fleet_jobs", state="failed", alive="false") == 1


def test_checkpoints_and_savepoints_apart(store: ControlStore, client: ControlClient) -> None:
    put_everything(store)
    found = scrape(client)
    of_job = {"job_name": kit.JOB}
    assert found.get("fleet_last_checkpoint_id", kind="checkpoint", **of_job) == 1
    assert found.get("fleet_last_checkpoint_id", kind="savepoint", **of_job) == 2
    assert found.get("fleet_last_checkpoint_state_bytes", kind="savepoint", **of_job) == 1_234_567
    assert found.get("fleet_last_failed_checkpoint_id", kind="checkpoint", **of_job) == 3
    assert found.get("fleet_checkpoints_completed_total", kind="checkpoint", **of_job) == 1
    assert found.get("fleet_checkpoints_completed_total", kind="checkpoint", job_name="over") == 0
    assert found.get("fleet_checkpoint_failures_last_hour", reason="expired", **of_job) == 1


def test_a_discarded_checkpoint_stays_counted_as_completed(store: ControlStore, client: ControlClient) -> None:
    kit.put_checkpoint(store, 1)
    store.checkpoints.discarded(kit.JOB, [1])
    found = scrape(client)
    assert found.get("fleet_checkpoints_completed_total", kind="checkpoint") == 1
    assert found.get("fleet_checkpoints_stored", kind="checkpoint") == 0


def test_commands_and_recoveries_of_the_last_hour(store: ControlStore, client: ControlClient) -> None:
    put_everything(store)
    found = scrape(client)
    assert found.get("fleet_commands_open", kind="trigger_checkpoint", state="pending") == 1
    assert found.get("fleet_commands_last_hour", kind="trigger_checkpoint", outcome="completed") == 1
    assert found.get("fleet_recoveries_last_hour", cause="query_failed") == 1  # the other one is older
    assert found.get("fleet_last_recovery_duration_seconds") == 3


def test_what_a_dead_driver_said_of_now_is_not_repeated(store: ControlStore, client: ControlClient) -> None:
    put_everything(store)
    store.jobs.ended(kit.JOB, 1, JobState.ENDED, "stopped")
    found = scrape(client, subtasks=5)
    assert found.get("fleet_job_alive", job_name=kit.JOB) == 0
    assert not {name for name in found.names if name.startswith(("fleet_blocked", "fleet_query", "fleet_subtask_"))}
    assert found.get("fleet_last_checkpoint_id", job_name=kit.JOB, kind="checkpoint") == 1


@pytest.mark.parametrize(
    ("state", "reason", "has_ended"),
    [
        (JobState.ENDED, "stopped", True),
        (JobState.FAILED, "boom", True),
        (JobState.ENDED, ENDED_TO_RESTART, False),  # the alert for dead drivers takes those that have not ended
    ],
)
def test_a_job_that_was_to_start_again_and_has_not_counts_as_dead(
    store: ControlStore, client: ControlClient, state: JobState, reason: str, *, has_ended: bool
) -> None:
    kit.put_job(store, is_supervised=False)
    store.jobs.ended(kit.JOB, 1, state, reason)
    assert ("fleet_job_end_timestamp_seconds" in scrape(client).names) is has_ended


def test_these_jobs_only(store: ControlStore, client: ControlClient) -> None:
    put_everything(store)
    found = scrape(client, jobs=["over"])
    assert {sample.labels["job_name"] for sample in found.samples if "job_name" in sample.labels} == {"over"}


def test_drivers_that_live_can_be_discovered(store: ControlStore, client: Outage) -> None:
    for name, address in (("over", "here:1"), ("silent", "")):
        kit.put_job(store, name)
        store.jobs.heartbeat(name, 1, LiveStatus(metrics=address))
    store.jobs.ended("over", 1)
    store.jobs.heartbeat(kit.JOB, 1, LiveStatus(metrics="here:9404"))
    assert DatabaseCollector(client, cache_seconds=0.0).targets() == [
        {"targets": ["here:9404"], "labels": {"__meta_coord_control_job_name": kit.JOB}}
    ]
    client.is_away = True
    assert DatabaseCollector(client, cache_seconds=0.0).targets() is None


def test_a_database_that_is_away_is_a_metric_and_no_error(store: ControlStore, client: Outage) -> None:
    collector = DatabaseCollector(client, cache_seconds=0.0)
    client.is_away = True
    away = scraped(collector.page())
    assert (away.get("database_up"), away.get("database_failures_total")) == (0, 1)
    assert not [sample for sample in away.samples if "job_name" in sample.labels]
    client.is_away = False
    back = scraped(collector.page())
    assert (back.get("database_up"), back.get("database_failures_total")) == (1, 1)
    assert back.get("fleet_job_alive", job_name=kit.JOB) == 1


def test_a_database_that_is_not_there_is_down(tmp_path: Path) -> None:
    with ControlClient(settings=kit.settings(tmp_path / "nowhere")) as client:
        assert scrape(client).get("database_up") == 0
    assert not (tmp_path / "nowhere").exists()


def test_the_database_is_read_once_in_a_while_however_often_it_is_scraped(client: Outage) -> None:
    clock = Clock()
    collector = DatabaseCollector(client, cache_seconds=5.0, clock=clock)
    collector.page()
    with statements() as asked:
        clock.now += 4.9
        collector.page()
        assert asked == []
        clock.now += 0.1
        collector.page()
        assert asked
    client.is_away = True
    clock.now += 5.0
    assert scraped(collector.page()).get("database_up") == 0
    client.is_away = False  # a failure is kept for as long, so that an outage is not made worse
    assert scraped(collector.page()).get("database_failures_total") == 1


def test_many_jobs_take_as_many_statements_as_few(store: ControlStore, client: ControlClient) -> None:
    counts = []
    scrape(client)  # the first one looks at the version of the tables, too
    for jobs in (2, 60):
        for number in range(jobs):
            kit.put_job(store, f"job-{number}")
        with statements() as asked:
            scrape(client)
        counts.append(len(asked))
    assert counts[0] == counts[1]
    assert counts[1] <= 20


def test_ten_thousand_subtasks_of_all_jobs_are_bounded(store: ControlStore, client: ControlClient) -> None:
    gateways = tuple(GatewayRecord(subtask=subtask) for subtask in range(5_000))
    operator = LiveOperator(uid=kit.OPERATOR, gateways=gateways)
    kit.put_job(store, "other")
    for job in (kit.JOB, "other"):
        store.jobs.heartbeat(job, 1, LiveStatus(operators=(operator,)))
    found = scrape(client, subtasks=10_000)
    assert len(found.all("fleet_subtask_mailbox_events")) == MAX_SUBTASKS
    [left_out] = found.all("fleet_subtasks_left_out")
    assert left_out.value == 10_000 - MAX_SUBTASKS
