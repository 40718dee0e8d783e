"""Savepoints: self-contained, where the user wants them, and never removed by retention."""

from __future__ import annotations

import re

import pytest

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import StoredState
from coord_control.durable.checkpoints.metadata_file import Kind
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import Checksum, Files, join
from coord_control.errors import SavepointTargetTaken
from coord_control.ids import CheckpointId, Epoch
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
    metadata_of,
    run_epoch,
    shared_files,
)


def _live_path(path: str) -> str:
    """Return the path below Spark's directory of a file in a savepoint, or of a shared one."""
    return re.sub(r"^.*/(spark|lineage-\d+)/|\.[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$", "", path)


class TestSavepoints:
    def test_a_savepoint_is_self_contained(self, files: MemoryFiles, driver: StoreDriver) -> None:
        checkpoint = driver.make(4, "savepoint", label="before-upgrade")
        [entry] = Catalog(files, JOB).entries()
        assert entry.path == join(JOB, "savepoints", f"{checkpoint}-before-upgrade")
        assert shared_files(files) == set()
        check_all_verify(files)

    def test_its_target_can_be_chosen(self, files: MemoryFiles, driver: StoreDriver) -> None:
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

        store = StoreDriver(files, 1).another_store(files, storage=storage)
        store.claim(CheckpointId(1), "savepoint", target="/archive/one")
        pinned = store.pin(CheckpointId(1), QUERY, LINEAGE, SPARK, Epoch(4))
        assert (pinned.linked_bytes, pinned.copied_bytes) == (0, pinned.live.size)
        snapshot = pinned.snapshot(query_id="id", spark_version="4.3.0", earlier=None)
        metadata = metadata_of(1, "savepoint", 1, snapshot)
        written = store.complete(metadata)
        assert written.path == "/archive/one"
        assert written.metadata_bytes == len(archive.read("/archive/one/_metadata"))
        assert list(verify_files(archive, "/archive/one", metadata)) == []
        [entry] = Catalog(files, JOB, storage).entries()
        assert entry.is_completed
        store.dispose(CheckpointId(1))
        assert archive.paths() == []

    @pytest.mark.parametrize("next_kind", ["savepoint", "checkpoint"])
    def test_only_files_that_are_new_since_the_last_savepoint_are_read(
        self, files: MemoryFiles, next_kind: Kind
    ) -> None:
        read: set[str] = set()

        class Reading(MemoryFiles):
            def checksum_one(self, path: str) -> Checksum:
                read.add(_live_path(path))
                return super().checksum_one(path)

        for epoch in range(4):
            run_epoch(files, epoch)
        view = Reading()
        view._disk = files._disk
        driver = StoreDriver(view, 1)
        driver.make(3, "savepoint")
        assert {"offsets/3", "state/0/1/4.delta"} <= read
        run_epoch(files, 4)
        files.replace(join(SPARK, "state/0/1/4.delta"), b"another one of the same name")
        read.clear()
        driver.make(4, next_kind)
        assert read.isdisjoint({"offsets/3", "commits/3", "state/0/0/4.delta"})
        assert {"offsets/4", "commits/4", "state/0/1/4.delta"} <= read
        check_all_verify(files)

    def test_a_target_with_something_in_it_is_refused_and_left_alone(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        files.create("/elsewhere/mine/notes", b"x")
        with pytest.raises(SavepointTargetTaken, match="something in it"):
            driver.claim("savepoint", target="/elsewhere/mine")
        assert files.list("/elsewhere/mine") == ["notes"]
        assert ids(files) == []
        check_nothing_is_left(driver, files)

    @pytest.mark.parametrize("own", ["checkpoints/7", "shared", "shared/x", "queries/delays/lineage-000001/spark/x"])
    def test_a_target_among_the_jobs_own_files_is_refused(self, driver: StoreDriver, own: str) -> None:
        with pytest.raises(SavepointTargetTaken, match="job's own"):
            driver.claim("savepoint", target=join(JOB, own))

    def test_pinning_again_at_a_newer_epoch_leaves_nothing_of_the_older(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        checkpoint = driver.claim("savepoint")
        driver.pin(checkpoint, 3)
        driver.complete(checkpoint, "savepoint", driver.pin(checkpoint, 4))
        check_all_verify(files)  # it knows of no extra file either

    def test_retention_never_touches_it(self, files: MemoryFiles, driver: StoreDriver) -> None:
        savepoint = driver.make(3, "savepoint")
        driver.make(4)
        driver.make(4)
        assert driver.retain(1) == [2]
        assert ids(files) == [savepoint, 3]

    def test_one_that_was_moved_is_known_as_missing_and_the_folder_in_its_place_is_left_alone(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        driver.make(4, "savepoint", target="/elsewhere/mine")
        driver.make(4)
        for info in list(files.walk("/elsewhere/mine")):
            files.link(join("/elsewhere/mine", info.path), join("/moved", info.path))
        files.delete("/elsewhere/mine")
        files.create("/elsewhere/mine/notes", b"of the user")
        after = StoreDriver(files, 2)
        after.store.open()
        [missing] = [entry for entry in Catalog(files, JOB).entries() if not entry.is_completed]
        assert missing.state is StoredState.MISSING
        assert Catalog(files, JOB).resolve("/moved").checkpoint == 1
        after.dispose(CheckpointId(1))
        assert files.list("/elsewhere/mine") == ["notes"]
        assert files.exists("/moved/_metadata")
        assert [entry.checkpoint for entry in Catalog(files, JOB).entries()] == [2]
