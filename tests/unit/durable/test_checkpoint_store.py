"""Checkpoints are made: claimed, pinned, and completed or discarded."""

from __future__ import annotations

import errno
from collections.abc import Collection, Sequence

import pytest

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.metadata_file import Kind
from coord_control.durable.files.filesystem import FileInfo, Linked, join
from coord_control.errors import AlreadyExists, StateFileMissing
from coord_control.ids import NO_EPOCH, CheckpointId, Epoch
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.checkpoint_kit import (
    JOB,
    LINEAGE,
    QUERY,
    SPARK,
    StoreDriver,
    check_all_verify,
    check_nothing_is_left,
    ids,
    run_epoch,
    shared_files,
)


class TestMaking:
    def test_a_checkpoint_exists_when_it_is_complete_and_not_before(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        checkpoint = driver.claim("checkpoint")
        snapshot = driver.pin(checkpoint, 4)
        assert ids(files) == []
        driver.complete(checkpoint, "checkpoint", snapshot)
        assert ids(files) == [1]
        check_all_verify(files)

    def test_it_holds_what_the_epoch_needs(self, files: MemoryFiles, driver: StoreDriver) -> None:
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
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        first = driver.claim("checkpoint")
        pinned = driver.store.pin(first, QUERY, LINEAGE, SPARK, Epoch(4))
        assert pinned.copied_bytes == 0
        assert pinned.linked_bytes == pinned.live.size > 0
        driver.complete(first, "checkpoint", pinned.snapshot(query_id="id", spark_version="4.3.0", earlier=None))
        before = {info.path: info for info in files.walk(join(JOB, "shared"))}
        again = driver.store.pin(driver.claim("checkpoint"), QUERY, LINEAGE, SPARK, Epoch(4))
        assert (again.linked_bytes, again.copied_bytes) == (0, 0)
        assert again.entries == pinned.entries
        assert {info.path: info for info in files.walk(join(JOB, "shared"))} == before

    def test_without_links_only_new_files_are_copied(self) -> None:
        files = MemoryFiles(has_links=False)
        for epoch in range(5):
            run_epoch(files, epoch)
        driver = StoreDriver(files, 1)
        first = driver.store.pin(driver.claim("checkpoint"), QUERY, LINEAGE, SPARK, Epoch(4))
        assert (first.linked_bytes, first.copied_bytes) == (0, first.live.size)
        run_epoch(files, 5)
        second = driver.store.pin(driver.claim("checkpoint"), QUERY, LINEAGE, SPARK, Epoch(5))
        new = sum(entry.size for entry in set(second.entries) - set(first.entries))
        assert (second.linked_bytes, second.copied_bytes) == (0, new)
        assert new < second.live.size

    def test_a_file_that_spark_wrote_anew_is_another_one(self, files: MemoryFiles, driver: StoreDriver) -> None:
        driver.make(4)
        path = join(SPARK, "state/0/0/5.delta")
        files.delete(path)
        files.create(path, b"DELTA 5")
        driver.make(4)
        check_all_verify(files)
        assert len([name for name in shared_files(files) if "0/0/5.delta" in name]) == 2

    def test_a_query_that_has_not_committed_has_no_files(self, files: MemoryFiles) -> None:
        driver = StoreDriver(files, 1)
        checkpoint = driver.claim("checkpoint")
        pinned = driver.store.pin(checkpoint, QUERY, LINEAGE, SPARK, NO_EPOCH)
        assert pinned.entries == ()
        assert pinned.snapshot(query_id="id", spark_version="4.3.0", earlier=None).epoch == NO_EPOCH

    def test_a_purged_epoch_can_be_pinned_at_a_newer_one(self, files: MemoryFiles, driver: StoreDriver) -> None:
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
        self, files: MemoryFiles, driver: StoreDriver, kind: Kind
    ) -> None:
        class Vanishing(MemoryFiles):
            def link_all(
                self,
                source: str,
                target: str,
                names: Sequence[tuple[str, str]],
                summed: Collection[str] = (),
                listed: Sequence[FileInfo] | None = None,
            ) -> Sequence[Linked]:
                raise FileNotFoundError(errno.ENOENT, "gone", join(source, "state/0/0/4.delta"))

        view = Vanishing()
        view._disk = files._disk
        store = driver.another_store(view)
        store.claim(CheckpointId(1), kind)
        with pytest.raises(StateFileMissing, match=r"state/0/0/4\.delta") as caught:
            store.pin(CheckpointId(1), QUERY, LINEAGE, SPARK, Epoch(4))
        assert caught.value.retry

    def test_a_file_that_is_replaced_while_it_is_pinned_can_be_retried(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        class Replacing(MemoryFiles):
            def link_all(
                self,
                source: str,
                target: str,
                names: Sequence[tuple[str, str]],
                summed: Collection[str] = (),
                listed: Sequence[FileInfo] | None = None,
            ) -> Sequence[Linked]:
                files.replace(join(SPARK, "state/0/0/4.delta"), b"DELTA 4")
                return super().link_all(source, target, names, summed, listed)

        view = Replacing()
        view._disk = files._disk
        store = driver.another_store(view)
        store.claim(CheckpointId(1), "checkpoint")
        with pytest.raises(StateFileMissing, match="replaced"):
            store.pin(CheckpointId(1), QUERY, LINEAGE, SPARK, Epoch(4))

    def test_a_discarded_one_leaves_nothing_but_its_number(self, files: MemoryFiles, driver: StoreDriver) -> None:
        driver.make(3)
        checkpoint = driver.claim("checkpoint")
        driver.pin(checkpoint, 4)
        driver.store.discard(checkpoint)
        check_nothing_is_left(driver, files)
        assert driver.claim("checkpoint") == checkpoint + 1
        assert files.list(join(JOB, "checkpoints")) == ["1", "3"]

    def test_an_id_is_claimed_once(self, files: MemoryFiles, driver: StoreDriver) -> None:
        driver.claim("checkpoint")
        with pytest.raises(AlreadyExists):
            driver.another_store(files).claim(CheckpointId(1), "checkpoint")
