"""A storage that fails in the middle of a write or of a removal, and is repeated later."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import StoredState
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.errors import StoreUnavailable
from coord_control.ids import CheckpointId, Epoch, Generation
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.checkpoint_kit import (
    JOB,
    LINEAGE,
    QUERY,
    StoreDriver,
    check_all_verify,
    check_nothing_is_left,
    ids,
    run_epoch,
    shared_files,
)


class TestFailures:
    def test_a_removal_that_failed_is_repeated_and_leaves_no_orphan(
        self, driver: StoreDriver, files: MemoryFiles
    ) -> None:
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
        failing = StoreDriver(files.seen_by(Failing()), 2)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                failing.store.dispose(CheckpointId(1))
            assert 1 in [int(name) for name in files.list(join(JOB, "checkpoints"))]
            check_all_verify(files)
        with pytest.raises(StoreUnavailable):
            failing.store.retain(1)
        assert failing.store.retain(1) == []
        check_nothing_is_left(failing, files)

    def test_a_failed_discard_is_repeated_by_retention(self, driver: StoreDriver, files: MemoryFiles) -> None:
        class Failing:
            fails = True

            def before_write(self, path: str) -> None:
                if Failing.fails and "/shared/" in path:
                    raise StoreUnavailable(path, "write", "the storage hiccups")

            def after_write(self, path: str) -> None:
                pass

        Failing.fails = False
        failing = StoreDriver(files.seen_by(Failing()), 2)
        failing.make(3)
        checkpoint = failing.claim("checkpoint")
        failing.pin(checkpoint, 4)
        Failing.fails = True
        with pytest.raises(StoreUnavailable):
            failing.store.discard(checkpoint)
        Failing.fails = False
        failing.store.retain(3)
        check_nothing_is_left(failing, files)

    def test_a_storage_elsewhere_that_fails_does_not_keep_the_job_from_its_own_removals(
        self, driver: StoreDriver, files: MemoryFiles
    ) -> None:
        """Fault: what was left of one savepoint elsewhere kept every old checkpoint of the job where it was."""

        class Elsewhere:
            fails = True

            def before_write(self, path: str) -> None:
                if Elsewhere.fails and path.startswith("/elsewhere"):
                    raise StoreUnavailable(path, "delete", "no permission")

            def after_write(self, path: str) -> None:
                pass

        Elsewhere.fails = False
        failing = StoreDriver(files.seen_by(Elsewhere()), 2)
        savepoint = failing.claim("savepoint", target="/elsewhere/s")
        failing.pin(savepoint, 4)
        Elsewhere.fails = True
        with pytest.raises(StoreUnavailable):
            failing.store.discard(savepoint)
        for epoch in (2, 3, 4):
            failing.make(epoch)
        assert len(failing.store.retain(1)) == 2
        left = [failing.store.has_rest_elsewhere]
        with pytest.raises(StoreUnavailable):
            failing.store.retain_elsewhere()
        Elsewhere.fails = False
        failing.store.retain_elsewhere()
        assert [*left, failing.store.has_rest_elsewhere] == [True, False]
        assert not [path for path in files.paths() if path.startswith("/elsewhere")]

    def test_a_write_that_failed_and_happened_all_the_same_counts(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        class Doubtful:
            def before_write(self, path: str) -> None:
                pass

            def after_write(self, path: str) -> None:
                if path.endswith("/_metadata"):
                    raise StoreUnavailable(path, "create", "the answer was lost")

        doubtful = StoreDriver(files.seen_by(Doubtful()), 2)
        doubtful.make(4)
        assert ids(files) == [1]
        check_nothing_is_left(doubtful, files)

    def test_a_damaged_checkpoint_keeps_all_shared_files_where_they_are(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        driver.make(3)
        driver.make(4)
        before = shared_files(files)
        files.damage(join(JOB, "checkpoints/1/_metadata"), flip_bit=900)
        after = StoreDriver(files, 2)
        after.make(4)
        after.retain(1)
        assert before <= shared_files(files)
        [damaged] = [entry for entry in Catalog(files, JOB).entries() if entry.state is StoredState.DAMAGED]
        assert damaged.checkpoint == 1
        after.dispose(CheckpointId(1))
        last = StoreDriver(files, 3)
        last.store.open()
        check_nothing_is_left(last, files)

    def test_a_full_disk_is_told_and_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files, job = LocalFiles(), str(tmp_path / "job")
        spark = join(job, "queries", QUERY, LINEAGE, "spark")
        for epoch in range(5):
            run_epoch(files, epoch, spark=spark)
        store = CheckpointStore(files, job, Generation(1), lambda: None)
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
