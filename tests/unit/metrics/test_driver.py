from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest

from coord_control.ids import CheckpointId, CheckpointKind, Epoch, Generation
from coord_control.metrics.driver import QUERY_STATES, driver_families
from coord_control.metrics.metric import Source
from coord_control.metrics.names import METRICS
from coord_control.metrics.observer import Observer
from coord_control.metrics.snapshot import AgentSnapshot, DriverSnapshot, EndpointSnapshot, WriterSnapshot
from coord_control.metrics.subtasks import MAX_SUBTASKS
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.durations import Durations
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.job_facts import FeedStatus, JobFacts, LiveFacts, LiveUse, QueryFacts, RecoveryCause
from coord_control.protocol.query_state import QueryState
from coord_control.protocol.status import JobStatus, QueryStatus, operator_statuses
from coord_control.storage.records import AgentMetrics
from tests.core_kit import OP, QUERY, Stage, spec
from tests.metrics_kit import Scraped, scraped
from tests.unit.metrics.facts_kit import UID, ended, recovery, statistics

JOB = "flights"
FACTS = JobFacts(
    name=JOB,
    root="r",
    folder="r/flights",
    generation=Generation(3),
    host="h",
    pid=7,
    started_at_seconds=1000.0,
    process_started=990.0,
    version="0.1",
    python_version="3.11",
    spark_version="4.3",
    master="local[2]",
    address="127.0.0.1",
    port=1,
    tls=False,
)
PROGRESS = {
    "stateOperators": [{"numRowsTotal": 5}],
    "sources": [{"endOffset": {"orders": {"0": 10}}, "latestOffset": {"orders": {"0": 17}}}],
    "inputRowsPerSecond": 3.0,
    "processedRowsPerSecond": 4.0,
    "durationMs": {"addBatch": 250},
    "eventTime": {"watermark": "2013-01-01T00:00:00.000Z", "max": "2013-01-01T00:00:10.000Z"},
}
AGENT = AgentSnapshot(
    is_connected=True,
    numbers=AgentMetrics(
        buffered=2, dropped=1, database_failures=4, last_contact=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    ),
    outcomes={("trigger_savepoint", "completed"): 3},
    under_way=1,
)


LIMITS = LiveFacts(
    name="limits",
    version=3,
    value=b'{"minutes": 45, "share": 0.5, "on": true, "carrier": "UA", "since": null}',
    by="ada",
    at_seconds=2000.0,
    schema={},
    uses={QUERY: LiveUse(version=2, since=Epoch(7), next_epoch=Epoch(42))},
)


def snapshot(stage: Stage | None = None, observer: Observer | None = None, **changes: Any) -> DriverSnapshot:
    stage = stage or started()
    operators = operator_statuses(stage.core, {UID: QUERY}, stage.now)
    query = QueryStatus(QUERY, "running", 41, 2, None, PROGRESS, batches=9, rows=90, batch_seconds=4.5)
    values: dict[str, Any] = {
        "facts": FACTS,
        "protocol_version": 1,
        "is_up": True,
        "status": JobStatus(JOB, 3, (query,), operators, 6, 8),
        "queries": (
            QueryFacts(name=QUERY, query_id="id", lineage="0002", checkpoint="c", operators=(UID,), status=query),
        ),
        "parallelism": {UID: stage.specs[0].parallelism},
        "feeds": {UID: FeedStatus(5, 4, 1)},
        "observed": (observer or Observer()).observed(),
        "endpoint": EndpointSnapshot(
            authenticated=3,
            strangers=1,
            accepted=9,
            frames_in=20,
            frames_out=19,
            dropped_answers=1,
            held_bytes=64,
            rejected={"tls": 0, "secret": 2},
        ),
        "writer": WriterSnapshot(writes=8, records=16, durations=Durations().plus(0.002)),
        "callbacks_waiting": 0,
        "recoveries_under_way": 1,
        "live": (LIMITS,),
        "agent": AGENT,
    }
    return DriverSnapshot(**{**values, **changes})


def started(parallelism: int = 2) -> Stage:
    stage = Stage([spec(parallelism=parallelism)])
    stage.start()
    return stage


def scrape(snapshot: DriverSnapshot, subtasks: int = 0) -> Scraped:
    return scraped(driver_families(snapshot, subtasks))


def everything() -> tuple[DriverSnapshot, Observer]:
    """A job in which all of it has happened."""
    stage, observer = started(), Observer()
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.trigger_checkpoint(9)
    stage.snapshot()
    stage.send(0, "a")
    observer.on_checkpoint(statistics(9))
    for kind in CheckpointKind:
        observer.on_checkpoint(ended(5, kind=kind))
        observer.on_checkpoint(ended(6, FailureReason.EXPIRED, kind=kind))
    observer.on_checkpoint(ended(7, FailureReason.EXPIRED))
    observer.on_checkpoint_discarded(CheckpointId(2))
    observer.on_recovery(recovery(RecoveryCause.RESTORE, checkpoint=CheckpointId(5)))
    observer.on_event_applied(UID, 5)
    return snapshot(stage, observer, progress={CheckpointId(9): Progress(4, 3, ())}), observer


def test_every_metric_of_the_table_has_a_sample_in_some_job() -> None:
    found = scrape(everything()[0], subtasks=2)
    expected = {name for name, metric in METRICS.items() if metric.source is Source.DRIVER}
    assert expected - found.names == set()


def test_nothing_per_subtask_unless_it_is_asked_for() -> None:
    found = scrape(everything()[0])
    assert {name for name in found.names if METRICS[name].on_request} == set()
    assert not [sample for sample in found.samples if "subtask" in sample.labels]


def test_versions_are_labels_of_an_info_metric() -> None:
    found = scrape(snapshot())
    labels = {"version": "0.1", "spark_version": "4.3", "python_version": "3.11", "protocol_version": "1", "host": "h"}
    assert found.get("driver_info", job_name=JOB, **labels) == 1
    assert found.get("query_info", query=QUERY, query_id="id", lineage="0002") == 1
    assert found.get("generation") == 3


def test_a_query_says_its_state_and_what_spark_has_told_of_it() -> None:
    found = scrape(snapshot())
    assert [found.get("query_state", state=state) for state in QUERY_STATES] == [1, 0, 0, 0, 0, 0]
    assert [found.get(f"query_{name}", query=QUERY) for name in ("epoch", "restarts_total", "rows_total")] == [
        41,
        2,
        90,
    ]
    assert found.get("query_watermark_lag_seconds") == 10
    assert found.get("query_state_rows") == 5
    assert found.get("query_backlog", source="0") == 7
    assert found.get("query_batch_part_seconds", part="addBatch") == 0.25
    assert [found.get(f"query_{name}_rows_per_second") for name in ("input", "processed")] == [3.0, 4.0]


def test_numbers_and_booleans_of_live_values_and_the_versions_that_queries_see() -> None:
    found = scrape(snapshot())
    samples = {each.labels["field"]: each.value for each in found.all("live_value", job_name=JOB, live="limits")}
    assert samples == {"minutes": 45, "share": 0.5, "on": 1}
    assert found.get("live_value_version", live="limits") == 3
    assert found.get("live_value_query_version", query=QUERY, live="limits") == 2
    assert found.get("live_value_change_timestamp_seconds", live="limits") == 2000
    assert not scrape(snapshot(live=())).all("live_value_version")


def test_a_query_without_a_commit_has_no_epoch() -> None:
    nothing_yet = QueryStatus(QUERY, "running", -1, 0, None)
    found = scrape(snapshot(status=JobStatus(JOB, 3, (nothing_yet,), (), 0, 0)))
    assert found.all("query_epoch") == []
    assert found.get("query_state", state="running") == 1


def test_the_states_are_those_that_a_query_can_have() -> None:
    assert {state.value for state in QueryState} == set(QUERY_STATES)


def test_blocked_events_say_where_for_how_long_and_because_of_which_checkpoint() -> None:
    stage = started()
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.send(0, "a")
    stage.trigger_checkpoint(9)
    stage.snapshot()
    stage.send(1, "b")
    stage.now += 2.0
    found = scrape(snapshot(stage), subtasks=10)
    where = {"job_name": JOB, "query": QUERY, "operator": OP}
    assert found.get("blocked_events", cause="epoch", **where) == 1
    assert found.get("blocked_events", cause="checkpoint", **where) == 1
    assert found.get("blocked_checkpoint_id", **where) == 9
    assert found.get("blocked_age_seconds", **where) == 2
    assert found.get("blocked_subtasks", **where) == 2
    assert found.get("events_blocked_total", **where) == 2
    assert found.get("blocked_seconds_total", **where) == 4
    assert found.get("subtask_blocked_events", subtask="1", **where) == 1
    assert found.get("subtask_blocked_age_seconds", subtask="1") == 2


def test_nothing_blocked_is_zero_and_no_checkpoint() -> None:
    found = scrape(snapshot())
    assert [sample.value for sample in found.all("blocked_events")] == [0, 0]
    assert found.get("blocked_age_seconds") == 0
    assert found.all("blocked_checkpoint_id") == []


def test_mailboxes_outboxes_and_bytes() -> None:
    stage = started()
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.ack(0, 0, 1, outbox="x y z")
    stage.send(0, "abc")
    found = scrape(snapshot(stage), subtasks=2)
    assert (found.get("mailbox_events"), found.get("outbox_events")) == (1, 3)
    assert (found.get("channel_bytes"), found.get("channel_max_bytes")) == (3, 3)
    assert found.get("subtask_outbox_events", subtask="0") == 3
    assert found.get("operator_epoch") == 0


def test_the_phases_of_epochs_are_histograms() -> None:
    stage = started()
    stage.hello(0, 0, 1)
    stage.now += 0.2
    stage.snapshot()
    stage.now += 3.0
    stage.ack(0, 0, 1)
    stage.now += 0.04
    stage.commit(0)
    found = scrape(snapshot(stage))
    for phase, seconds in (("begin", 0.2), ("ack", 3.0), ("settle", 0.04)):
        assert found.get(f"epoch_{phase}_duration_seconds_sum") == pytest.approx(seconds)
    assert found.get("epoch_duration_seconds_count", operator=OP) == 1
    assert [found.get("epoch_duration_seconds_bucket", le=le) for le in ("2.5", "5.0", "+Inf")] == [0, 1, 1]
    assert found.get("coordinator_snapshot_duration_seconds_sum") == pytest.approx(0.2)


def test_checkpoints_by_kind_and_reason() -> None:
    found = scrape(everything()[0])
    assert found.get("checkpoints_in_progress", kind="checkpoint") == 1
    assert found.get("checkpoint_in_progress_start_timestamp_seconds", kind="checkpoint") == 2000
    assert found.all("checkpoint_in_progress_start_timestamp_seconds", kind="savepoint") == []
    assert found.get("checkpoint_in_progress_passed_subtasks", kind="checkpoint") == 3
    assert found.get("checkpoints_completed_total", kind="savepoint") == 1
    assert found.get("checkpoints_failed_total", kind="checkpoint", reason="expired") == 2
    assert found.get("checkpoints_failed_total", kind="checkpoint", reason="storage_error") == 0
    assert found.all("checkpoints_failed_total", reason="queue_full") == []
    assert found.get("last_checkpoint_timestamp_seconds", kind="checkpoint") == 2002
    assert found.get("last_checkpoint_state_bytes", kind="checkpoint") == 7 + 100 + 20 + 10 + 5
    assert found.get("last_checkpoint_blocked_events", kind="savepoint") == 4
    assert found.get("checkpoint_duration_seconds_count", kind="checkpoint") == 1
    assert found.get("last_failed_checkpoint_id", kind="checkpoint") == 7
    assert found.get("checkpoint_failures_in_a_row") == 1


def test_recoveries_by_cause_with_zeros_for_those_that_never_were() -> None:
    found = scrape(everything()[0])
    assert found.get("recoveries_total", query=QUERY, cause="restore") == 1
    assert found.get("recoveries_total", query=QUERY, cause="driver_died") == 0
    assert found.get("recovery_epochs_rerun_total") == 2
    assert found.get("recovery_duration_seconds_count", cause="restore") == 1
    assert found.get("last_restored_checkpoint_id") == 5


def test_the_agent_the_endpoint_and_commands() -> None:
    found = scrape(snapshot())
    assert found.get("commands_total", kind="trigger_savepoint", outcome="completed") == 3
    assert (found.get("agent_connected"), found.get("agent_buffered_records")) == (1, 2)
    assert found.get("endpoint_connections", state="authenticated") == 3
    assert found.get("endpoint_rejections_total", reason="secret") == 2
    assert found.get("group_commit_records_total") == 16


def test_a_job_without_a_control_plane_says_nothing_of_an_agent() -> None:
    found = scrape(snapshot(agent=None))
    assert not {name for name in found.names if name.startswith(("agent_", "command"))}


def test_a_job_that_ends_is_not_up_and_keeps_its_counters() -> None:
    found = scrape(replace(everything()[0], status=None))
    assert found.get("job_up") == 0
    assert found.get("checkpoints_completed_total", kind="checkpoint") == 1
    assert found.all("query_state") == []


def test_a_job_that_has_failed_is_not_up() -> None:
    assert scrape(snapshot(is_up=False)).get("job_up") == 0


def test_ten_thousand_subtasks_are_no_more_series_than_two() -> None:
    few, many = scrape(snapshot(started(2))), scrape(snapshot(started(10_000)))
    assert len(few.samples) == len(many.samples)
    assert many.get("operator_subtasks") == 10_000


def test_of_ten_thousand_subtasks_no_more_are_shown_than_the_cap() -> None:
    stage = started(10_000)
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.send(9_876, "a")
    found = scrape(snapshot(stage), subtasks=1_000_000)
    shown = {sample.labels["subtask"] for sample in found.samples if "subtask" in sample.labels}
    assert len(shown) == MAX_SUBTASKS
    assert "9876" in shown  # the one that is blocked
    assert found.get("subtasks_left_out") == 10_000 - MAX_SUBTASKS
