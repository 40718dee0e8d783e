"""History is bounded, and nothing that something refers to is removed: each reference has its test."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from coord_control.storage import retention, tables
from coord_control.storage.records import (
    AuditRecord,
    CheckpointRecord,
    CheckpointState,
    CommandKind,
    CommandState,
    OperatorRecord,
    Outcome,
    QuerySample,
    SavepointRecord,
)
from coord_control.storage.retention import RetentionPolicy, prune
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.records_kit import JOB, NOON, checkpoint, operator_part, query_part, request, subtask_part, with_subtasks
from tests.storage.kit import register

#: Everything that the tests write is older than this allows.
NOTHING = RetentionPolicy(history=timedelta(0))
LATER = datetime.now(UTC) + timedelta(days=1000)


def ids(store: ControlStore) -> list[int]:
    return [each.id for each in store.checkpoints.list(JOB, limit=10_000)]


def rows(store: ControlStore, table: str) -> int:
    with store.database.reading() as transaction:
        query = select(func.count()).select_from(tables.metadata.tables[table])
        return int(transaction.execute(query).scalar_one())


def ended_command(store: ControlStore, kind: CommandKind = CommandKind.STOP, operator: str | None = None) -> str:
    command = store.commands.submit(request(kind, operator=operator)).id
    store.commands.claim(JOB, 1)
    if operator is not None:
        store.commands.accept_event(command, 1)
    store.commands.finish(command, 1, Outcome(state=CommandState.COMPLETED))
    return command


def numbers(store: ControlStore) -> list[int]:
    return sorted(command.number for command in store.commands.list(JOB) if command.number is not None)


def test_old_checkpoints_go_with_what_belongs_to_them(store: ControlStore) -> None:
    register(store)
    for number, state in enumerate([CheckpointState.FAILED, CheckpointState.DISCARDED, CheckpointState.COMPLETED], 1):
        store.checkpoints.save(JOB, with_subtasks(checkpoint(number, state), [subtask_part()]))
    report = prune(store.database, NOTHING)
    assert (report.is_leader, report.removed["checkpoints"]) == (True, 2)
    assert ids(store) == [3]
    assert rows(store, "checkpoint_details") == 1
    assert store.checkpoints.summary(JOB).counts["total"] == 3  # they were there all the same
    assert prune(store.database, NOTHING).removed["checkpoints"] == 0


def test_young_history_stays(store: ControlStore) -> None:
    register(store)
    now = datetime.now(UTC)
    store.checkpoints.save(JOB, checkpoint(1, CheckpointState.FAILED, triggered_at=now))
    ended_command(store)
    store.recoveries.add(records.recovery(cause="driver_start", started_at=now))
    assert set(prune(store.database).removed.values()) == {0}


def test_what_is_more_than_the_policy_keeps_goes_oldest_first(store: ControlStore) -> None:
    register(store)
    now = datetime.now(UTC)
    for number in range(1, 11):
        store.checkpoints.save(JOB, checkpoint(number, CheckpointState.FAILED, triggered_at=now))
    commands = [ended_command(store) for _ in range(4)]
    for generation in range(2, 6):
        register(store, generation=generation)
    removed = prune(store.database, RetentionPolicy(checkpoints=3, commands=2, generations=2, audit=5)).removed
    assert ids(store) == [10, 9, 8]
    assert [command.id for command in store.commands.list(JOB)] == commands[:1:-1]
    assert [each.generation for each in store.jobs.generations(JOB)] == [5, 4]
    assert len(store.audit.list()) == 5
    assert (removed["checkpoints"], removed["commands"], removed["generations"]) == (7, 2, 3)


def _recovered_from(store: ControlStore) -> None:
    recovery = records.recovery(cause="restore", started_at=LATER, from_checkpoint=1)
    store.recoveries.add(recovery)


def _saved_as(store: ControlStore) -> None:
    store.savepoints.save(SavepointRecord(path="/s", job=JOB, checkpoint=1))


def _asked_for(store: ControlStore) -> None:
    command = store.commands.submit(request()).id
    store.commands.claim(JOB, 1)
    store.commands.progress(command, 1, {}, checkpoint=1)


@pytest.mark.parametrize("refer", [_recovered_from, _saved_as, _asked_for])
def test_a_checkpoint_that_something_refers_to_stays(
    store: ControlStore, refer: Callable[[ControlStore], None]
) -> None:
    register(store)
    register(store, "orders")
    for number in (1, 2):
        store.checkpoints.save(JOB, checkpoint(number, CheckpointState.DISCARDED))
        store.checkpoints.save("orders", checkpoint(number, CheckpointState.DISCARDED, job="orders"))
    store.checkpoints.save(JOB, checkpoint(3))
    refer(store)
    prune(store.database, NOTHING)
    assert ids(store) == [3, 1]
    assert [each.id for each in store.checkpoints.list("orders")] == [2]  # the newest that was completed


def test_a_checkpoint_on_storage_stays_and_so_does_the_newest_that_was_completed(store: ControlStore) -> None:
    register(store)
    store.checkpoints.save(JOB, checkpoint(1))
    for number in (2, 3):
        store.checkpoints.save(JOB, checkpoint(number, CheckpointState.DISCARDED))
    store.checkpoints.save(JOB, checkpoint(4, CheckpointState.FAILED))
    prune(store.database, RetentionPolicy(history=timedelta(0), checkpoints=1))
    assert ids(store) == [3, 1]


def test_a_checkpoint_in_progress_stays_while_its_driver_is_the_newest(store: ControlStore) -> None:
    register(store)
    store.checkpoints.save(JOB, checkpoint(1, CheckpointState.IN_PROGRESS, generation=1))
    prune(store.database, NOTHING)
    assert ids(store) == [1]
    register(store, generation=2)
    prune(store.database, NOTHING)
    assert ids(store) == []


def test_an_old_recovery_frees_the_checkpoint_that_it_refers_to(store: ControlStore) -> None:
    register(store)
    for number in (1, 2):
        store.checkpoints.save(JOB, checkpoint(number, CheckpointState.DISCARDED))
    recovery = records.recovery(cause="restore", from_checkpoint=1)
    store.recoveries.add(recovery)
    assert prune(store.database, NOTHING).removed["recoveries"] == 1
    assert ids(store) == [2]


def test_commands_that_are_not_finished_and_the_last_event_of_each_operator_stay(store: ControlStore) -> None:
    register(store)
    first = [ended_command(store, CommandKind.SEND_EVENT, "op") for _ in range(3)]
    durable(store, 3)
    other = ended_command(store, CommandKind.SEND_EVENT, "other")
    claimed = store.commands.submit(request()).id
    store.commands.claim(JOB, 1)
    pending = store.commands.submit(request()).id
    ended_command_is_gone = ended_command(store)
    store.commands.submit(request(key="later"))
    prune(store.database, NOTHING, now=LATER)
    left = {command.id for command in store.commands.list(JOB)}
    assert {first[2], other, claimed, pending} <= left
    assert not left & {first[0], first[1], ended_command_is_gone}
    again = ended_command(store, CommandKind.SEND_EVENT, "op")
    assert store.commands.get(again).number == 4


def durable(store: ControlStore, number: int, job: str = JOB) -> None:
    """The job's operator has this number in its durable state."""
    operator = OperatorRecord(uid="op", query="q", parallelism=2, applied_number=number)
    store.jobs.update_operators(job, 1, [operator])


def containing(number: int, events: int | None, **values: Any) -> CheckpointRecord:
    """A checkpoint that contains the events up to a number."""
    applied = None if events is None else {values.get("job", JOB): events}
    operators = (operator_part(operator="op", applied_events=applied),)
    return checkpoint(number, queries=(query_part(query="q", boundary=1, operators=operators),), **values)


@pytest.mark.parametrize("at", [NOON, LATER])
def test_control_events_above_the_oldest_number_that_can_be_restored_stay_whatever_the_clocks_say(
    store: ControlStore, at: datetime
) -> None:
    register(store)
    register(store, "orders")
    events = [ended_command(store, CommandKind.SEND_EVENT, "op") for _ in range(5)]
    durable(store, 5)
    store.checkpoints.save("orders", containing(1, 0, job="orders", triggered_at=at))
    store.checkpoints.save(JOB, containing(1, 2, triggered_at=at))
    store.checkpoints.save(JOB, containing(2, 3, triggered_at=at, finished_at=at))
    policy = RetentionPolicy(history=timedelta(0), commands=1)
    prune(store.database, policy, now=LATER)
    assert numbers(store) == [3, 4, 5]
    store.checkpoints.discarded(JOB, [1])
    prune(store.database, policy, now=LATER)
    assert numbers(store) == [4, 5]
    store.checkpoints.save(JOB, containing(3, 5, state=CheckpointState.FAILED))
    store.checkpoints.discarded(JOB, [2])
    prune(store.database, policy, now=LATER)
    assert numbers(store) == [5]
    assert store.commands.get(events[4]).number == 5


def test_a_job_that_was_set_back_keeps_the_events_above_its_own_durable_number(store: ControlStore) -> None:
    register(store)
    for _ in range(4):
        ended_command(store, CommandKind.SEND_EVENT, "op")
    durable(store, 2)  # restored from a checkpoint that was disposed of since
    prune(store.database, NOTHING, now=LATER)
    assert numbers(store) == [3, 4]


@pytest.mark.parametrize("generation", [1, 2])
def test_a_checkpoint_in_progress_keeps_events_while_its_driver_may_complete_it(
    store: ControlStore, generation: int
) -> None:
    register(store)
    for _ in range(3):
        ended_command(store, CommandKind.SEND_EVENT, "op")
    durable(store, 3)
    store.checkpoints.save(JOB, checkpoint(1, CheckpointState.IN_PROGRESS, generation=1))
    if generation == 2:
        register(store, generation=2, operators=())
    prune(store.database, NOTHING, now=LATER)
    assert numbers(store) == ([1, 2, 3] if generation == 1 else [3])


def test_a_checkpoint_that_does_not_say_what_it_contains_keeps_all_events(store: ControlStore) -> None:
    register(store)
    for _ in range(3):
        ended_command(store, CommandKind.SEND_EVENT, "op")
    durable(store, 3)
    store.checkpoints.save(JOB, containing(1, None))
    store.checkpoints.save(JOB, checkpoint(2))
    prune(store.database, NOTHING, now=LATER)
    assert numbers(store) == [1, 2, 3]


def test_a_savepoint_that_no_checkpoint_of_this_database_tells_of_keeps_events_too(store: ControlStore) -> None:
    register(store)
    for _ in range(4):
        ended_command(store, CommandKind.SEND_EVENT, "op")
    durable(store, 4)
    store.checkpoints.save(JOB, containing(1, 4, path="/saved/two"))
    own = SavepointRecord(path="/saved/two", job=JOB, checkpoint=1)  # what it contains is known from the checkpoint
    store.savepoints.save(own)
    imported = SavepointRecord(path="/saved/one", job=JOB, imported=True, applied_numbers={"op": 2})
    store.savepoints.save(imported)
    prune(store.database, NOTHING, now=LATER)
    assert numbers(store) == [3, 4]
    store.savepoints.forget("/saved/one")
    prune(store.database, NOTHING, now=LATER)
    assert numbers(store) == [4]


def test_the_audit_trail_is_bounded_by_age(store: ControlStore) -> None:
    for at in (NOON, LATER):
        store.audit.add(AuditRecord(actor="ada", action="import", at=at))
    assert prune(store.database, NOTHING).removed["audit"] == 1
    assert [entry.at for entry in store.audit.list()] == [LATER]


def test_samples_go_when_coarser_ones_are_there_and_not_before(store: ControlStore) -> None:
    register(store)
    begin = datetime.now(UTC) - timedelta(minutes=10)
    store.samples.add([QuerySample(job=JOB, query="q", at=begin + timedelta(seconds=5 * n), rows=1) for n in range(60)])
    prune(store.database, now=begin + timedelta(days=2))
    assert len(store.samples.queries(JOB, begin - timedelta(minutes=1))) == 60
    store.samples.roll_up(begin + timedelta(days=2))
    prune(store.database, now=begin + timedelta(minutes=30))
    assert len(store.samples.queries(JOB, begin - timedelta(minutes=1))) == 60
    prune(store.database, now=begin + timedelta(days=2))
    assert store.samples.queries(JOB, begin - timedelta(minutes=1)) == ()
    assert store.samples.queries(JOB, NOON, resolution=60) == ()
    hours = store.samples.queries(JOB, NOON, resolution=3600)
    assert sum(sample.rows for sample in hours) == 60
    prune(store.database, now=begin + timedelta(days=91))
    assert store.samples.queries(JOB, NOON, resolution=3600) == ()


def test_it_goes_in_small_steps_and_all_is_done_in_the_end(
    store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_BATCH", 3)
    register(store)
    for number in range(1, 12):
        store.checkpoints.save(JOB, checkpoint(number, CheckpointState.FAILED))
    assert prune(store.database, NOTHING).removed["checkpoints"] == 11
    assert ids(store) == []


def test_only_one_process_does_it_and_a_dead_one_is_succeeded(store: ControlStore) -> None:
    register(store)
    with store.database.transaction() as transaction:
        values = {"duty": "retention", "at": transaction.now}
        transaction.execute(tables.upkeep.insert(), values)
    assert not prune(store.database).is_leader
    with store.database.transaction() as transaction:
        dead = transaction.now - timedelta(minutes=5)
        transaction.execute(tables.upkeep.update().values(at=dead))
    assert prune(store.database).is_leader
    assert rows(store, "upkeep") == 0
