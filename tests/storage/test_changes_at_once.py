"""Whoever follows the log of changes while many write misses nothing and sees nothing twice."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest
from sqlalchemy import Connection, Engine, event

from coord_control.errors import JobNotFound
from coord_control.storage.database import Database
from coord_control.storage.jobs import find
from coord_control.storage.records import Change, CheckpointState
from coord_control.storage.sequences import take_sequence
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.records_kit import JOB, NOON, checkpoint, subtask_part, with_subtasks
from tests.storage.kit import register

_WRITERS: Final = 6
_EACH: Final = 25


def what(change: Change) -> tuple[str, str, int]:
    if change.checkpoint is not None:
        return change.job, "checkpoint", change.checkpoint.id
    assert change.recovery is not None
    return change.job, "recovery", int((change.recovery.started_at - NOON).total_seconds())


def give_back(store: ControlStore) -> None:
    """A transaction that takes a number and comes to nothing."""
    with store.database.transaction() as transaction:
        take_sequence(transaction)
        find(transaction, "nobody", "")


def write(url: str, name: str, dice: random.Random) -> None:
    """Checkpoints and recoveries of one job, each written again now and then, and some writes that fail."""
    store = ControlStore(Database(url, application=name))
    recovery = records.recovery(job=name)
    parts = [subtask_part(operator="op", subtask=number) for number in range(20)]
    for number in range(1, _EACH + 1):
        ended = checkpoint(number, dice.choice([CheckpointState.COMPLETED, CheckpointState.FAILED]), job=name)
        store.checkpoints.save(name, replace(ended, state=CheckpointState.IN_PROGRESS))
        for _ in range(dice.randint(1, 2)):
            store.checkpoints.save(name, with_subtasks(ended, parts))
        for _ in range(dice.randint(1, 2)):
            store.recoveries.add(replace(recovery, started_at=NOON + timedelta(seconds=number)))
        if dice.random() < 0.3:
            with pytest.raises(JobNotFound):
                give_back(store)
        if dice.random() < 0.3:
            store.checkpoints.discarded(name, [number])
    store.close()


def test_a_reader_beside_many_writers_sees_each_change_once(url: str, store: ControlStore) -> None:
    names = [f"job-{number}" for number in range(_WRITERS)]
    for name in names:
        register(store, name)
    is_over = threading.Event()
    seen: list[Change] = []

    def follow() -> None:
        reader = ControlStore(Database(url, application="reader"))
        while True:
            was_over = is_over.is_set()
            page = reader.changes.list(seen[-1].sequence if seen else 0, limit=7)
            seen.extend(page)
            if not page and was_over:
                reader.close()
                return

    with ThreadPoolExecutor(_WRITERS + 1) as pool:
        reading = pool.submit(follow)
        writing = [pool.submit(write, url, name, random.Random(name)) for name in names]
        try:
            for each in writing:
                each.result()
        finally:
            is_over.set()
        reading.result()
    expected = {
        (name, kind, number) for name in names for kind in ("checkpoint", "recovery") for number in range(1, _EACH + 1)
    }
    assert Counter(map(what, seen)) == Counter(expected)
    assert [each.sequence for each in seen] == list(range(1, len(expected) + 1)), "without a gap, in order"
    assert store.changes.newest() == len(expected)


def test_a_change_that_is_not_committed_keeps_later_ones_back(postgresql_url: str) -> None:
    store = ControlStore(Database(postgresql_url, application="first"))
    register(store)
    other = ControlStore(Database(postgresql_url, application="second"))
    with ThreadPoolExecutor(1) as pool:
        with store.database.transaction() as transaction:
            assert take_sequence(transaction) == 1
            later = pool.submit(other.checkpoints.save, JOB, checkpoint(1))
            with pytest.raises(TimeoutError):
                later.result(timeout=0.5)
            assert other.changes.newest() == 0
            assert other.changes.list() == ()
        assert later.result()
    [change] = other.changes.list()
    assert change.sequence == 2
    store.close()
    other.close()


def test_what_is_written_while_somebody_reads_comes_whole_the_next_time(url: str, store: ControlStore) -> None:
    register(store)
    store.checkpoints.save(JOB, checkpoint(1))
    reader = ControlStore(Database(url, application="reader"))
    assert len(reader.changes.list()) == 1
    asked: list[str] = []

    def write_once(connection: Connection, _cursor: object, statement: str, *_rest: object) -> None:
        if connection.engine.url == reader.database.url and "FROM checkpoints" in statement and not asked:
            asked.append(statement)
            store.checkpoints.save(JOB, checkpoint(2))
            store.recoveries.add(records.recovery())

    event.listen(Engine, "after_cursor_execute", write_once)
    try:
        page = reader.changes.list()
    finally:
        event.remove(Engine, "after_cursor_execute", write_once)
    assert asked, "it was written between two statements of the reader"
    assert [each.sequence for each in page] == [1]
    assert [each.sequence for each in reader.changes.list(1)] == [2, 3]
    reader.close()
