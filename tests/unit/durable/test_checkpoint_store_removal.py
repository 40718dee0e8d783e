"""Removing checkpoints: what retention keeps, and what may not be disposed of."""

from __future__ import annotations

import pytest

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.holds import hold
from coord_control.durable.checkpoints.metadata_file import Kind
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import join
from coord_control.errors import CheckpointInUse, CheckpointNotFound
from coord_control.ids import CheckpointId
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.checkpoint_kit import (
    JOB,
    StoreDriver,
    check_all_verify,
    check_nothing_is_left,
    ids,
    run_epoch,
    shared_files,
)


class TestRetention:
    def test_the_newest_ones_stay(self, files: MemoryFiles, driver: StoreDriver) -> None:
        for epoch in range(5, 9):
            run_epoch(files, epoch)
            driver.make(epoch)
        assert driver.retain(2) == [1, 2]
        assert ids(files) == [3, 4]
        check_nothing_is_left(driver, files)
        check_all_verify(files)

    def test_one_always_stays(self, files: MemoryFiles, driver: StoreDriver) -> None:
        driver.make(4)
        assert driver.retain(0) == []
        assert ids(files) == [1]

    def test_one_that_completes_late_is_not_the_newest(self, files: MemoryFiles, driver: StoreDriver) -> None:
        early = driver.claim("checkpoint")
        snapshot = driver.pin(early, 4)
        driver.make(4)
        driver.complete(early, "checkpoint", snapshot)
        assert driver.retain(1) == [early]
        assert ids(files) == [2]

    def test_one_that_is_being_restored_is_left_for_the_next_time(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        """FLINK-38033: the savepoint of an upgrade was disposed of by the periodic cleanup."""
        driver.make(4)
        driver.make(4)
        with Catalog(files, JOB).hold("1"):
            assert driver.retain(1) == []
            with pytest.raises(CheckpointInUse, match="being restored"):
                driver.store.dispose(CheckpointId(1))
        assert driver.retain(1) == [1]
        check_nothing_is_left(driver, files)

    def test_the_newest_is_looked_for_before_others_go(self, files: MemoryFiles, driver: StoreDriver) -> None:
        driver.make(4)
        driver.make(4)
        files.delete(join(JOB, "checkpoints/2/_metadata"))
        assert driver.retain(1) == []
        assert ids(files) == [1]


class TestDisposal:
    def test_the_newest_checkpoint_is_refused(self, driver: StoreDriver) -> None:
        driver.make(4)
        driver.make(4, "savepoint")
        with pytest.raises(CheckpointInUse, match="newest completed"):
            driver.store.dispose(CheckpointId(1))

    def test_files_that_others_need_stay(self, files: MemoryFiles, driver: StoreDriver) -> None:
        driver.make(3)
        driver.make(4)
        before = shared_files(files)
        driver.dispose(CheckpointId(1))
        assert shared_files(files) < before
        check_nothing_is_left(driver, files)
        check_all_verify(files)

    @pytest.mark.parametrize("checkpoint", [2, 99])
    def test_what_is_not_there_is_not_found(self, driver: StoreDriver, checkpoint: int) -> None:
        driver.make(4)
        driver.store.discard(driver.claim("checkpoint"))
        with pytest.raises(CheckpointNotFound):
            driver.store.dispose(CheckpointId(checkpoint))

    def test_the_number_of_a_disposed_savepoint_is_not_used_again(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        driver.make(4, "savepoint")
        driver.dispose(CheckpointId(1))
        assert Catalog(files, JOB).entries() == []
        assert StoreDriver(files, 2).next_id() == 2

    @pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
    def test_who_begins_to_read_while_it_is_removed_can_read_on(
        self, files: MemoryFiles, driver: StoreDriver, kind: Kind
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
        after = StoreDriver(view, 2)
        with pytest.raises(CheckpointInUse):
            after.store.dispose(CheckpointId(1))
        assert list(verify_files(files, entry.path, metadata)) == []
        StoreDriver(files, 3).store.open()  # a driver that takes over meanwhile leaves it alone too
        assert list(verify_files(files, entry.path, metadata)) == []
        reader.__exit__(None, None, None)
        last = StoreDriver(files, 4)
        last.store.open()
        check_nothing_is_left(last, files)
        assert ids(files) == [2]
