"""The log of changes: what gets a place, and that a reader who follows it misses nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from coord_control.storage.records import (
    Change,
    CheckpointKind,
    CheckpointState,
)
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.records_kit import JOB, NOON, checkpoint, query_part, subtask_part, with_subtasks
from tests.storage.kit import register

_RECOVERY = records.recovery(cause="driver_died", query="q")


@pytest.fixture(autouse=True)
def job(store: ControlStore) -> None:
    register(store)


def seen(changes: tuple[Change, ...]) -> list[tuple[int, int | str]]:
    """Each by its place, and the number of its checkpoint or the cause of its recovery."""
    return [(each.sequence, _what(each)) for each in changes]


def _what(change: Change) -> int | str:
    if change.checkpoint is not None:
        return change.checkpoint.id
    assert change.recovery is not None
    return change.recovery.cause


def test_what_ends_gets_the_next_place_and_what_is_under_way_none(store: ControlStore) -> None:
    assert store.changes.newest() == 0
    store.checkpoints.save(JOB, checkpoint(1, CheckpointState.IN_PROGRESS))
    store.checkpoints.save(JOB, checkpoint(2, CheckpointState.IN_PROGRESS))
    assert store.changes.list() == ()
    assert store.checkpoints.get(JOB, 1).sequence is None
    store.checkpoints.save(JOB, checkpoint(2, kind=CheckpointKind.SAVEPOINT))
    store.recoveries.add(_RECOVERY)
    store.checkpoints.save(JOB, checkpoint(1, CheckpointState.FAILED))
    assert seen(store.changes.list()) == [(1, 2), (2, "driver_died"), (3, 1)]
    assert store.changes.newest() == 3
    assert (store.checkpoints.get(JOB, 1).sequence, store.recoveries.list(JOB)[0].sequence) == (3, 2)


def test_a_change_tells_everything_of_its_checkpoint_or_recovery(store: ControlStore) -> None:
    queries = (query_part(query="q", boundary=3, offsets={"rate": 7}),)
    store.checkpoints.save(JOB, checkpoint(1, queries=queries, requested_by="ada"))
    store.recoveries.add(_RECOVERY)
    ended, recovered = store.changes.list()
    assert ended == Change(sequence=1, job=JOB, checkpoint=store.checkpoints.get(JOB, 1))
    assert ended.checkpoint is not None
    assert ended.checkpoint.queries == queries
    assert recovered == Change(sequence=2, job=JOB, recovery=store.recoveries.list(JOB)[0])


@pytest.mark.parametrize("again", [CheckpointState.COMPLETED, CheckpointState.DISCARDED, CheckpointState.FAILED])
def test_the_same_again_gets_no_second_place(store: ControlStore, again: CheckpointState) -> None:
    store.checkpoints.save(JOB, checkpoint(1))
    store.checkpoints.save(JOB, checkpoint(1, again))
    store.checkpoints.discarded(JOB, [1])
    store.recoveries.add(_RECOVERY)
    store.recoveries.add(replace(_RECOVERY, duration_seconds=2.0))
    assert seen(store.changes.list()) == [(1, 1), (2, "driver_died")]
    assert store.changes.newest() == 2
    [change, _] = store.changes.list()
    assert change.checkpoint is not None
    assert change.checkpoint.state is CheckpointState.DISCARDED


def test_what_was_removed_from_storage_before_anybody_heard_of_it_has_a_place(store: ControlStore) -> None:
    store.checkpoints.save(JOB, checkpoint(1, CheckpointState.DISCARDED))
    assert seen(store.changes.list()) == [(1, 1)]


def test_a_failed_one_that_is_complete_after_all_comes_once_more(store: ControlStore) -> None:
    store.checkpoints.save(JOB, checkpoint(1, CheckpointState.FAILED))
    store.checkpoints.save(JOB, checkpoint(1, CheckpointState.FAILED, message="again"))
    assert seen(store.changes.list()) == [(1, 1)]
    store.checkpoints.save(JOB, checkpoint(1))
    assert seen(store.changes.list(after=1)) == [(2, 1)]
    assert seen(store.changes.list()) == [(2, 1)]


def test_pages_and_jobs(store: ControlStore) -> None:
    register(store, "orders")
    for number in range(1, 6):
        store.checkpoints.save(JOB, checkpoint(number))
        store.recoveries.add(replace(_RECOVERY, started_at=NOON + timedelta(seconds=number)))
        store.checkpoints.save("orders", checkpoint(number, job="orders"))
    pages, after = [], 0
    while page := store.changes.list(after, limit=4):
        pages.append([each.sequence for each in page])
        after = page[-1].sequence
    assert pages == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15]]
    assert [each.sequence for each in store.changes.list(jobs=["orders"])] == [3, 6, 9, 12, 15]
    assert {each.job for each in store.changes.list(jobs=[JOB])} == {JOB}
    assert store.changes.list(jobs=["nobody"]) == ()
    assert store.changes.list(jobs=[]) == ()


def test_history_that_was_removed_leaves_the_log_and_its_places_are_not_given_again(store: ControlStore) -> None:
    register(store, "orders")
    store.checkpoints.save(JOB, checkpoint(1))
    store.jobs.forget(JOB, force=True)
    store.checkpoints.save("orders", checkpoint(1, job="orders"))
    assert [each.sequence for each in store.changes.list()] == [2]


def test_the_subtasks_of_many_checkpoints(store: ControlStore) -> None:
    register(store, "orders")
    parts = [subtask_part(operator="op", subtask=number, passed_seconds=0.5) for number in range(2)]
    store.checkpoints.save(JOB, with_subtasks(checkpoint(1), parts))
    store.checkpoints.save("orders", with_subtasks(checkpoint(1, job="orders"), parts[:1]))
    store.checkpoints.save("orders", checkpoint(2, job="orders"))
    wanted = [(JOB, 1), ("orders", 1), ("orders", 2), ("orders", 3), ("nobody", 1)]
    assert store.checkpoints.subtasks_of(wanted) == {
        (JOB, 1): tuple(parts),
        ("orders", 1): tuple(parts[:1]),
        ("orders", 2): (),
        ("orders", 3): (),
        ("nobody", 1): (),
    }
    assert store.checkpoints.subtasks_of([]) == {}
