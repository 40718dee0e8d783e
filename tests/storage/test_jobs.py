"""Jobs and their drivers: leases by the database's clock, and one newest driver."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from coord_control.errors import GenerationSuperseded, JobNotFound, JobStillAlive
from coord_control.storage import tables
from coord_control.storage.records import (
    AgentMetrics,
    BlockedRecord,
    EventType,
    GatewayRecord,
    JobState,
    LiveOperator,
    LiveQuery,
    LiveStatus,
    OperatorRecord,
    QueryRecord,
)
from coord_control.storage.store import ControlStore
from tests.records_kit import JOB, NOON, checkpoint, request
from tests.storage.kit import register


def test_a_driver_that_registers_is_known_with_its_queries_and_operators(store: ControlStore) -> None:
    types = (EventType(name="Threshold", schema={"type": "object", "title": "Schwelle \u20ac"}),)
    operator = OperatorRecord(uid="op", query="q", parallelism=4, event_types=types, applied_number=3)
    query = QueryRecord(name="q", query_id="7", lineage="/l", state="running", epoch=5, restarts=1, last_failure="x")
    register(store, queries=(query,), operators=(operator,), log_file="/log", spark_version="4.1.0", version="0.4")
    job = store.jobs.get(JOB)
    assert (job.state, job.generation, job.host, job.log_file) == (JobState.STARTING, 1, "here", "/log")
    assert (job.is_alive, job.ended_at, job.live, job.agent) == (True, None, None, None)
    assert job.operators == (operator,)
    assert [dataclasses.replace(each, updated_at=None) for each in job.queries] == [query]
    assert abs(job.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert job.created_at.tzinfo is UTC


def test_a_new_driver_does_not_show_where_the_queries_stood_under_an_older_one(store: ControlStore) -> None:
    query = QueryRecord(name="q", query_id="7", lineage="/l", state="running", epoch=144, restarts=6, last_failure="x")
    register(store, queries=(query,))
    store.jobs.heartbeat(JOB, 1, LiveStatus(queries=(LiveQuery(name="q", state="running", epoch=461),)))
    register(store, queries=(query,))  # the same driver has declared more
    assert [each.epoch for each in store.jobs.get(JOB).queries] == [461]
    register(store, generation=2, queries=())  # it has not declared any yet
    [found] = store.jobs.get(JOB).queries
    assert (found.state, found.epoch, found.restarts, found.last_failure) == ("", None, 0, "")
    assert (found.query_id, found.lineage) == ("7", "/l")


def test_a_heartbeat_brings_what_changes_all_the_time(store: ControlStore) -> None:
    register(store)
    gateways = (GatewayRecord(subtask=0, is_open=False, blocked=2, blocked_total=9, blocked_seconds=0.5, mailbox=1),)
    blocked_by = {"epoch": BlockedRecord(now=2, events=9, seconds=0.5), "checkpoint": BlockedRecord()}
    live = LiveStatus(
        queries=(
            LiveQuery(
                name="q",
                state="running",
                epoch=41,
                rows_per_second=2.5,
                lag_seconds=float("nan"),
                state_rows=9,
                watermark=NOON,
                rows=70,
                table="lake.alerts",
                columns={"carrier": "string"},
            ),
        ),
        operators=(
            LiveOperator(uid="op", epoch=41, blocked_now=2, blocked_by=blocked_by, closed=1, gateways=gateways),
        ),
        checkpoint=7,
    )
    heartbeat = store.jobs.heartbeat(JOB, 1, live, AgentMetrics(buffered=3), state=JobState.RUNNING)
    job = store.jobs.get(JOB)
    assert (job.heartbeat_at, job.state) == (heartbeat.now, JobState.RUNNING)
    assert job.agent == AgentMetrics(buffered=3)
    assert job.live is not None
    assert job.live.checkpoint == 7
    [query], [operator] = job.queries, job.operators
    assert (query.state, query.epoch, query.rows_per_second, query.lag_seconds) == ("running", 41, 2.5, None)
    assert (query.state_rows, query.watermark) == (9, NOON)
    assert (query.rows, query.output_rows) == (70, None)
    assert (query.table, query.columns) == ("lake.alerts", {"carrier": "string"})
    assert (operator.blocked_now, operator.closed, operator.gateways) == (2, 1, gateways)
    assert operator.blocked_by == blocked_by
    assert (query.query_id, operator.parallelism) == ("id", 2)


def test_a_heartbeat_from_before_the_clock_was_set_back_keeps_no_job_alive(store: ControlStore) -> None:
    """Fault: a driver that was killed right after the clock went back an hour counted as running for an hour."""
    register(store, lease_seconds=60.0)
    assert store.jobs.get(JOB).is_alive
    with store.database.transaction() as transaction:
        later = transaction.execute(select(tables.jobs.c.heartbeat_at)).scalar_one() + timedelta(hours=1)
        transaction.execute(update(tables.jobs).values(heartbeat_at=later))
    assert not store.jobs.get(JOB).is_alive


def test_a_job_without_a_heartbeat_within_its_lease_is_not_alive(store: ControlStore) -> None:
    register(store, lease_seconds=0.0)
    assert not store.jobs.get(JOB).is_alive
    register(store, lease_seconds=60.0)
    assert store.jobs.get(JOB).is_alive


@pytest.mark.parametrize("state", ["running", "restarting", "paused", "stopped", "finished", "failed", ""])
def test_a_query_that_was_active_when_its_driver_died_is_lost(store: ControlStore, state: str) -> None:
    """Bug: it was still running."""
    is_over = state in ("stopped", "finished", "failed", "")

    def seen() -> str:
        return store.jobs.get(JOB).queries[0].state

    for lease_seconds, expected in ((60.0, state), (0.0, state if is_over else "lost")):
        register(store, queries=(QueryRecord(name="q", state=state),), lease_seconds=lease_seconds)
        store.jobs.heartbeat(JOB, 1, LiveStatus(queries=(LiveQuery(name="q", state=state),)))
        assert seen() == expected
    store.jobs.ended(JOB, 1, queries=(QueryRecord(name="q", state="stopped"),))
    assert seen() == "stopped"


def test_a_newer_driver_takes_over_and_the_older_one_is_told(store: ControlStore) -> None:
    register(store)
    register(store, generation=2, host="there")
    with pytest.raises(GenerationSuperseded) as caught:
        store.jobs.heartbeat(JOB, 1)
    assert (caught.value.newest, caught.value.holder, caught.value.retry) == (2, "there", False)
    calls: list[Callable[[], object]] = [
        lambda: register(store, generation=1),
        lambda: store.jobs.update_queries(JOB, 1, [QueryRecord(name="other")]),
        lambda: store.jobs.update_operators(JOB, 1, [OperatorRecord(uid="other")]),
        lambda: store.jobs.ended(JOB, 1),
    ]
    for call in calls:
        with pytest.raises(GenerationSuperseded):
            call()
    job = store.jobs.get(JOB)
    assert (job.generation, job.host, job.state) == (2, "there", JobState.STARTING)
    assert [query.name for query in job.queries] == ["q"]


def test_generations_are_a_log_of_drivers(store: ControlStore) -> None:
    register(store)
    register(store, generation=2)
    register(store, generation=4)
    store.jobs.ended(JOB, 4, JobState.FAILED, "the query failed", is_clean=False)
    register(store, generation=5)
    store.jobs.ended(JOB, 5, reason="stopped")
    newest, failed, second, first = store.jobs.generations(JOB)
    assert (newest.generation, newest.is_clean, newest.end_reason) == (5, True, "stopped")
    assert (failed.generation, failed.is_clean, failed.end_reason) == (4, False, "the query failed")
    assert (second.is_clean, second.end_reason) == (False, "generation 4 took over")
    assert first.end_reason == "generation 2 took over"
    job = store.jobs.get(JOB)
    assert (job.state, job.end_reason, job.is_alive) == (JobState.ENDED, "stopped", False)


def test_a_driver_that_registers_again_is_the_same_one(store: ControlStore) -> None:
    register(store)
    started = store.jobs.get(JOB).driver_started_at
    register(store, state=JobState.RUNNING, operators=(OperatorRecord(uid="second"),))
    job = store.jobs.get(JOB)
    assert (job.driver_started_at, job.state) == (started, JobState.RUNNING)
    assert [operator.uid for operator in job.operators] == ["op", "second"]
    assert len(store.jobs.generations(JOB)) == 1


def test_a_job_that_is_not_there_names_the_similar_ones(store: ControlStore) -> None:
    for name in ("flights", "flights-eu", "orders"):
        register(store, name)
    with pytest.raises(JobNotFound, match="did you mean flights") as caught:
        store.jobs.get("fligths")
    assert "flights" in caught.value.near
    assert "orders" not in caught.value.near
    with pytest.raises(JobNotFound, match="when its driver starts"):
        store.jobs.get("completely else")
    for call in (store.jobs.generations, store.jobs.forget, lambda name: store.jobs.heartbeat(name, 1)):
        with pytest.raises(JobNotFound):
            call("nobody")


def test_jobs_are_listed_by_name(store: ControlStore) -> None:
    for name in ("c", "a", "b"):
        register(store, name, state=JobState.RUNNING if name == "b" else JobState.STARTING)
    assert [job.name for job in store.jobs.list()] == ["a", "b", "c"]
    assert [job.name for job in store.jobs.list(limit=1, after="a")] == ["b"]
    assert [job.name for job in store.jobs.list(state=JobState.RUNNING)] == ["b"]
    assert store.jobs.list()[0].queries == ()


def test_forgetting_a_job_removes_all_of_it_but_the_trail(store: ControlStore) -> None:
    register(store)
    store.commands.submit(request())
    store.checkpoints.save(JOB, checkpoint(1))
    with pytest.raises(JobStillAlive, match="here"):
        store.jobs.forget(JOB)
    store.jobs.ended(JOB, 1)
    store.jobs.forget(JOB)
    assert store.jobs.list() == ()
    assert store.commands.list() == ()
    assert [entry.outcome for entry in store.audit.list(JOB)] == ["refused", "requested"]
    register(store)
    with pytest.raises(JobNotFound, match="has to register"):
        store.jobs.heartbeat(JOB, 2)


def test_messages_are_made_to_fit_and_a_record_says_itself_as_json(store: ControlStore) -> None:
    register(store)
    store.jobs.ended(JOB, 1, JobState.FAILED, "\0" + "x" * 100_000 + "\ud800")
    job = store.jobs.get(JOB)
    assert len(job.end_reason) == 8000
    assert job.end_reason.startswith("\N{REPLACEMENT CHARACTER}x")
    document = job.to_json()
    assert document["state"] == "failed"
    assert document["created_at"] == job.created_at.isoformat()
    assert document["queries"][0]["name"] == "q"
