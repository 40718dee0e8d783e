"""A job with a query that Spark seems to run, and drivers of it that take checkpoints; and what must always hold."""

from __future__ import annotations

import datetime
from collections import Counter

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointEntry, Storage, shared_folder, shared_names
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, Kind, QuerySnapshot, Trigger
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder
from coord_control.ids import BarrierId, CheckpointId, Epoch, Generation, QueryName
from tests.simulation.memory_files import MemoryFiles

JOB = "/jobs/flights"
QUERY = QueryName("delays")
LINEAGE = "lineage-000001"
SPARK = join(JOB, "queries", QUERY, LINEAGE, "spark")
HOLDER = Holder(host="here", boot=None, namespace=None, processes=())


def run_epoch(files: Files, epoch: int, *, keep: int = 3, spark: str = SPARK) -> None:
    """Commit an epoch of a stateful query, and purge what is older than some epochs."""
    version = epoch + 1
    files.create(join(spark, "offsets", str(epoch)), b'v1\n{"batchWatermarkMs":0,"conf":{}}\n%d' % epoch)
    for partition in range(2):
        folder = join(spark, "state/0", str(partition))
        files.create(join(folder, f"{version}.delta"), b"delta %d" % version)
        if version % 3 == 0:
            files.create(join(folder, f"{version}.snapshot"), b"snapshot %d" % version * 3)
    files.create(join(spark, "commits", str(epoch)), b'v1\n{"nextBatchWatermarkMs":0}')
    for old in range(epoch - keep - 3, epoch - keep):
        if old >= 0:
            for partition in range(2):
                files.delete(join(spark, "state/0", str(partition), f"{old - 2}.delta"))
            files.delete(join(spark, "offsets", str(old)))
            files.delete(join(spark, "commits", str(old)))


def metadata_of(
    checkpoint: int,
    kind: Kind,
    generation: int,
    snapshot: QuerySnapshot,
    *,
    label: str | None = None,
    key: str | None = None,
) -> CheckpointMetadata:
    now = datetime.datetime(2026, 1, 2, 3, 4, checkpoint % 60, tzinfo=datetime.UTC)
    return CheckpointMetadata(
        checkpoint=CheckpointId(checkpoint),
        kind=kind,
        job="flights",
        label=label,
        generation=Generation(generation),
        barrier=BarrierId(checkpoint),
        trigger=Trigger(cause="test", key=key, requested_at=now),
        triggered_at=now,
        completed_at=now,
        queries={QUERY: snapshot},
    )


class StoreDriver:
    """One driver of the job; what it was told to be done is remembered."""

    def __init__(self, files: MemoryFiles, generation: int) -> None:
        self.files = files
        self.generation = generation
        # Without faults: how a claim is made and disturbed is tested by itself.
        folder, above = join(JOB, "generations"), Generation(generation - 1)
        self.owner = generations.claim(files.seen_by(None), folder, HOLDER, above=above)
        assert self.owner.generation == generation
        self.store = self.another_store(files)
        self.claimed: list[int] = []
        self.completed: dict[int, Kind] = {}  #: complete() has returned, and nothing was done to it since
        self.doubtful: set[int] = set()  #: being completed, or being removed

    def another_store(self, files: Files, *, storage: Storage | None = None) -> CheckpointStore:
        """Return a store of this driver that knows nothing yet."""
        return CheckpointStore(files, JOB, self.owner.generation, self.verify, storage=storage)

    def verify(self) -> None:
        self.owner.verify("flights")

    def next_id(self) -> CheckpointId:
        return CheckpointId(max([self.store.newest_id(), *self.claimed]) + 1)

    def claim(self, kind: Kind, *, target: str | None = None, label: str | None = None) -> CheckpointId:
        checkpoint = self.next_id()
        self.store.claim(checkpoint, kind, target=target, label=label)
        self.claimed.append(checkpoint)
        return checkpoint

    def pin(self, checkpoint: CheckpointId, epoch: int) -> QuerySnapshot:
        pinned = self.store.pin(checkpoint, QUERY, LINEAGE, SPARK, Epoch(epoch))
        return pinned.snapshot(query_id="id", spark_version="4.3.0", earlier=None)

    def complete(self, checkpoint: CheckpointId, kind: Kind, snapshot: QuerySnapshot, **fields: str | None) -> str:
        self.doubtful.add(checkpoint)
        path = self.store.complete(metadata_of(checkpoint, kind, self.generation, snapshot, **fields)).path
        self.doubtful.discard(checkpoint)
        self.completed[checkpoint] = kind
        return path

    def make(
        self,
        epoch: int,
        kind: Kind = "checkpoint",
        *,
        target: str | None = None,
        label: str | None = None,
        key: str | None = None,
    ) -> CheckpointId:
        checkpoint = self.claim(kind, target=target, label=label)
        self.complete(checkpoint, kind, self.pin(checkpoint, epoch), label=label, key=key)
        return checkpoint

    def retain(self, count: int) -> list[CheckpointId]:
        checkpoints = sorted(one for one, kind in self.completed.items() if kind == "checkpoint")
        self.doubtful.update(checkpoints[:-count])
        for checkpoint in checkpoints[:-count]:
            del self.completed[checkpoint]
        removed = self.store.retain(count)
        self.doubtful.difference_update(removed)
        return removed

    def dispose(self, checkpoint: CheckpointId) -> None:
        self.doubtful.add(checkpoint)
        self.completed.pop(checkpoint, None)
        self.store.dispose(checkpoint)
        self.doubtful.discard(checkpoint)


def driver_after_five_epochs(files: MemoryFiles) -> StoreDriver:
    """The first driver of a job whose query has committed five epochs."""
    for epoch in range(5):
        run_epoch(files, epoch)
    return StoreDriver(files, 1)


def completed(files: Files) -> list[CheckpointEntry]:
    return [entry for entry in Catalog(files, JOB).entries() if entry.is_completed]


def ids(files: Files) -> list[int]:
    return [entry.checkpoint for entry in completed(files)]


def check_all_verify(files: Files) -> None:
    """Whatever is complete has all its files; at any moment, for anybody who looks."""
    catalog = Catalog(files, JOB)
    for entry in completed(files):
        assert list(verify_files(files, entry.path, catalog.read(entry))) == []


def references(files: Files) -> dict[str, int]:
    """By shared file, how many checkpoints name it: read from the storage."""
    catalog = Catalog(files, JOB)
    counts: Counter[str] = Counter()
    for entry in completed(files):
        if entry.kind == "checkpoint":
            counts.update(shared_names(catalog.read(entry)))
    return dict(counts)


def shared_files(files: Files) -> set[str]:
    return {info.path for info in files.walk(shared_folder(JOB))}


def check_nothing_is_left(driver: StoreDriver, files: Files) -> None:
    """References equal reality, no file without an owner, no folder without a purpose."""
    assert driver.store.shared.owners() == references(files)
    assert shared_files(files) == set(references(files))
    entries = completed(files)
    newest = driver.store.newest_id()
    folders = {int(name) for name in files.list(join(JOB, "checkpoints"))}
    assert folders - {newest} == {entry.checkpoint for entry in entries} - {newest}
    savepoints = {entry.path for entry in entries if entry.kind == "savepoint"}
    assert {join(JOB, "savepoints", name) for name in files.list(join(JOB, "savepoints"))} == {
        path for path in savepoints if path.startswith(join(JOB, "savepoints"))
    }
