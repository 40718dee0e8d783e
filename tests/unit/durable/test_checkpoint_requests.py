"""What a checkpoint asks of a storage where each request costs: nothing that the driver knows already."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

import pytest

from coord_control.durable.checkpoints import checkpoint_store
from coord_control.durable.checkpoints.metadata_file import Kind
from coord_control.durable.files.filesystem import Checksum, FileInfo, Linked, join
from coord_control.errors import Fenced, StateFileMissing
from coord_control.ids import CheckpointId, Epoch
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.checkpoint_kit import JOB, LINEAGE, QUERY, SPARK, StoreDriver, check_all_verify, run_epoch


class Objects(MemoryFiles):
    """A storage with etags, which counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def read(self, path: str) -> bytes:
        self.asked[f"read {path}"] += 1
        return super().read(path)

    def exists(self, path: str) -> bool:
        self.asked[f"exists {path}"] += 1
        return super().exists(path)

    def list(self, path: str) -> list[str]:
        self.asked[f"list {path}"] += 1
        return super().list(path)

    def walk(self, path: str) -> Sequence[FileInfo]:
        self.asked[f"walk {path}"] += 1
        return [
            info._replace(etag=f"{zlib.crc32(self._disk.files[join(path, info.path)]):08x}")
            for info in super().walk(path)
        ]

    def checksum_one(self, path: str) -> Checksum:
        self.asked[f"sum {path}"] += 1
        return super().checksum_one(path)


@pytest.fixture
def files() -> Objects:
    objects = Objects()
    for epoch in range(5):
        run_epoch(objects, epoch)
    return objects


@pytest.fixture
def driver(files: Objects) -> StoreDriver:
    driver = StoreDriver(files, 1)
    driver.store.open()
    files.asked.clear()
    return driver


#: Entries of Spark's logs; back to the snapshot of the state, those of the commits between.
_READ_AT_4: Final = {"offsets/4", "commits/4", "commits/3", "commits/2"}


def of_spark(files: Objects, what: str) -> set[str]:
    begin = f"{what} {SPARK}/"
    return {each.removeprefix(begin) for each in files.asked if each.startswith(begin)}


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_what_an_earlier_checkpoint_of_the_lineage_has_read_is_not_read_again(
    files: Objects, driver: StoreDriver, kind: Kind
) -> None:
    driver.make(4)
    assert of_spark(files, "read") == _READ_AT_4
    files.asked.clear()
    driver.make(4, kind)
    assert of_spark(files, "read") == set()
    assert not [each for each in files.asked if each.startswith("sum ")]
    run_epoch(files, 5)
    driver.make(5, kind)
    assert of_spark(files, "read") == {"offsets/5", "commits/5"}
    check_all_verify(files)


def test_a_file_of_the_same_name_and_size_is_read_again(files: Objects, driver: StoreDriver) -> None:
    driver.make(4)
    path = join(SPARK, "commits/4")
    files.replace(path, files.read(path).replace(b":0}", b":7}"))
    files.asked.clear()
    checkpoint = driver.claim("checkpoint")
    snapshot = driver.pin(checkpoint, 4)
    assert of_spark(files, "read") == {"commits/4"}
    assert snapshot.commit == {"nextBatchWatermarkMs": 7}


def test_what_was_read_to_find_out_is_not_read_again_for_its_checksum(files: Objects, driver: StoreDriver) -> None:
    driver.make(4)
    summed = {each.partition(".")[0].rpartition("/")[2] for each in files.asked if each.startswith("sum ")}
    assert summed, "files of the state were read"
    assert not [
        each for each in files.asked if each.startswith("sum ") and ("/offsets/4." in each or "/commits/4." in each)
    ]
    check_all_verify(files)


def test_more_than_a_driver_keeps_in_memory_is_read_again(
    files: Objects, driver: StoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "_MAX_READ_BYTES", 10)
    driver.make(4)
    files.asked.clear()
    driver.make(4)
    assert of_spark(files, "read") == _READ_AT_4


def test_a_savepoint_looks_for_nothing_where_it_was_never_before(files: Objects, driver: StoreDriver) -> None:
    savepoint = driver.make(4, "savepoint")
    folder = join(JOB, "savepoints", str(savepoint))
    assert {each: count for each, count in files.asked.items() if folder in each and "/queries/" not in each} == {
        f"read {folder}/_claim": 1  # after the copies: a newer driver may have removed the folder meanwhile
    }
    assert not [each for each in files.asked if each.startswith("exists ") and "/queries/" in each]


def test_retention_asks_nothing_while_there_is_nothing_to_remove(files: Objects, driver: StoreDriver) -> None:
    driver.make(4)
    driver.make(4)
    files.asked.clear()
    assert driver.store.retain(2) == []
    assert not files.asked
    assert driver.store.retain(1) == [1]


def test_a_folder_that_was_named_is_verified_before_anything_is_put_into_it(
    files: Objects, driver: StoreDriver
) -> None:
    """A newer driver may have removed it, and claimed it for another savepoint."""
    checkpoint = driver.claim("savepoint", target="/archive/one")
    files.delete("/archive/one")
    files.create(
        "/archive/one/_claim",
        files.read(join(JOB, "checkpoints", str(checkpoint), "_claim")).replace(b'"token": "', b'"token": "x'),
    )
    other = "/archive/one/queries/delays/spark/offsets/4"
    files.create(other, b"of another savepoint")
    with pytest.raises(Fenced):
        driver.pin(checkpoint, 4)
    assert files.read(other) == b"of another savepoint"


def test_a_file_that_changes_between_listing_and_copy_is_not_kept_in_memory(
    files: Objects, driver: StoreDriver
) -> None:
    class Replacing(Objects):
        def link_all(
            self,
            source: str,
            target: str,
            names: Sequence[tuple[str, str]],
            summed: Collection[str] = (),
            listed: Sequence[FileInfo] | None = None,
        ) -> Sequence[Linked]:
            raise FileNotFoundError(2, "another one", join(SPARK, "commits/4"))

    view = Replacing()
    view._disk = files._disk
    store = driver.another_store(view)
    store.claim(CheckpointId(1), "checkpoint")
    for _ in range(2):
        view.asked.clear()
        with pytest.raises(StateFileMissing, match="removed or replaced"):
            store.pin(CheckpointId(1), QUERY, LINEAGE, SPARK, Epoch(4))
        assert of_spark(view, "read") == _READ_AT_4
