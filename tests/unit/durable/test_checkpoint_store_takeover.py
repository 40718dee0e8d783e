"""A driver takes over the checkpoints of another one, which may only seem to be dead."""

from __future__ import annotations

import datetime

import pytest

from coord_control.durable.checkpoints.checkpoint_folder import StoredState, look
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.generations import ClaimRecord
from coord_control.errors import Fenced, StoreUnavailable
from coord_control.ids import CheckpointId, Generation
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.checkpoint_kit import (
    HOLDER,
    JOB,
    StoreDriver,
    check_all_verify,
    ids,
    shared_files,
)

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


class TestTakingOver:
    def test_requests_that_were_answered_are_remembered(self, files: MemoryFiles, driver: StoreDriver) -> None:
        driver.make(3, key="a")
        driver.make(4, "savepoint", label="x", key="b")
        driver.make(4, "savepoint", target="/elsewhere/mine", key="c")
        found = StoreDriver(files, 2).store.completed_requests()
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

    def test_a_new_generation_links_anew_but_reads_nothing_again(self, files: MemoryFiles, driver: StoreDriver) -> None:
        driver.make(4)

        class Unread(MemoryFiles):
            def checksum_one(self, path: str) -> None:  # type: ignore[override]
                raise AssertionError(path)

        view = Unread()
        view._disk = files._disk
        after = StoreDriver(view, 2)
        after.make(4)
        old, new = shared_names_by_generation(files)
        assert {name.rpartition("-")[0] for name in old} == {name.rpartition("-")[0] for name in new}
        check_all_verify(files)

    def test_an_older_driver_is_fenced(self, files: MemoryFiles, driver: StoreDriver) -> None:
        driver.make(4)
        pending = driver.claim("checkpoint")
        snapshot = driver.pin(pending, 4)
        StoreDriver(files, 2).make(4)
        with pytest.raises(Fenced):
            driver.complete(pending, "checkpoint", snapshot)
        with pytest.raises(Fenced):
            driver.claim("savepoint")
        with pytest.raises(Fenced):
            driver.another_store(files).open()

    def test_a_driver_whose_claim_another_one_has_overwritten_is_fenced(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        """Bug: the highest number decided, so of two drivers that had claimed the same number both went on."""
        driver.make(4)
        kept = driver.make(4)
        pending = driver.claim("checkpoint")
        snapshot = driver.pin(pending, 4)
        rival = ClaimRecord(generation=Generation(1), holder=HOLDER, claimed_at=NOW, token="rival")
        files.replace(join(JOB, "generations/1.json"), rival.encode())
        with pytest.raises(Fenced):
            driver.complete(pending, "checkpoint", snapshot)
        with pytest.raises(Fenced):
            driver.claim("savepoint")
        with pytest.raises(Fenced):
            driver.dispose(CheckpointId(1))
        with pytest.raises(Fenced):
            driver.another_store(files).open()
        assert ids(files) == [1, kept]

    def test_a_fenced_driver_removes_nothing_that_the_new_one_needs(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        driver.make(4)
        driver.make(4)
        after = StoreDriver(files, 2)
        after.make(4)
        assert driver.store.retain(1) == [1]
        check_all_verify(files)
        assert ids(files) == [2, 3]

    def test_an_unfinished_savepoint_is_removed_with_its_folder(self, files: MemoryFiles, driver: StoreDriver) -> None:
        checkpoint = driver.claim("savepoint", target="/elsewhere/mine")
        driver.pin(checkpoint, 4)
        after = StoreDriver(files, 2)
        after.store.open()
        assert not files.exists("/elsewhere/mine")
        found = look(files, JOB, checkpoint, lambda path: files)
        assert found is not None
        assert found[0].state is StoredState.VOID

    def test_a_savepoint_that_lies_where_nobody_can_look_does_not_keep_the_job_from_starting(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        driver.make(4, "savepoint", target="/archive/one")

        class Unreachable(MemoryFiles):
            def read(self, path: str) -> bytes:
                raise StoreUnavailable(path, "read", "no route to host")

        store = StoreDriver(files, 2).another_store(
            files, storage=lambda path: Unreachable() if path.startswith("/archive") else files
        )
        assert store.completed_requests() == []
        assert store.newest_id() == 1


def shared_names_by_generation(files: MemoryFiles) -> tuple[set[str], set[str]]:
    names = shared_files(files)
    return {name for name in names if name.endswith("-1")}, {name for name in names if name.endswith("-2")}
