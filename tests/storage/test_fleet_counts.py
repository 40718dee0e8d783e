"""How often things happened, over all jobs: what is counted, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from coord_control.storage.command_rows import least_id, new_id
from coord_control.storage.database import Database
from coord_control.storage.records import (
    CheckpointCount,
    CheckpointKind,
    CheckpointState,
    CommandCount,
    CommandKind,
    CommandState,
    FleetCounts,
    Outcome,
    ReasonCount,
)
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.records_kit import JOB, checkpoint, request
from tests.storage.kit import register, statements

HOUR = timedelta(hours=1)


def test_a_database_without_jobs_has_nothing_to_count(database: Database, store: ControlStore) -> None:
    register(store)
    store.jobs.ended(JOB, 1)
    store.jobs.forget(JOB)
    assert store.fleets.counts() == FleetCounts()


def test_checkpoints_by_kind_and_state_as_many_as_there_ever_were(store: ControlStore) -> None:
    register(store)
    for number in (1, 2):
        store.checkpoints.save(JOB, checkpoint(number))
    store.checkpoints.save(JOB, checkpoint(3, CheckpointState.FAILED, CheckpointKind.SAVEPOINT))
    store.checkpoints.discarded(JOB, [1])
    counted = {(each.kind, each.state): each.count for each in store.fleets.counts().checkpoints if each.count}
    assert counted == {("checkpoint", "completed"): 1, ("checkpoint", "discarded"): 1, ("savepoint", "failed"): 1}
    assert CheckpointCount(job=JOB, kind="savepoint", state="failed", count=1) in store.fleets.counts().checkpoints


def test_failures_of_the_window_by_reason(store: ControlStore) -> None:
    register(store)
    now = datetime.now(UTC)
    for number, minutes in ((1, 90), (2, 30), (3, 20)):
        triggered = now - timedelta(minutes=minutes)
        failed = checkpoint(number, CheckpointState.FAILED, triggered_at=triggered, reason="expired")
        store.checkpoints.save(JOB, failed)
    store.checkpoints.save(JOB, checkpoint(4, triggered_at=now))
    assert store.fleets.counts(window=HOUR).failures == (
        ReasonCount(job=JOB, kind="checkpoint", reason="expired", count=2),
    )


def test_recoveries_of_the_window_by_cause(store: ControlStore) -> None:
    register(store)
    now = datetime.now(UTC)
    recovery = records.recovery(cause="driver_died", started_at=now)
    store.recoveries.add(recovery)
    store.recoveries.add(replace(recovery, query="q"))
    store.recoveries.add(replace(recovery, started_at=now - 2 * HOUR))
    assert store.fleets.counts(window=HOUR).recoveries == (ReasonCount(job=JOB, reason="driver_died", count=2),)


def test_commands_that_wait_and_those_that_have_ended(store: ControlStore) -> None:
    register(store)
    first, second, _ = (store.commands.submit(request(key=key)) for key in ("a", "b", "c"))
    [command] = store.commands.claim(JOB, 1, 1)
    store.commands.finish(command.id, 1, Outcome(state=CommandState.COMPLETED))
    counts = store.fleets.counts(window=HOUR)
    kind = CommandKind.TRIGGER_CHECKPOINT.value
    assert counts.open_commands == (
        CommandCount(job=JOB, kind=kind, state="pending", count=2, oldest_at=second.requested_at),
    )
    assert counts.ended_commands == (
        CommandCount(job=JOB, kind=kind, state="completed", count=1, oldest_at=first.requested_at),
    )
    assert store.fleets.counts(window=timedelta(0)).ended_commands == ()


def test_these_jobs_only(store: ControlStore) -> None:
    for name in ("a", "b"):
        register(store, name)
        store.checkpoints.save(name, checkpoint(1, job=name))
        store.commands.submit(request(job=name, key="k"))
    counts = store.fleets.counts(["b", "nobody"])
    assert {each.job for each in counts.checkpoints} == {each.job for each in counts.open_commands} == {"b"}
    assert store.fleets.counts([]) == FleetCounts()


def test_many_jobs_take_as_many_statements_as_few(store: ControlStore) -> None:
    counts = []
    for jobs in (2, 40):
        for number in range(jobs):
            register(store, f"job-{number}")
        with statements() as asked:
            store.fleets.counts()
        counts.append(len(asked))
    assert counts[0] == counts[1]
    assert counts[1] <= 8


def test_ids_of_commands_before_a_time_are_below_its_least_id() -> None:
    now = datetime(2026, 3, 1, 12, 0, 0, 123_000, tzinfo=UTC)
    assert new_id(now - timedelta(milliseconds=1)) < least_id(now) <= new_id(now)
