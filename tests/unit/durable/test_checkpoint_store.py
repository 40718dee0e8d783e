from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from coord_control.durable.catalog import Catalog
from coord_control.durable.checkpoint_folder import CheckpointState, look
from coord_control.durable.checkpoint_store import CheckpointStore
from coord_control.durable.files import Files, Linked, LocalFiles, join
from coord_control.durable.holds import hold
from coord_control.durable.metadata import Kind
from coord_control.durable.verifying import verify_files
from coord_control.errors import (
    AlreadyExists,
    CheckpointInUse,
    CheckpointNotFound,
    Fenced,
    SavepointTargetTaken,
    StateFileMissing,
    StoreUnavailable,
)
from coord_control.ids import NO_EPOCH, CheckpointId, Epoch, Generation
from coord_control.testing.memory_files import MemoryFiles
from tests.unit.durable.checkpoint_kit import (
    JOB,
    LINEAGE,
    QUERY,
    SPARK,
    Driver,
    check_all_verify,
    check_nothing_is_left,
    ids,
    metadata_of,
    run_epoch,
    shared_files,
)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def driver(files: MemoryFiles) -> Driver:
    for epoch in range(5):
        run_epoch(files, epoch)
    return Driver(files, 1)


class TestMaking:
    def test_a_checkpoint_exists_when_it_is_complete_and_not_before(self, files: MemoryFiles, driver: Driver) -> None:
        checkpoint = driver.claim("checkpoint")
        snapshot = driver.pin(checkpoint, 4)
        assert ids(files) == []
        driver.complete(checkpoint, "checkpoint", snapshot)
        assert ids(files) == [1]
        check_all_verify(files)

    def test_it_holds_what_the_epoch_needs(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(4)
        [entry] = Catalog(files, JOB).entries()
        snapshot = Catalog(files, JOB).read(entry).queries[QUERY]
        assert [file.path for file in snapshot.files] == [
            "commits/3",
            "commits/4",
            "offsets/3",
            "offsets/4",
            "state/0/0/3.snapshot",
            "state/0/0/4.delta",
            "state/0/0/5.delta",
            "state/0/1/3.snapshot",
            "state/0/1/4.delta",
            "state/0/1/5.delta",
        ]
        assert snapshot.epoch == 4
        assert snapshot.lineage == LINEAGE
        assert entry.epochs == ((QUERY, 4),)

    def test_what_is_retained_already_is_neither_linked_nor_read_again(
        self, files: MemoryFiles, driver: Driver
    ) -> None:
        first = driver.claim("checkpoint")
        pinned = driver.store.pin(first, QUERY, LINEAGE, SPARK, Epoch(4))
        assert (pinned.copied_bytes, pinned.reused_bytes) == (0, 0)
        assert pinned.linked_bytes == pinned.live.size > 0
        driver.complete(first, "checkpoint", pinned.snapshot(query_id="id", spark_version="4.3.0"))
        before = {info.path: info for info in files.walk(join(JOB, "shared"))}
        again = driver.store.pin(driver.claim("checkpoint"), QUERY, LINEAGE, SPARK, Epoch(4))
        assert (again.linked_bytes, again.copied_bytes, again.reused_bytes) == (0, 0, pinned.live.size)
        assert again.entries == pinned.entries
        assert {info.path: info for info in files.walk(join(JOB, "shared"))} == before

    def test_without_links_only_new_files_are_copied(self) -> None:
        files = MemoryFiles(has_links=False)
        for epoch in range(5):
            run_epoch(files, epoch)
        driver = Driver(files, 1)
        first = driver.store.pin(driver.claim("checkpoint"), QUERY, LINEAGE, SPARK, Epoch(4))
        assert (first.linked_bytes, first.copied_bytes) == (0, first.live.size)
        run_epoch(files, 5)
        second = driver.store.pin(driver.claim("checkpoint"), QUERY, LINEAGE, SPARK, Epoch(5))
        new = sum(entry.size for entry in set(second.entries) - set(first.entries))
        assert (second.linked_bytes, second.copied_bytes) == (0, new)
        assert new < second.live.size

    def test_a_file_that_spark_wrote_anew_is_another_one(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(4)
        path = join(SPARK, "state/0/0/5.delta")
        files.delete(path)
        files.create(path, b"DELTA 5")
        driver.make(4)
        check_all_verify(files)
        assert len([name for name in shared_files(files) if "0/0/5.delta" in name]) == 2

    def test_a_query_that_has_not_committed_has_no_files(self, files: MemoryFiles) -> None:
        driver = Driver(files, 1)
        checkpoint = driver.claim("checkpoint")
        pinned = driver.store.pin(checkpoint, QUERY, LINEAGE, SPARK, NO_EPOCH)
        assert pinned.entries == ()
        assert pinned.snapshot(query_id="id", spark_version="4.3.0").epoch == NO_EPOCH

    def test_a_purged_epoch_can_be_pinned_at_a_newer_one(self, files: MemoryFiles, driver: Driver) -> None:
        checkpoint = driver.claim("checkpoint")
        driver.pin(checkpoint, 3)
        files.delete(join(SPARK, "offsets/3"))
        with pytest.raises(StateFileMissing):
            driver.pin(checkpoint, 3)
        run_epoch(files, 5)
        driver.complete(checkpoint, "checkpoint", driver.pin(checkpoint, 5))
        check_all_verify(files)
        driver.retain(1)
        check_nothing_is_left(driver, files)

    @pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
    def test_a_file_that_vanishes_while_it_is_pinned_can_be_retried(
        self, files: MemoryFiles, driver: Driver, kind: Kind
    ) -> None:
        class Vanishing(MemoryFiles):
            def link_all(self, source: str, target: str, names: Sequence[tuple[str, str]]) -> Sequence[Linked]:
                raise FileNotFoundError(errno.ENOENT, "gone", join(source, "state/0/0/4.delta"))

        view = Vanishing()
        view._disk = files._disk
        store = CheckpointStore(view, JOB, Generation(1))
        store.claim(CheckpointId(1), kind)
        with pytest.raises(StateFileMissing, match=r"state/0/0/4\.delta") as caught:
            store.pin(CheckpointId(1), QUERY, LINEAGE, SPARK, Epoch(4))
        assert caught.value.retry

    def test_a_file_that_is_replaced_while_it_is_pinned_can_be_retried(
        self, files: MemoryFiles, driver: Driver
    ) -> None:
        class Replacing(MemoryFiles):
            def link_all(self, source: str, target: str, names: Sequence[tuple[str, str]]) -> Sequence[Linked]:
                files.replace(join(SPARK, "state/0/0/4.delta"), b"DELTA 4")
                return super().link_all(source, target, names)

        view = Replacing()
        view._disk = files._disk
        store = CheckpointStore(view, JOB, Generation(1))
        store.claim(CheckpointId(1), "checkpoint")
        with pytest.raises(StateFileMissing, match="replaced"):
            store.pin(CheckpointId(1), QUERY, LINEAGE, SPARK, Epoch(4))

    def test_a_discarded_one_leaves_nothing_but_its_number(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(3)
        checkpoint = driver.claim("checkpoint")
        driver.pin(checkpoint, 4)
        driver.store.discard(checkpoint)
        check_nothing_is_left(driver, files)
        assert driver.claim("checkpoint") == checkpoint + 1
        assert files.list(join(JOB, "checkpoints")) == ["1", "3"]

    def test_an_id_is_claimed_once(self, files: MemoryFiles, driver: Driver) -> None:
        driver.claim("checkpoint")
        with pytest.raises(AlreadyExists):
            Driver(files, 1).store.claim(CheckpointId(1), "checkpoint")


class TestSavepoints:
    def test_a_savepoint_is_self_contained(self, files: MemoryFiles, driver: Driver) -> None:
        checkpoint = driver.make(4, "savepoint", label="before-upgrade")
        [entry] = Catalog(files, JOB).entries()
        assert entry.path == join(JOB, "savepoints", f"{checkpoint}-before-upgrade")
        assert shared_files(files) == set()
        check_all_verify(files)

    def test_its_target_can_be_chosen(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(4, "savepoint", target="/elsewhere/mine/")
        [entry] = Catalog(files, JOB).entries()
        assert entry.path == "/elsewhere/mine"
        check_all_verify(files)

    def test_its_target_can_be_on_another_storage(self, files: MemoryFiles) -> None:
        for epoch in range(5):
            run_epoch(files, epoch)
        archive = MemoryFiles()

        def storage(path: str) -> Files:
            return archive if path.startswith("/archive") else files

        store = CheckpointStore(files, JOB, Generation(1), storage=storage)
        store.claim(CheckpointId(1), "savepoint", target="/archive/one")
        pinned = store.pin(CheckpointId(1), QUERY, LINEAGE, SPARK, Epoch(4))
        assert (pinned.linked_bytes, pinned.copied_bytes) == (0, pinned.live.size)
        snapshot = pinned.snapshot(query_id="id", spark_version="4.3.0")
        metadata = metadata_of(1, "savepoint", 1, snapshot)
        assert store.complete(metadata) == "/archive/one"
        assert list(verify_files(archive, "/archive/one", metadata)) == []
        [entry] = Catalog(files, JOB, storage).entries()
        assert entry.is_completed
        store.dispose(CheckpointId(1))
        assert archive.paths() == []

    def test_a_target_with_something_in_it_is_refused_and_left_alone(self, files: MemoryFiles, driver: Driver) -> None:
        files.create("/elsewhere/mine/notes", b"x")
        with pytest.raises(SavepointTargetTaken, match="something in it"):
            driver.claim("savepoint", target="/elsewhere/mine")
        assert files.list("/elsewhere/mine") == ["notes"]
        assert ids(files) == []
        check_nothing_is_left(driver, files)

    @pytest.mark.parametrize("own", ["checkpoints/7", "shared", "shared/x", "queries/delays/lineage-000001/spark/x"])
    def test_a_target_among_the_jobs_own_files_is_refused(self, driver: Driver, own: str) -> None:
        with pytest.raises(SavepointTargetTaken, match="job's own"):
            driver.claim("savepoint", target=join(JOB, own))

    def test_pinning_again_at_a_newer_epoch_leaves_nothing_of_the_older(
        self, files: MemoryFiles, driver: Driver
    ) -> None:
        checkpoint = driver.claim("savepoint")
        driver.pin(checkpoint, 3)
        driver.complete(checkpoint, "savepoint", driver.pin(checkpoint, 4))
        check_all_verify(files)  # it knows of no extra file either

    def test_retention_never_touches_it(self, files: MemoryFiles, driver: Driver) -> None:
        savepoint = driver.make(3, "savepoint")
        driver.make(4)
        driver.make(4)
        assert driver.retain(1) == [2]
        assert ids(files) == [savepoint, 3]

    def test_one_that_was_moved_is_known_as_missing_and_the_folder_in_its_place_is_left_alone(
        self, files: MemoryFiles, driver: Driver
    ) -> None:
        driver.make(4, "savepoint", target="/elsewhere/mine")
        driver.make(4)
        for info in list(files.walk("/elsewhere/mine")):
            files.link(join("/elsewhere/mine", info.path), join("/moved", info.path))
        files.delete("/elsewhere/mine")
        files.create("/elsewhere/mine/notes", b"of the user")
        after = Driver(files, 2)
        after.store.open()
        [missing] = [entry for entry in Catalog(files, JOB).entries() if not entry.is_completed]
        assert missing.state is CheckpointState.MISSING
        assert Catalog(files, JOB).resolve("/moved").checkpoint == 1
        after.dispose(CheckpointId(1))
        assert files.list("/elsewhere/mine") == ["notes"]
        assert files.exists("/moved/_metadata")
        assert [entry.checkpoint for entry in Catalog(files, JOB).entries()] == [2]


class TestRetention:
    def test_the_newest_ones_stay(self, files: MemoryFiles, driver: Driver) -> None:
        for epoch in range(5, 9):
            run_epoch(files, epoch)
            driver.make(epoch)
        assert driver.retain(2) == [1, 2]
        assert ids(files) == [3, 4]
        check_nothing_is_left(driver, files)
        check_all_verify(files)

    def test_one_always_stays(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(4)
        assert driver.retain(0) == []
        assert ids(files) == [1]

    def test_what_is_being_made_is_never_touched(self, files: MemoryFiles, driver: Driver) -> None:
        """FLINK-40384: a cleanup that meets a snapshot in progress. It also shares files with the one that goes."""
        driver.make(4)
        pending = driver.claim("checkpoint")
        snapshot = driver.pin(pending, 4)
        driver.make(4)
        assert driver.retain(1) == [1]
        with pytest.raises(CheckpointInUse, match="being made"):
            driver.store.dispose(pending)
        driver.complete(pending, "checkpoint", snapshot)
        assert ids(files) == [2, 3]
        check_all_verify(files)

    def test_one_that_completes_late_is_not_the_newest(self, files: MemoryFiles, driver: Driver) -> None:
        early = driver.claim("checkpoint")
        snapshot = driver.pin(early, 4)
        driver.make(4)
        driver.complete(early, "checkpoint", snapshot)
        assert driver.retain(1) == [early]
        assert ids(files) == [2]

    def test_one_that_is_being_restored_is_left_for_the_next_time(self, files: MemoryFiles, driver: Driver) -> None:
        """FLINK-38033: the savepoint of an upgrade was disposed of by the periodic cleanup."""
        driver.make(4)
        driver.make(4)
        with Catalog(files, JOB).hold("1"):
            assert driver.retain(1) == []
            with pytest.raises(CheckpointInUse, match="being restored"):
                driver.store.dispose(CheckpointId(1))
        assert driver.retain(1) == [1]
        check_nothing_is_left(driver, files)

    def test_the_newest_is_looked_for_before_others_go(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(4)
        driver.make(4)
        files.delete(join(JOB, "checkpoints/2/_metadata"))
        assert driver.retain(1) == []
        assert ids(files) == [1]


class TestDisposal:
    def test_the_newest_checkpoint_is_refused(self, driver: Driver) -> None:
        driver.make(4)
        driver.make(4, "savepoint")
        with pytest.raises(CheckpointInUse, match="newest completed"):
            driver.store.dispose(CheckpointId(1))

    def test_files_that_others_need_stay(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(3)
        driver.make(4)
        before = shared_files(files)
        driver.dispose(CheckpointId(1))
        assert shared_files(files) < before
        check_nothing_is_left(driver, files)
        check_all_verify(files)

    @pytest.mark.parametrize("checkpoint", [2, 99])
    def test_what_is_not_there_is_not_found(self, driver: Driver, checkpoint: int) -> None:
        driver.make(4)
        driver.store.discard(driver.claim("checkpoint"))
        with pytest.raises(CheckpointNotFound):
            driver.store.dispose(CheckpointId(checkpoint))

    def test_the_number_of_a_disposed_savepoint_is_not_used_again(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(4, "savepoint")
        driver.dispose(CheckpointId(1))
        assert Catalog(files, JOB).entries() == []
        assert Driver(files, 2).next_id() == 2

    @pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
    def test_who_begins_to_read_while_it_is_removed_can_read_on(
        self, files: MemoryFiles, driver: Driver, kind: Kind
    ) -> None:
        """The hold comes between the remover's first look and its first deletion."""
        driver.make(3, kind)
        driver.make(4)
        catalog = Catalog(files, JOB)
        entry = catalog.resolve("1")
        metadata = catalog.read(entry)
        reader = hold(files, entry.path)

        class Reading(MemoryFiles):
            began = False

            def delete(self, path: str) -> None:
                if path == join(entry.path, "_metadata") and not Reading.began:
                    Reading.began = True
                    reader.__enter__()
                super().delete(path)

        view = Reading()
        view._disk = files._disk
        after = Driver(view, 2)
        with pytest.raises(CheckpointInUse):
            after.store.dispose(CheckpointId(1))
        assert list(verify_files(files, entry.path, metadata)) == []
        Driver(files, 3).store.open()  # a driver that takes over meanwhile leaves it alone too
        assert list(verify_files(files, entry.path, metadata)) == []
        reader.__exit__(None, None, None)
        last = Driver(files, 4)
        last.store.open()
        check_nothing_is_left(last, files)
        assert ids(files) == [2]


class TestFailures:
    def test_a_removal_that_failed_is_repeated_and_leaves_no_orphan(self, driver: Driver, files: MemoryFiles) -> None:
        """FLINK-39439: the list entry went before the files were gone."""

        class Failing:
            left = 3

            def before_write(self, path: str) -> None:
                if "/shared/" in path and Failing.left:
                    Failing.left -= 1
                    raise StoreUnavailable(path, "delete", "the storage hiccups")

            def after_write(self, path: str) -> None:
                pass

        driver.make(3)
        driver.make(4)
        failing = Driver(files.seen_by(Failing()), 2)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                failing.store.dispose(CheckpointId(1))
            assert 1 in [int(name) for name in files.list(join(JOB, "checkpoints"))]
            check_all_verify(files)
        with pytest.raises(StoreUnavailable):
            failing.store.retain(1)
        assert failing.store.retain(1) == []
        check_nothing_is_left(failing, files)

    def test_a_failed_discard_is_repeated_by_retention(self, driver: Driver, files: MemoryFiles) -> None:
        class Failing:
            fails = True

            def before_write(self, path: str) -> None:
                if Failing.fails and "/shared/" in path:
                    raise StoreUnavailable(path, "write", "the storage hiccups")

            def after_write(self, path: str) -> None:
                pass

        Failing.fails = False
        failing = Driver(files.seen_by(Failing()), 2)
        failing.make(3)
        checkpoint = failing.claim("checkpoint")
        failing.pin(checkpoint, 4)
        Failing.fails = True
        with pytest.raises(StoreUnavailable):
            failing.store.discard(checkpoint)
        Failing.fails = False
        failing.store.retain(3)
        check_nothing_is_left(failing, files)

    def test_a_write_that_failed_and_happened_all_the_same_counts(self, files: MemoryFiles, driver: Driver) -> None:
        class Doubtful:
            def before_write(self, path: str) -> None:
                pass

            def after_write(self, path: str) -> None:
                if path.endswith("/_metadata"):
                    raise StoreUnavailable(path, "create", "the answer was lost")

        doubtful = Driver(files.seen_by(Doubtful()), 2)
        doubtful.make(4)
        assert ids(files) == [1]
        check_nothing_is_left(doubtful, files)

    def test_a_damaged_checkpoint_keeps_all_shared_files_where_they_are(
        self, files: MemoryFiles, driver: Driver
    ) -> None:
        driver.make(3)
        driver.make(4)
        before = shared_files(files)
        files.damage(join(JOB, "checkpoints/1/_metadata"), flip_bit=900)
        after = Driver(files, 2)
        after.make(4)
        after.retain(1)
        assert before <= shared_files(files)
        [damaged] = [entry for entry in Catalog(files, JOB).entries() if entry.state is CheckpointState.DAMAGED]
        assert damaged.checkpoint == 1
        after.dispose(CheckpointId(1))
        last = Driver(files, 3)
        last.store.open()
        check_nothing_is_left(last, files)

    def test_a_full_disk_is_told_and_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files, job = LocalFiles(), str(tmp_path / "job")
        spark = join(job, "queries", QUERY, LINEAGE, "spark")
        for epoch in range(5):
            run_epoch(files, epoch, spark=spark)
        store = CheckpointStore(files, job, Generation(1))
        store.claim(CheckpointId(1), "savepoint")
        store.claim(CheckpointId(2), "checkpoint")

        def full(*args: object, **kwargs: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "link", full)
            for checkpoint in (CheckpointId(1), CheckpointId(2)):
                with pytest.raises(StoreUnavailable, match=r"No space left on device.*not full"):
                    store.pin(checkpoint, QUERY, LINEAGE, spark, Epoch(4))
        store.discard(CheckpointId(1))
        store.discard(CheckpointId(2))
        assert list((tmp_path / "job" / "shared").rglob("*.delta*")) == []
        assert files.list(join(job, "savepoints")) == []


class TestTakingOver:
    def test_requests_that_were_answered_are_remembered(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(3, key="a")
        driver.make(4, "savepoint", label="x", key="b")
        driver.make(4, "savepoint", target="/elsewhere/mine", key="c")
        found = Driver(files, 2).store.completed_requests()
        assert [(request.kind.value, request.key, request.label, request.target) for request, _, _ in found] == [
            ("checkpoint", "a", None, None),
            ("savepoint", "b", "x", None),
            ("savepoint", "c", None, "/elsewhere/mine"),
        ]
        assert [(checkpoint, path) for _, checkpoint, path in found] == [
            (1, join(JOB, "checkpoints/1")),
            (2, join(JOB, "savepoints/2-x")),
            (3, "/elsewhere/mine"),
        ]

    def test_a_new_generation_links_anew_but_reads_nothing_again(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(4)

        class Unread(MemoryFiles):
            def checksum_one(self, path: str) -> None:  # type: ignore[override]
                raise AssertionError(path)

        view = Unread()
        view._disk = files._disk
        after = Driver(view, 2)
        after.make(4)
        old, new = shared_names_by_generation(files)
        assert {name.rpartition("-")[0] for name in old} == {name.rpartition("-")[0] for name in new}
        check_all_verify(files)

    def test_when_all_others_are_dead_nothing_is_linked_anew(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(4)
        before = shared_files(files)
        after = Driver(files, 2, may_reuse_older=True)
        after.make(4)
        assert shared_files(files) == before
        after.retain(1)
        check_all_verify(files)
        check_nothing_is_left(after, files)

    def test_an_older_driver_is_fenced(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(4)
        pending = driver.claim("checkpoint")
        snapshot = driver.pin(pending, 4)
        Driver(files, 2).make(4)
        with pytest.raises(Fenced):
            driver.complete(pending, "checkpoint", snapshot)
        with pytest.raises(Fenced):
            driver.claim("savepoint")
        with pytest.raises(Fenced):
            CheckpointStore(files, JOB, Generation(1)).open()

    def test_a_fenced_driver_removes_nothing_that_the_new_one_needs(self, files: MemoryFiles, driver: Driver) -> None:
        driver.make(4)
        driver.make(4)
        after = Driver(files, 2)
        after.make(4)
        assert driver.store.retain(1) == [1]
        check_all_verify(files)
        assert ids(files) == [2, 3]

    def test_an_unfinished_savepoint_is_removed_with_its_folder(self, files: MemoryFiles, driver: Driver) -> None:
        checkpoint = driver.claim("savepoint", target="/elsewhere/mine")
        driver.pin(checkpoint, 4)
        after = Driver(files, 2)
        after.store.open()
        assert not files.exists("/elsewhere/mine")
        found = look(files, JOB, checkpoint, lambda path: files)
        assert found is not None
        assert found[0].state is CheckpointState.VOID

    def test_a_savepoint_that_lies_where_nobody_can_look_does_not_keep_the_job_from_starting(
        self, files: MemoryFiles, driver: Driver
    ) -> None:
        driver.make(4, "savepoint", target="/archive/one")

        class Unreachable(MemoryFiles):
            def read(self, path: str) -> bytes:
                raise StoreUnavailable(path, "read", "no route to host")

        store = CheckpointStore(
            files, JOB, Generation(2), storage=lambda path: Unreachable() if path.startswith("/archive") else files
        )
        assert store.completed_requests() == []
        assert store.newest_id() == 1


def shared_names_by_generation(files: MemoryFiles) -> tuple[set[str], set[str]]:
    names = shared_files(files)
    return {name for name in names if name.endswith("-1")}, {name for name in names if name.endswith("-2")}
