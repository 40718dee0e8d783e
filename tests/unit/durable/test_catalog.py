from __future__ import annotations

import pytest

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import StoredState
from coord_control.durable.checkpoints.removal import dispose_without_owner
from coord_control.durable.files.filesystem import join
from coord_control.errors import CheckpointInUse, CheckpointNotFound, DamagedRecord
from coord_control.ids import CheckpointId
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.checkpoint_kit import JOB, StoreDriver, check_all_verify, check_nothing_is_left, ids, run_epoch


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    for epoch in range(5):
        run_epoch(files, epoch)
    return files


@pytest.fixture
def driver(files: MemoryFiles) -> StoreDriver:
    """1, 2 checkpoints; 3 a savepoint with a label; 4 a checkpoint with a label; 5 elsewhere; 6 unfinished."""
    driver = StoreDriver(files, 1)
    driver.make(3)
    driver.make(4)
    driver.make(4, "savepoint", label="before-upgrade")
    driver.make(4, label="nightly")
    driver.make(4, "savepoint", target="/elsewhere/mine")
    driver.claim("checkpoint", label="half-made")
    return driver


@pytest.fixture
def catalog(files: MemoryFiles, driver: StoreDriver) -> Catalog:
    return Catalog(files, JOB)


def test_all_are_listed_but_those_that_were_given_up(files: MemoryFiles, driver: StoreDriver, catalog: Catalog) -> None:
    assert [(entry.checkpoint, entry.kind, entry.label, entry.state) for entry in catalog.entries()] == [
        (1, "checkpoint", None, StoredState.COMPLETED),
        (2, "checkpoint", None, StoredState.COMPLETED),
        (3, "savepoint", "before-upgrade", StoredState.COMPLETED),
        (4, "checkpoint", "nightly", StoredState.COMPLETED),
        (5, "savepoint", None, StoredState.COMPLETED),
        (6, "checkpoint", "half-made", StoredState.UNFINISHED),
    ]
    driver.store.discard(CheckpointId(6))
    assert [entry.checkpoint for entry in catalog.entries()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("1", 1),
        ("latest", 5),
        ("before-upgrade", 3),
        ("nightly", 4),
        ("/elsewhere/mine", 5),
        ("/elsewhere/mine/", 5),
        ("/elsewhere/mine/_metadata", 5),
        ("/jobs/flights/checkpoints/2", 2),
    ],
)
def test_a_reference_means_one(catalog: Catalog, reference: str, expected: int) -> None:
    entry = catalog.resolve(reference)
    assert entry.checkpoint == expected
    assert catalog.read(entry).checkpoint == expected


@pytest.mark.parametrize(
    ("reference", "message", "near"),
    [
        ("9", "none of that number", ("3", "4", "5")),
        ("nightlv", "none of that label", ("nightly",)),
        ("lates", "none of that label", ("latest",)),
        ("quite-different", "none of that label", ()),
        ("/elsewhere/mina", "no _metadata", ("/elsewhere/mine",)),
        ("6", "not complete", ()),
        ("half-made", "not complete", ()),
    ],
)
def test_what_is_not_there_is_told_with_what_is_near(
    catalog: Catalog, reference: str, message: str, near: tuple[str, ...]
) -> None:
    with pytest.raises(CheckpointNotFound, match=message) as caught:
        catalog.resolve(reference)
    assert caught.value.near == near
    assert all(name in str(caught.value) for name in near)


def test_a_folder_that_is_no_savepoint_is_not_proposed_for_itself(files: MemoryFiles, catalog: Catalog) -> None:
    files.create("/elsewhere/mind/part-0.json", b"{}")
    with pytest.raises(CheckpointNotFound, match="no _metadata") as caught:
        catalog.resolve("/elsewhere/mind")
    assert caught.value.near == ("/elsewhere/mine",)


def test_a_job_without_any_has_no_latest() -> None:
    with pytest.raises(CheckpointNotFound, match="no complete checkpoint"):
        Catalog(MemoryFiles(), JOB).resolve("latest")


def test_a_label_of_several_is_refused_with_their_ids(driver: StoreDriver, catalog: Catalog) -> None:
    driver.make(4, "savepoint", label="nightly")
    with pytest.raises(CheckpointNotFound, match="several") as caught:
        catalog.resolve("nightly")
    assert caught.value.near == ("4", "7")


def test_a_savepoint_of_another_job_is_found_by_its_path(files: MemoryFiles, driver: StoreDriver) -> None:
    entry = Catalog(files, "/jobs/another").resolve("/elsewhere/mine")
    assert entry.claim is None
    assert (entry.checkpoint, entry.kind) == (5, "savepoint")


def test_a_damaged_one_is_an_error_that_names_the_file(files: MemoryFiles, catalog: Catalog) -> None:
    files.damage(join(JOB, "checkpoints/4/_metadata"), keep=300)
    for reference in ("4", "nightly"):
        with pytest.raises(DamagedRecord, match="checkpoints/4/_metadata"):
            catalog.resolve(reference)
    assert catalog.entries()[3].state is StoredState.DAMAGED


def test_one_that_is_removed_between_two_looks_is_not_found(
    files: MemoryFiles, driver: StoreDriver, catalog: Catalog
) -> None:
    entry = catalog.resolve("3")
    driver.dispose(CheckpointId(3))
    with pytest.raises(CheckpointNotFound, match="just now"):
        catalog.read(entry)


def test_a_held_one_is_given_back(files: MemoryFiles, driver: StoreDriver, catalog: Catalog) -> None:
    with catalog.hold("before-upgrade", "it is being verified") as entry:
        with pytest.raises(CheckpointInUse, match="it is being verified"):
            driver.store.dispose(CheckpointId(3))
        assert entry.checkpoint == 3
    driver.dispose(CheckpointId(3))
    assert not files.exists(entry.path)


class TestDisposalWithoutOwner:
    def test_a_savepoint_goes_with_all_its_files(self, files: MemoryFiles, catalog: Catalog) -> None:
        for reference in ("3", "5"):
            entry = catalog.resolve(reference)
            assert dispose_without_owner(files, JOB, entry, lambda path: files)
            assert not files.exists(entry.path)
        assert [entry.checkpoint for entry in catalog.entries()] == [1, 2, 4, 6]

    def test_a_checkpoint_leaves_its_files_to_the_next_driver(self, files: MemoryFiles, catalog: Catalog) -> None:
        assert not dispose_without_owner(files, JOB, catalog.resolve("1"), lambda path: files)
        assert ids(files) == [2, 3, 4, 5]
        after = StoreDriver(files, 2)
        after.store.open()
        check_nothing_is_left(after, files)
        check_all_verify(files)

    @pytest.mark.parametrize(("checkpoint", "why"), [(4, "newest completed"), (6, "being made")])
    def test_the_newest_and_the_unfinished_are_refused(
        self, files: MemoryFiles, catalog: Catalog, checkpoint: int, why: str
    ) -> None:
        [entry] = [entry for entry in catalog.entries() if entry.checkpoint == checkpoint]
        with pytest.raises(CheckpointInUse, match=why):
            dispose_without_owner(files, JOB, entry, lambda path: files)

    def test_a_savepoint_of_another_job_can_be_named_by_its_path(self, files: MemoryFiles, driver: StoreDriver) -> None:
        entry = Catalog(files, "/jobs/another").resolve("/elsewhere/mine")
        assert dispose_without_owner(files, "/jobs/another", entry, lambda path: files)
        assert not files.exists("/elsewhere/mine")

    def test_a_checkpoint_of_another_job_is_compared_with_those_of_its_own_job(
        self, files: MemoryFiles, driver: StoreDriver
    ) -> None:
        """Bug: it was refused with the number of the newest one here, and removed as the newest of its own job."""
        another = "/jobs/another"
        for name in ("1/_claim", "1/_metadata", "2/_claim", "2/_metadata"):
            files.create(f"{another}/checkpoints/{name}", files.read(f"{JOB}/checkpoints/{name}"))
        older, newest = (Catalog(files, another).resolve(f"{JOB}/checkpoints/{number}") for number in (2, 4))
        for folder in (another, "/no-job"):
            with pytest.raises(CheckpointInUse, match="newest completed"):
                dispose_without_owner(files, folder, newest, lambda path: files)
        assert not dispose_without_owner(files, another, older, lambda path: files)
        assert ids(files) == [1, 3, 4, 5]
        assert files.exists(f"{another}/checkpoints/2/_metadata")
