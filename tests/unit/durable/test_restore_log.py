"""Which restore of a job counts: what other processes have begun before a driver cannot take place after it."""

from __future__ import annotations

import datetime

import pytest

from coord_control.durable.job_folder.restore_log import (
    RestoreRecord,
    commit_restore,
    find_restore,
    newest_restore,
    next_number,
    read_restore,
    restore_before,
    seal_restores,
    standing_restores,
)
from coord_control.durable.offline.undo import undo_restore
from coord_control.errors import Fenced, UnsupportedFormat
from coord_control.ids import CheckpointId, Generation
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.restore_kit import JOB, QUERIES, current, prepared, put_checkpoint, run_before

SAVEPOINT = "/savepoints/one"
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
THIRD = Generation(3)


class Meanwhile:
    """A driver starts right before the record of a restore is created, as after a long pause of who restores."""

    def __init__(self, files: MemoryFiles) -> None:
        self._files = files

    def before_write(self, path: str) -> None:
        if path.startswith(f"{JOB}/restores/"):
            seal_restores(self._files, JOB, THIRD)

    def after_write(self, path: str) -> None: ...


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    run_before(files)
    return files


def record(number: int) -> RestoreRecord:
    return RestoreRecord(
        number=number,
        id=f"id-{number}",
        path=SAVEPOINT,
        checkpoint=CheckpointId(number),
        job="flights",
        completed_at=NOON,
        ref="latest",
        key=f"key-{number}",
        generation=Generation(1),
        committed_at=NOON,
        queries={},
        replaced={},
    )


def restored(files: MemoryFiles) -> RestoreRecord:
    found = record(next_number(files, JOB))
    commit_restore(files, JOB, "flights", found)
    return found


def test_a_restore_that_was_begun_before_a_driver_does_not_take_place_after_it(files: MemoryFiles) -> None:
    """Fault: it did, behind sinks that had got further epochs meanwhile: their rows were missing in the state."""
    prepared_before = prepared(files.seen_by(Meanwhile(files)), put_checkpoint(files, SAVEPOINT))
    before = current(files)
    with pytest.raises(Fenced, match="a driver or another restore"):
        prepared_before.commit()
    assert current(files) == before
    assert newest_restore(files, JOB) is None
    prepared(files, put_checkpoint(files, "/savepoints/two")).commit()
    assert current(files) != before


def test_an_undo_that_was_begun_before_a_driver_does_not_take_place_after_it(files: MemoryFiles) -> None:
    prepared(files, put_checkpoint(files, SAVEPOINT)).commit()
    before = current(files)
    with pytest.raises(Fenced):
        undo_restore(files.seen_by(Meanwhile(files)), JOB)
    assert current(files) == before
    undo_restore(files, JOB)
    assert current(files) == dict.fromkeys(QUERIES, "lineage-000001")


def test_a_restore_that_takes_place_beside_a_driver_counts_for_it(files: MemoryFiles) -> None:
    class Restored:
        """A restore that is not ours takes place right before the seal is created."""

        is_done = False

        def before_write(self, path: str) -> None:
            if not self.is_done:
                self.is_done = True
                restored(files)

        def after_write(self, path: str) -> None: ...

    seal_restores(files.seen_by(Restored()), JOB, THIRD)
    newest = newest_restore(files, JOB)
    assert newest is not None
    assert (newest.number, next_number(files, JOB)) == (1, 3)


def test_what_stands_between_restores_is_not_taken_for_one(files: MemoryFiles) -> None:
    assert next_number(files, JOB) == 1
    seal_restores(files, JOB, Generation(1))
    first = restored(files)
    for generation in (2, 3):
        seal_restores(files, JOB, Generation(generation))
    second = restored(files)
    seal_restores(files, JOB, Generation(4))
    assert (first.number, second.number, next_number(files, JOB)) == (2, 5, 7)
    assert newest_restore(files, JOB) == second
    assert [*standing_restores(files, JOB)] == [second, first]
    assert find_restore(files, JOB, "key-2") == first
    assert restore_before(files, JOB, second) == first
    assert restore_before(files, JOB, first) is None
    assert [read_restore(files, JOB, number) for number in (1, 2, 3, 9)] == [None, first, None, None]


def test_a_job_that_starts_often_keeps_a_hundred_of_them(files: MemoryFiles) -> None:
    first = restored(files)
    for generation in range(1, 251):
        seal_restores(files, JOB, Generation(generation))
    assert len(files.list(f"{JOB}/restores")) == 101
    assert newest_restore(files, JOB) == first
    # A number that is free again does not count.
    commit_restore(files, JOB, "flights", record(5))
    assert newest_restore(files, JOB) == first


def test_a_release_that_does_not_know_them_stops(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    seal_restores(files, JOB, Generation(1))
    monkeypatch.setattr("coord_control.durable.job_folder.restore_log._SEAL_VERSION", 2)
    with pytest.raises(UnsupportedFormat):
        newest_restore(files, JOB)
