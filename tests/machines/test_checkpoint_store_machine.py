"""A job's checkpoints on its storage, under any schedule of drivers, crashes, errors, readers and Spark's own purge.

Beside the store stands what a person would say: the newest completed checkpoint is always there; of whatever is there,
every file is; the counts are those of the manifests; and when everything has come to rest, nothing else is left.
"""

from __future__ import annotations

import contextlib
import datetime
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pytest
from hypothesis import given, settings

from coord_control.durable.checkpoints.checkpoint_folder import (
    StoredState,
    files_folder,
    list_entries,
    look,
    stored_name,
)
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.holds import hold
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, Kind
from coord_control.durable.checkpoints.pins import Pinned
from coord_control.durable.checkpoints.shared_files import SharedFiles
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.generations import Claim, ClaimRecord
from coord_control.errors import (
    AlreadyExists,
    CheckpointInUse,
    CheckpointNotFound,
    Fenced,
    StateFileMissing,
    StoreUnavailable,
)
from coord_control.ids import CheckpointId, Epoch, Generation, QueryName
from tests.machines.schedules import Schedule, schedules
from tests.mutations.mutation import Mutation
from tests.simulation.faults import StorageFaults
from tests.simulation.memory_files import Crash, MemoryFiles
from tests.simulation.statistics import Statistics
from tests.unit.durable.checkpoint_kit import HOLDER
from tests.unit.durable.metadata_kit import full_metadata

JOB: Final = "/jobs/j"
QUERY: Final = QueryName("q")
LINEAGE: Final = "lineage-000001"
SPARK: Final = join(JOB, "queries", QUERY, LINEAGE, "spark")


@dataclass(eq=False)
class Owner:
    """A driver, as far as checkpoints go; ``is_alone``: no older one was alive since it took over."""

    generation: Generation
    faults: StorageFaults
    store: CheckpointStore
    is_alone: bool
    pending: dict[CheckpointId, Kind] = field(default_factory=dict)
    pinned: dict[CheckpointId, Pinned] = field(default_factory=dict)
    is_open: bool = False
    is_doubtful: bool = False  #: an error has left something for the next call, or the next driver

    def open(self) -> None:
        self.store.open()
        self.is_open = True


class StoreModel:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.disk = MemoryFiles(torn_writes=True, has_links=schedule.pick([True, True, False]))
        self.owners: list[Owner] = []
        self.generation = Generation(0)
        self.is_owned = False  #: by the driver of the newest generation
        self.epoch = Epoch(-1)
        self.contents = 0
        self.newest = CheckpointId(0)  #: the highest id of a checkpoint that was complete
        self.readers: list[tuple[contextlib.ExitStack, CheckpointMetadata, str]] = []
        self.run_epoch()
        self.take_over()

    def play(self) -> None:
        while not self.schedule.is_over:
            self.step(self.schedule.pick(self.possible_steps()))
            self.check()
        self.come_to_rest()

    def possible_steps(self) -> list[Callable[[], None]]:
        steps = [self.run_epoch, self.run_epoch, self.purge, self.replace, self.take_over, self.read]
        if self.owners:
            steps += [*[self.claim] * 4, *[self.pin] * 6, *[self.complete] * 6, self.discard]
            steps += [*[self.retain] * 3, self.dispose, self.arm_crash, self.fail_storage, self.lose_claim]
        if self.readers:
            steps += [self.stop_reading]
        return steps

    def step(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Crash:
            self.owners = [owner for owner in self.owners if not owner.faults.died]
        except Fenced:
            pass  # whoever is told stops; here it goes on, which must do no harm
        except StoreUnavailable:
            pass

    # Spark.

    def run_epoch(self) -> None:
        self.epoch = Epoch(self.epoch + 1)
        self.write(f"offsets/{self.epoch}", b"v1\n{}\n1")
        self.write(f"sources/0/{self.epoch}", b"v1\n")
        self.write(f"commits/{self.epoch}", b"v1\n{}")

    def purge(self) -> None:
        oldest = min(int(name) for name in self.disk.list(f"{SPARK}/offsets"))
        if oldest < self.epoch - 2:
            for log in ("offsets", "commits", "sources/0"):
                self.disk.delete(f"{SPARK}/{log}/{oldest}")

    def replace(self) -> None:
        """A batch that is run again writes a file of its own anew."""
        self.write(f"sources/0/{self.epoch}", b"v1\n")

    def write(self, name: str, data: bytes) -> None:
        self.contents += 1
        self.disk.replace(f"{SPARK}/{name}", data + b"\n" * (self.contents % 3))

    # Drivers.

    def take_over(self) -> None:
        if self.schedule.pick([True, True, False]):
            self.owners.clear()
        is_alone = not self.owners
        faults = StorageFaults(Statistics())
        files = self.disk.seen_by(faults)
        claim = generations.claim(files, f"{JOB}/generations", HOLDER)
        self.generation, self.is_owned = claim.generation, True
        verify = partial(claim.verify, "job")
        store = CheckpointStore(files, JOB, self.generation, verify)
        self.owners.append(Owner(self.generation, faults, store, is_alone))

    def lose_claim(self) -> None:
        """Another driver has looked for the newest claim before it was there, and writes its own over it."""
        claimed_at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
        rival = ClaimRecord(generation=self.generation, holder=HOLDER, claimed_at=claimed_at, token="rival")
        self.disk.replace(f"{JOB}/generations/{self.generation}.json", rival.encode())
        self.is_owned = False

    @property
    def current(self) -> Owner | None:
        """The driver that nobody has fenced."""
        newest = self.owners[-1] if self.owners else None
        return newest if newest is not None and self.is_owned and newest.generation == self.generation else None

    def owner(self) -> Owner:
        """The newest driver, or one that does not know that it was fenced."""
        owner = self.schedule.pick([self.owners[-1], self.owners[-1], *self.owners])
        owner.open()
        return owner

    def arm_crash(self) -> None:
        self.owners[-1].faults.dies_at = self.schedule.pick(range(1, 12))

    def fail_storage(self) -> None:
        self.owners[-1].faults.fails_at = self.schedule.pick(range(1, 12))

    # Checkpoints.

    def claim(self) -> None:
        owner = self.owner()
        checkpoint = CheckpointId(owner.store.newest_id() + 1)
        kind: Kind = self.schedule.pick(["checkpoint", "checkpoint", "checkpoint", "savepoint"])
        with contextlib.suppress(AlreadyExists), self.doubts(owner):
            owner.store.claim(checkpoint, kind)
            assert owner is self.current, "it does not own the job"
            owner.pending[checkpoint] = kind

    def pin(self) -> None:
        owner = self.owner()
        if not (free := [checkpoint for checkpoint in owner.pending if checkpoint not in owner.pinned]):
            return
        checkpoint = self.schedule.pick(free)
        try:
            with self.doubts(owner):
                owner.pinned[checkpoint] = owner.store.pin(checkpoint, QUERY, LINEAGE, SPARK, self.epoch)
        except (StateFileMissing, StoreUnavailable):
            self.give_up(owner, checkpoint)

    def complete(self) -> None:
        owner = self.owner()
        if not owner.pinned:
            return
        checkpoint = self.schedule.pick(list(owner.pinned))
        try:
            snapshot = owner.pinned[checkpoint].snapshot(query_id="id", spark_version="4.3.0", earlier=None)
        except StateFileMissing:
            assert owner is not self.current, "only a newer driver removes what is pinned"
            self.give_up(owner, checkpoint)
            return
        metadata = full_metadata().model_copy(
            update={
                "checkpoint": checkpoint,
                "kind": owner.pending[checkpoint],
                "generation": owner.generation,
                "job": "j",
                "queries": {QUERY: snapshot},
                "operators": {},
            }
        )
        try:
            owner.store.complete(metadata)
        except (Fenced, StoreUnavailable):
            self.give_up(owner, checkpoint)
            raise
        del owner.pending[checkpoint], owner.pinned[checkpoint]
        assert owner is self.current, "it does not own the job"
        assert self.state(checkpoint) is StoredState.COMPLETED, "its driver was told so"

    def discard(self) -> None:
        owner = self.owner()
        if owner.pending:
            self.give_up(owner, self.schedule.pick(list(owner.pending)))

    def give_up(self, owner: Owner, checkpoint: CheckpointId) -> None:
        del owner.pending[checkpoint]
        owner.pinned.pop(checkpoint, None)
        with self.doubts(owner):
            owner.store.discard(checkpoint)

    def retain(self) -> None:
        owner = self.owner()
        with self.doubts(owner):
            for checkpoint in owner.store.retain(self.schedule.pick([1, 2, 3])):
                assert self.state(checkpoint) is not StoredState.COMPLETED

    def dispose(self) -> None:
        """Somebody asks the driver for it, and so knows which one that is."""
        owner, entries = self.owner(), list(list_entries(self.disk, JOB))
        if not entries or owner is not self.current:
            return
        entry = self.schedule.pick(entries)
        with contextlib.suppress(CheckpointInUse, CheckpointNotFound), self.doubts(owner):
            owner.store.dispose(entry.checkpoint)

    @contextlib.contextmanager
    def doubts(self, owner: Owner) -> Iterator[None]:
        try:
            yield
        except BaseException:
            owner.is_doubtful = True
            raise

    # Readers.

    def read(self) -> None:
        """Somebody restores from a checkpoint, and takes a while."""
        completed = [each for each in list_entries(self.disk, JOB) if each.is_completed]
        if not completed:
            return
        entry = self.schedule.pick(completed)
        reader = contextlib.ExitStack()
        reader.enter_context(hold(self.disk, entry.path))
        found = look(self.disk, JOB, entry.checkpoint, lambda path: self.disk)
        assert found is not None
        assert found[1] is not None
        self.readers.append((reader, found[1], entry.path))

    def stop_reading(self) -> None:
        self.readers.pop(self.schedule.pick(range(len(self.readers))))[0].close()

    # What must hold.

    def state(self, checkpoint: CheckpointId) -> StoredState | None:
        found = look(self.disk, JOB, checkpoint, lambda path: self.disk)
        return found[0].state if found is not None else None

    def check(self) -> None:
        counts: Counter[str] = Counter()
        completed = [CheckpointId(0)]
        for entry in list_entries(self.disk, JOB):
            assert entry.state is not StoredState.DAMAGED, entry.problem
            if entry.is_completed:
                found = look(self.disk, JOB, entry.checkpoint, lambda path: self.disk)
                assert found is not None
                assert found[1] is not None
                counts.update(self.files_are_there(entry.path, found[1]))
                if entry.kind == "checkpoint":
                    completed.append(entry.checkpoint)
        for _, metadata, path in self.readers:
            self.files_are_there(path, metadata)
        assert completed[-1] >= self.newest, "the newest one is never removed"
        self.newest = completed[-1]
        self.check_counts(counts)

    def files_are_there(self, path: str, metadata: CheckpointMetadata) -> list[str]:
        """Returns: those that it shares with others."""
        shared = []
        for query, part in metadata.queries.items():
            folder = files_folder(path, metadata, query)
            for entry in part.files:
                data = self.disk.read(join(folder, stored_name(entry)))
                assert (len(data), f"{zlib.crc32(data):08x}") == (entry.size, entry.crc32)
                if entry.tag is not None:
                    shared.append(f"{query}/{part.lineage}/{stored_name(entry)}")
        return shared

    def check_counts(self, counts: Counter[str]) -> None:
        """Of the newest driver: it never counts less than there is, and when nobody disturbs it, nothing else."""
        owner = self.current
        if owner is None or not owner.is_open:
            return
        for checkpoint, pinned in owner.pinned.items():
            if owner.pending[checkpoint] == "checkpoint":
                counts.update(f"{QUERY}/{LINEAGE}/{stored_name(entry)}" for entry in pinned.entries)
        counted = owner.store.shared.owners()
        assert all(counted.get(name, 0) >= count for name, count in counts.items())
        if owner.is_alone and not owner.is_doubtful and not self.readers:
            assert counted == dict(counts)

    def come_to_rest(self) -> None:
        """All faults and readers end; the last driver leaves what is needed, and nothing else."""
        while self.readers:
            self.readers.pop()[0].close()
        self.owners.clear()
        self.take_over()
        self.owners = self.owners[-1:]
        self.owners[0].is_alone = True
        self.owners[0].open()
        self.check()
        self.owners[0].store.retain(1)
        self.check()
        entries = [entry for entry in list_entries(self.disk, JOB) if entry.is_completed]
        retained = [entry.checkpoint for entry in entries if entry.kind == "checkpoint"]
        assert retained == ([self.newest] if self.newest else [])
        needed = {join(JOB, "shared", name) for name in self.owners[0].store.shared.owners()}
        assert {path for path in self.disk.paths() if path.startswith(f"{JOB}/shared/")} == needed


@settings(max_examples=150, deadline=None, derandomize=True)
@given(schedules(120))
def test_of_every_checkpoint_that_exists_all_is_there_and_of_others_nothing(schedule: Schedule) -> None:
    StoreModel(schedule).play()


BUGS = (
    Mutation("the newest one is removed too", CheckpointStore.retain, "[: -max(count, 1)]", "[:]"),
    Mutation("files go although others need them", SharedFiles._release, "if shared.owners:", "if False:"),
    Mutation("what was there before is not counted", SharedFiles.load, "self._own(owned, name, shared)", "pass"),
    Mutation("what a crash has left stays", SharedFiles.sweep, "not in self._known", "is None"),
    Mutation(
        "an id is claimed without the job",
        CheckpointStore.claim,
        "self._verify()\n        if record.target",
        "if record.target",
    ),
    Mutation("a checkpoint is completed without the job", CheckpointStore.complete, "self._verify()", "pass"),
    Mutation(
        "the highest number owns the job",
        Claim.verify,
        "if not self.is_current():",
        "if self.generation < max(_claimed(self._files, self._folder)):",
    ),
    Mutation("nothing is given back", CheckpointStore._remove, "self.shared.release(checkpoint)", "pass"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_noticed(bug: Mutation) -> None:
    dice = random.Random(1)
    with bug.applied():
        for _ in range(500):
            try:
                StoreModel(Schedule(dice.randbytes(120))).play()
            except (AssertionError, FileNotFoundError, KeyError):
                return
    pytest.fail("nobody has noticed")
