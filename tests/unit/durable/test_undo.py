"""A restore is undone as long as nothing was processed since, wherever it is cut off; then it is refused."""

from __future__ import annotations

import json

import pytest

from coord_control.durable.job_folder.lineage import begin_setting_sinks_back, current_lineage
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.durable.offline.undo import undo_restore
from coord_control.durable.restore.prepared_restore import applied_restore
from coord_control.errors import RestoreNotUndone
from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles
from tests.unit.durable.restore_kit import (
    JOB,
    QUERIES,
    current,
    folder,
    opened,
    prepared,
    put_checkpoint,
    run_before,
)

SAVEPOINT = "/savepoints/one"
OLD = dict.fromkeys(QUERIES, "lineage-000001")
RESTORED = dict.fromkeys(QUERIES, "lineage-000002")


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    run_before(files)
    return files


def test_the_job_stands_where_it_stood_and_the_same_checkpoint_can_be_restored_again(files: MemoryFiles) -> None:
    source = put_checkpoint(files, SAVEPOINT)
    prepared(files, source).commit()
    assert current(files) == RESTORED
    assert undo_restore(files, JOB).path == SAVEPOINT
    assert current(files) == OLD
    assert opened(files, QUERIES[0]).restored is None
    assert applied_restore(files, JOB, SAVEPOINT, source) is None
    with pytest.raises(RestoreNotUndone, match="has been undone already"):
        undo_restore(files, JOB)
    prepared(files, source).commit()
    assert current(files) == dict.fromkeys(QUERIES, "lineage-000003")
    undo_restore(files, JOB)
    assert current(files) == OLD


def test_a_restore_whose_sinks_are_being_set_back_is_not_undone(files: MemoryFiles) -> None:
    """The old lineages would resume behind sinks that lack their epochs."""
    source = put_checkpoint(files, SAVEPOINT)
    prepared(files, source, roll_back_sinks=True).commit()
    undo_restore(files, JOB)
    assert current(files) == OLD
    newest = newest_restore(files, JOB)
    assert newest is not None
    assert not newest.roll_back_sinks, "the old lineages do not want their sinks back"
    done = prepared(files, source, roll_back_sinks=True)
    done.commit()
    begin_setting_sinks_back(files, f"{folder(QUERIES[1])}/{done.record.queries[QUERIES[1]]}")
    with pytest.raises(RestoreNotUndone, match="its sinks are being set back"):
        undo_restore(files, JOB)
    assert current(files) == done.record.queries


def test_a_restore_that_another_one_has_overtaken_still_sets_its_sinks_back_when_that_is_undone(
    files: MemoryFiles,
) -> None:
    prepared(files, put_checkpoint(files, SAVEPOINT), roll_back_sinks=True).commit()
    prepared(files, put_checkpoint(files, "/savepoints/two", checkpoint=8)).commit()
    undo_restore(files, JOB)
    newest = newest_restore(files, JOB)
    assert newest is not None
    assert newest.roll_back_sinks


def test_a_record_of_an_older_release_sets_no_sink_back(files: MemoryFiles) -> None:
    prepared(files, put_checkpoint(files, SAVEPOINT)).commit()
    [path] = [path for path in files.paths() if path.startswith(f"{JOB}/restores/")]
    fields = json.loads(files.read(path))
    del fields["roll_back_sinks"]
    files.replace(path, json.dumps({**fields, "format_version": 1}).encode())
    newest = newest_restore(files, JOB)
    assert newest is not None
    assert not newest.roll_back_sinks


def test_what_is_undone_may_have_followed_another_restore(files: MemoryFiles) -> None:
    first, second = put_checkpoint(files, SAVEPOINT), put_checkpoint(files, "/savepoints/two", checkpoint=8)
    for source in (first, second):
        prepared(files, source).commit()
    undo_restore(files, JOB)
    assert current(files) == RESTORED
    lineage = opened(files, QUERIES[0])
    assert lineage.restored is not None
    assert lineage.restored.path == SAVEPOINT
    assert applied_restore(files, JOB, SAVEPOINT, first)


def test_a_query_that_was_not_in_the_checkpoint_has_its_state_again(files: MemoryFiles) -> None:
    prepared(files, put_checkpoint(files, SAVEPOINT, epochs={QUERIES[0]: 41})).commit()
    opened(files, QUERIES[1])  # it has begun empty, and nothing was processed
    undo_restore(files, JOB)
    assert current(files) == OLD


def test_a_query_that_was_to_begin_empty_still_is_after_another_restore_and_its_undoing(files: MemoryFiles) -> None:
    """Bug: its state of before the first restore counted again."""
    first, second = (put_checkpoint(files, f"/savepoints/{n}", checkpoint=n, epochs={QUERIES[0]: 41}) for n in (7, 8))
    prepared(files, first).commit()
    assert current(files) == {QUERIES[0]: RESTORED[QUERIES[0]]}
    prepared(files, second).commit()
    assert current(files) == {QUERIES[0]: "lineage-000003"}
    undo_restore(files, JOB)
    assert current(files) == {QUERIES[0]: RESTORED[QUERIES[0]]}
    assert opened(files, QUERIES[1]).name == RESTORED[QUERIES[1]]


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_nothing_that_was_processed_since_is_left_behind(files: MemoryFiles, log: str) -> None:
    prepared(files, put_checkpoint(files, SAVEPOINT)).commit()
    lineage = current_lineage(files, folder(QUERIES[1]), QUERIES[1])
    assert lineage is not None
    files.replace(f"{lineage.checkpoint}/{log}/6", b"v1\n{}\n3")
    with pytest.raises(RestoreNotUndone, match="query raw has processed epochs since it was restored"):
        undo_restore(files, JOB)
    assert current(files) == RESTORED


def test_a_job_that_began_with_a_restore_has_nothing_to_go_back_to() -> None:
    files = MemoryFiles()
    prepared(files, put_checkpoint(files, SAVEPOINT, job="original"), is_fork=True).commit()
    with pytest.raises(RestoreNotUndone):
        undo_restore(files, JOB)
    assert current(files) == OLD  # the first of that job


def test_a_crash_leaves_the_old_or_the_new(files: MemoryFiles) -> None:
    prepared(files, put_checkpoint(files, SAVEPOINT)).commit()
    count = CrashAt()
    undo_restore(files.copy().seen_by(count), JOB)
    for point in range(1, count.passed + 1):
        disk = files.copy()
        with pytest.raises(Crash):
            undo_restore(disk.seen_by(CrashAt(point)), JOB)
        assert current(disk) in (OLD, RESTORED)
        if current(disk) == RESTORED:
            disk.delete(f"{JOB}/generations")  # this process, which holds the claim, lives
            undo_restore(disk, JOB)
        assert current(disk) == OLD
