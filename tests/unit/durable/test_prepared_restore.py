"""A restore builds new lineages beside the old ones, and they count all at once or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.durable.job_folder.lineage_record import read_record
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.durable.offline.undo import undo_restore
from coord_control.durable.restore.prepared_restore import (
    applied_restore,
    prepare_restore,
    queries_of,
    remove_leftovers,
)
from coord_control.errors import DamagedRecord, Fenced, MissingRecord
from coord_control.ids import LATEST, Generation, QueryName
from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles
from tests.unit.durable import restore_kit
from tests.unit.durable.restore_kit import (
    DESCRIPTION,
    JOB,
    QUERIES,
    SCHEMA,
    current,
    folder,
    opened,
    prepared,
    put_checkpoint,
    run_before,
    seen_by,
)

OLD = {"delays": "lineage-000001", "raw": "lineage-000001"}
NEW = {"delays": "lineage-000002", "raw": "lineage-000002"}
SAVEPOINT = "/savepoints/one"
RETAINED = f"{JOB}/checkpoints/7"


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    run_before(files)
    return files


def content_below(files: MemoryFiles, path: str) -> dict[str, bytes]:
    return {name: files.read(name) for name in files.paths() if name.startswith(path)}


@pytest.mark.parametrize(("kind", "path"), [("savepoint", SAVEPOINT), ("checkpoint", RETAINED)])
def test_all_queries_go_on_from_the_checkpoint_once_it_is_committed(files: MemoryFiles, kind: str, path: str) -> None:
    source = put_checkpoint(files, path, kind=kind)
    before = content_below(files, "/")
    restore = prepared(files, source)
    assert current(files) == OLD
    restore.commit()
    assert current(files) == NEW
    assert {name: files.read(name) for name in before} == before  # neither the old lineages nor the checkpoint

    lineage = opened(files, QUERIES[0])
    assert (lineage.name, lineage.query_id) == ("lineage-000002", "id-of-delays")
    assert json.loads(files.read(f"{lineage.checkpoint}/metadata")) == {"id": "id-of-delays"}
    assert files.read(f"{lineage.checkpoint}/state/0/0/42.zip") == b"zip" * 41
    assert sorted(files.list(f"{lineage.checkpoint}/offsets")) == ["40", "41"]
    assert restore.linked_bytes > 0
    assert restore.record.queries == NEW


def test_descriptions_name_the_schemas_of_the_new_place(files: MemoryFiles) -> None:
    source = put_checkpoint(files, SAVEPOINT)
    prepared(files, source).commit()
    checkpoint = opened(files, QUERIES[0]).checkpoint
    description = files.read(f"{checkpoint}/{DESCRIPTION}").decode()
    assert f"{checkpoint}/{SCHEMA}" in description
    assert "/live/" not in description
    # Spark's checksum of the old content would make it refuse the new one.
    assert not files.exists(f"{checkpoint}/{DESCRIPTION}.crc")


def test_another_storage_is_copied_and_checked(files: MemoryFiles) -> None:
    elsewhere = MemoryFiles()
    source = put_checkpoint(elsewhere, SAVEPOINT)
    restore = prepared(files, source)
    restore.commit()
    assert restore.linked_bytes == 0
    assert restore.copied_bytes > 0
    assert current(files) == NEW
    elsewhere.damage(f"{SAVEPOINT}/queries/raw/spark/state/0/0/6.zip", flip_bit=3)
    with pytest.raises(DamagedRecord, match=r"raw/spark/state/0/0/6.zip is damaged: its checksum"):
        prepared(files, source)


def test_a_storage_without_links_checks_its_copies() -> None:
    files = MemoryFiles(has_links=False)
    run_before(files)
    source = put_checkpoint(files, SAVEPOINT)
    assert prepared(files, source).linked_bytes == 0
    files.damage(f"{SAVEPOINT}/queries/raw/spark/state/0/0/6.zip", flip_bit=3)
    with pytest.raises(DamagedRecord, match="its checksum is not the one in the manifest"):
        prepared(files, source)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_missing_or_shortened_file_is_named_and_the_old_lineages_stay(files: MemoryFiles, elsewhere: bool) -> None:
    storage = MemoryFiles() if elsewhere else files
    source = put_checkpoint(storage, SAVEPOINT)
    victim = f"{SAVEPOINT}/queries/raw/spark/state/0/0/6.zip"
    storage.damage(victim, keep=2)
    with pytest.raises(DamagedRecord, match=r"6.zip is damaged: it has 2 bytes, the manifest says 15"):
        prepared(files, source)
    storage.delete(victim)
    with pytest.raises(MissingRecord, match=rf"{victim} is missing: the manifest of {SAVEPOINT} names it"):
        prepared(files, source)
    assert current(files) == OLD


def test_a_fork_gets_new_query_ids() -> None:
    files = MemoryFiles()
    source = put_checkpoint(files, SAVEPOINT, job="the-original")
    prepared(files, source, is_fork=True).commit()
    ids = {opened(files, query).query_id for query in QUERIES}
    assert len(ids) == 2
    assert not ids & {"id-of-delays", "id-of-raw"}
    assert current(files) == OLD  # the first of that job
    restore = newest_restore(files, JOB)
    assert restore is not None
    assert (restore.is_fork, restore.job) == (True, "the-original")


def test_a_query_that_had_committed_nothing_begins_again(files: MemoryFiles) -> None:
    source = put_checkpoint(files, SAVEPOINT, epochs={QUERIES[0]: -1, QUERIES[1]: 5})
    prepared(files, source).commit()
    lineage = opened(files, QUERIES[0])
    assert files.list(lineage.checkpoint) == ["metadata"]
    assert lineage.restored is not None  # its coordinator's state is in the checkpoint all the same


def test_a_query_that_is_not_in_the_checkpoint_begins_empty(files: MemoryFiles) -> None:
    source = put_checkpoint(files, SAVEPOINT, epochs={QUERIES[0]: 41})
    restore = prepared(files, source)
    assert restore.record.begun == {"raw": "lineage-000002"}
    before = opened(files, QUERIES[1])
    restore.commit()
    assert current(files) == {"delays": "lineage-000002"}
    lineage = opened(files, QUERIES[1])
    assert lineage.name == "lineage-000002"
    assert lineage.query_id != before.query_id
    assert opened(files, QUERIES[1]) == lineage


def test_one_restore_follows_another(files: MemoryFiles) -> None:
    first, second = put_checkpoint(files, SAVEPOINT), put_checkpoint(files, "/savepoints/two", checkpoint=8)
    for number, source in enumerate((first, second, first), start=1):
        prepared(files, source).commit()
        restore = newest_restore(files, JOB)
        assert restore is not None
        assert (restore.number, restore.path) == (number, source.path)
        assert set(current(files).values()) == {f"lineage-00000{number + 1}"}
    assert queries_of(files, JOB) == list(QUERIES)


def test_a_restored_lineage_that_was_lost_is_an_error_and_never_begins_anew(files: MemoryFiles) -> None:
    prepared(files, put_checkpoint(files, SAVEPOINT)).commit()
    files.delete(f"{folder(QUERIES[1])}/lineage-000002")
    with pytest.raises(MissingRecord, match=r"lineage-000002/lineage.json is missing: the restore 1 has made it"):
        opened(files, QUERIES[1])


def test_a_newer_driver_ends_a_restore(files: MemoryFiles) -> None:
    def fenced() -> None:
        raise Fenced("flights", 4)

    source = put_checkpoint(files, SAVEPOINT)
    with pytest.raises(Fenced):
        prepared(files, source, verify_claim=fenced)
    restore = prepared(files, source)
    prepared(files, source).commit()
    with pytest.raises(Fenced, match="another restore"):
        restore.commit()


def test_what_is_discarded_leaves_nothing(files: MemoryFiles) -> None:
    source = put_checkpoint(files, SAVEPOINT)
    before = files.paths()
    prepared(files, source).discard()
    assert files.paths() == before


def test_the_same_checkpoint_is_applied_once(files: MemoryFiles) -> None:
    source = put_checkpoint(files, SAVEPOINT)
    assert applied_restore(files, JOB, SAVEPOINT, source) is None
    prepared(files, source, ref="before-the-upgrade").commit()
    assert applied_restore(files, JOB, SAVEPOINT, source)
    assert applied_restore(files, JOB, "before-the-upgrade", source)
    other = put_checkpoint(files, "/savepoints/two")
    assert applied_restore(files, JOB, "before-the-upgrade", other) is None, "it was restored by a command"
    assert applied_restore(files, JOB, LATEST, other) is None
    assert applied_restore(files, JOB, SAVEPOINT, put_checkpoint(files, SAVEPOINT, checkpoint=8)) is None
    prepared(files, source, ref="nightly", by_program=True).commit()
    assert applied_restore(files, JOB, "nightly", other), "the driver must not go back at its next start"
    assert applied_restore(files, JOB, "weekly", other) is None
    # Asked for again it would name a newer one each time.
    prepared(files, source, ref=LATEST).commit()
    assert applied_restore(files, JOB, LATEST, other)


def test_a_later_restore_does_not_let_an_earlier_one_be_applied_again(files: MemoryFiles) -> None:
    """Bug: the next driver, started with the same ``restore_from``, took the job back behind ``coordctl restore``."""
    first, second = put_checkpoint(files, SAVEPOINT), put_checkpoint(files, "/savepoints/two")
    prepared(files, first, ref=LATEST).commit()
    prepared(files, second).commit()
    assert applied_restore(files, JOB, SAVEPOINT, first)
    assert applied_restore(files, JOB, LATEST, second)


def test_a_restore_that_was_undone_is_applied_again(files: MemoryFiles) -> None:
    first, second = put_checkpoint(files, SAVEPOINT), put_checkpoint(files, "/savepoints/two")
    prepared(files, first).commit()
    prepared(files, second).commit()
    undo_restore(files, JOB)
    assert applied_restore(files, JOB, "/savepoints/two", second) is None
    assert applied_restore(files, JOB, SAVEPOINT, first)


def test_a_checkpoint_that_is_gone_since_was_applied_all_the_same(files: MemoryFiles) -> None:
    """Bug: retention removed the checkpoint, and no later driver of the job could start."""
    source = put_checkpoint(files, SAVEPOINT)
    assert applied_restore(files, JOB, "before-the-upgrade", None) is None
    prepared(files, source, ref="before-the-upgrade").commit()
    assert applied_restore(files, JOB, "before-the-upgrade", None)
    assert applied_restore(files, JOB, SAVEPOINT, None)
    assert applied_restore(files, JOB, "after-the-upgrade", None) is None


def test_whatever_a_crash_leaves_all_old_lineages_count_or_all_new_ones(files: MemoryFiles) -> None:
    source = put_checkpoint(files, SAVEPOINT)
    count = CrashAt()
    counted = files.copy().seen_by(count)
    prepared(counted, seen_by(source, counted)).commit()
    assert count.passed > 40
    outcomes = []
    for point in range(1, count.passed + 1):
        disk = files.copy()
        dying = disk.seen_by(CrashAt(point))
        with pytest.raises(Crash):
            prepared(dying, seen_by(source, dying)).commit()
        outcomes.append(current(disk))
        assert outcomes[-1] in (OLD, NEW)
        for query in QUERIES:
            assert opened(disk, query).name == outcomes[-1][query]
        prepared(disk, seen_by(source, disk)).commit()
        restored = current(disk)
        assert set(restored.values()) == ({"lineage-000003"} if outcomes[-1] == NEW else {"lineage-000002"})
        assert leftovers(disk) == []
        check_restored(disk, restored)
    # The very last step is the one that counts.
    assert outcomes.index(NEW) == count.passed - 1


def test_a_crash_while_leftovers_are_removed_is_survived_too(files: MemoryFiles) -> None:
    source = put_checkpoint(files, SAVEPOINT)
    prepared(files, source)
    count = CrashAt()
    remove_leftovers(files.copy().seen_by(count), JOB)
    for point in range(1, count.passed + 1):
        disk = files.copy()
        with pytest.raises(Crash):
            remove_leftovers(disk.seen_by(CrashAt(point)), JOB)
        assert current(disk) == OLD
        prepared(disk, seen_by(source, disk)).commit()
        assert leftovers(disk) == []
        check_restored(disk, current(disk))


def test_a_new_job_of_that_name_does_not_take_a_fork_for_its_own_that_never_took_place() -> None:
    files = MemoryFiles()
    source = put_checkpoint(files, SAVEPOINT, job="the-original")
    count = CrashAt()
    counted = files.copy().seen_by(count)
    prepared(counted, seen_by(source, counted), is_fork=True)
    for point in range(1, count.passed + 1):
        disk = files.copy()
        dying = disk.seen_by(CrashAt(point))
        with pytest.raises(Crash):
            prepared(dying, seen_by(source, dying), is_fork=True)
        lineage = opened(disk, QUERIES[0])
        assert lineage.restored is None
        assert disk.list(lineage.checkpoint) == ["metadata"]


def leftovers(files: MemoryFiles) -> list[str]:
    """Lineages without a record, or of a restore that is not committed."""
    found = []
    for query in QUERIES:
        for name in files.list(folder(query)):
            record = read_record(files, folder(query), name)
            if record is None:
                found.append(name)
                continue
            restore = newest_restore(files, JOB)
            of = record.restored_from
            if of is not None and (restore is None or of.restore > restore.number):
                found.append(name)
    return found


def check_restored(files: MemoryFiles, lineages: dict[str, str]) -> None:
    for query, epoch in ((QUERIES[0], 41), (QUERIES[1], 5)):
        checkpoint = join(folder(query), lineages[query], "spark")
        names = {name.removeprefix(f"{checkpoint}/") for name in files.paths() if name.startswith(f"{checkpoint}/")}
        expected = set(restore_kit.spark_files(epoch, "")) - {f"{DESCRIPTION}.crc"}
        assert names == {"metadata", *expected}


def test_on_a_disk_the_files_are_linked_and_the_savepoint_stays_as_it_was(tmp_path: Path) -> None:
    files = LocalFiles()
    source = put_checkpoint(files, str(tmp_path / "savepoint"))
    options = {"generation": Generation(1), "verify_claim": lambda: None, "ref": "x", "is_fork": False}
    restore = prepare_restore(files, str(tmp_path / "jobs" / "flights"), source, **options)  # type: ignore[arg-type]
    restore.commit()
    query = QueryName("raw")
    original = tmp_path / "savepoint" / "queries" / "raw" / "spark" / "state" / "0" / "0" / "6.zip"
    restored = tmp_path / "jobs" / "flights" / "queries" / query / "lineage-000001" / "spark" / "state" / "0" / "0"
    assert (restored / "6.zip").samefile(original)
    # As Spark does it: another file of that name.
    files.replace(str(restored / "6.zip"), b"another")
    assert original.read_bytes() == b"zip" * 5
