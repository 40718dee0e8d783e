"""The checkpoints of a job on its storage, for the driver that owns it: made, retained, removed.

**Making one.** ``claim`` takes the id, ``pin`` the files of each query, ``complete`` writes ``_metadata``: from then on
it exists. Until then ``discard`` removes it; what a crash leaves is found by the next driver.

**Removing one.** In this order, each step repeatable: ``_metadata``, then files that no checkpoint names any more, then
the folder with the claim, by which it is found again until everything is gone (FLINK-39439: a list entry that goes
before the files leaves orphans). Nothing is removed that is being made, is being read (:mod:`.holds`), or is the newest
completed checkpoint (FLINK-40384, FLINK-38033). The folder of the highest id stays, so that no id is used twice.

**Taking over.** The first call looks through what earlier drivers have left (:mod:`.leftovers`).

**Fenced drivers.** One that has not noticed may still work. Its claim of an id comes too late, because it verifies that
it owns the job after it has written it; its unfinished checkpoints were made void, its ``complete`` fails on that; and
files that it removes are not ours (:mod:`.shared_files`).

Threads: any. Queries may be pinned side by side, and several checkpoints be made at once; calls for one checkpoint come
in order.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from coord_control import collector
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import (
    CLAIM_NAME,
    COMPLETED_NAME,
    QUERIES_NAME,
    CheckpointClaim,
    Storage,
    StoredState,
    checkpoint_folder,
    encode_claim,
    look,
    read_claim,
    shared_folder,
    shared_names,
)
from coord_control.durable.checkpoints.holds import active_hold
from coord_control.durable.checkpoints.leftovers import Found, take_over
from coord_control.durable.checkpoints.metadata_file import (
    METADATA_NAME,
    SINK_LOG,
    CheckpointMetadata,
    FileEntry,
    Kind,
    encode_metadata,
)
from coord_control.durable.checkpoints.pins import MANY_FILES, Contents, LiveFiles, Pinned, pin_savepoint, pin_shared
from coord_control.durable.checkpoints.removal import NEWEST, dispose_of_savepoint, refuse_if_held, remove_claim
from coord_control.durable.checkpoints.shared_files import SharedFiles
from coord_control.durable.files.filesystem import Checksum, Files, join
from coord_control.errors import (
    AlreadyExists,
    CheckpointInUse,
    CheckpointNotFound,
    Fenced,
    SavepointTargetTaken,
    StoreError,
    StoreUnavailable,
)
from coord_control.ids import CheckpointId, Epoch, Generation, QueryName
from coord_control.protocol.scheduler.tickets import CheckpointRequest

__all__ = ["CheckpointStore", "Written"]

#: Of a query's files the driver keeps so much in memory, or nothing.
_MAX_READ_BYTES: Final = 16 << 20


class Written(NamedTuple):
    """A checkpoint that exists.

    Attributes:
        path: its folder.
        metadata_bytes: the size of its ``_metadata``.
    """

    path: str
    metadata_bytes: int


class _Pending(NamedTuple):
    claim: CheckpointClaim
    targets: set[str]  #: the folders of a savepoint into which queries were pinned


class CheckpointStore:
    """The checkpoints of one job, for one generation.

    Args:
        files: the job's storage.
        folder: the job's folder.
        generation: this driver's, claimed.
        verify: raises Fenced when this driver does not own the job any more.
        storage: returns the storage of a savepoint's target, or of an adopted Spark directory; None if all are on
            ``files``.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        generation: Generation,
        verify: Callable[[], None],
        *,
        storage: Storage | None = None,
    ) -> None:
        self._files = files
        self._folder = folder
        #: Finds the stored checkpoints.
        self.catalog = Catalog(files, folder, storage)
        self._job = folder.rstrip("/").rpartition("/")[2]
        self._generation = generation
        self._verify = verify
        self._storage = storage or (lambda path: files)
        self.shared = self._no_shared_files()
        self._lock = threading.RLock()
        self._found: Found | None = None  #: of earlier drivers; None before the first look
        self._highest = CheckpointId(0)
        self._pending: dict[CheckpointId, _Pending] = {}  #: being made
        self._read: dict[str, Contents] = {}  #: for the newest checkpoint of each lineage, by query and lineage
        self._retained: set[CheckpointId] = set()  #: completed checkpoints
        self._condemned: dict[CheckpointId, CheckpointClaim] = {}  #: their removal has begun, and has to be repeated
        self._emptied: dict[CheckpointId, CheckpointClaim] = {}  #: only a claim is left, which keeps the highest id

    # Taking over.

    def open(self) -> Found:
        """Take over from earlier drivers; every other call does it first. Repeatable after an error.

        Raises:
            Fenced: a newer driver has claimed the job.
            StoreUnavailable: the storage.
        """
        with self._lock:
            if self._found is None:
                self._verify()
                self.shared = self._no_shared_files()
                found = take_over(self._files, self._folder, self._generation, self._storage, self.shared)
                self._highest = found.highest
                self._retained = set(found.retained)
                self._emptied = dict(found.emptied)
                self._found = found
            return self._found

    def verify(self) -> None:
        """Check that the job still belongs to this driver.

        Raises:
            Fenced: another driver has claimed it.
            StoreUnavailable: the storage.
        """
        self._verify()

    def newest_id(self) -> CheckpointId:
        """Return the highest id that was ever claimed, or 0."""
        self.open()
        return self._highest

    def completed_requests(self) -> list[tuple[CheckpointRequest, CheckpointId, str]]:
        """Return what earlier drivers were asked for and have completed, with id and folder, oldest first."""
        return list(self.open().completed)

    # Making one.

    def claim(
        self, checkpoint: CheckpointId, kind: Kind, *, target: str | None = None, label: str | None = None
    ) -> None:
        """Take an id, and the folder of a savepoint.

        Args:
            target: the folder of a savepoint; None for one below the job's folder.

        Raises:
            Fenced: a newer driver has claimed the job.
            AlreadyExists: the id is taken.
            SavepointTargetTaken: the target is not an empty folder.
            StoreUnavailable: the storage.
        """
        self.open()
        record = CheckpointClaim(
            checkpoint=checkpoint,
            kind=kind,
            label=label,
            generation=self._generation,
            target=(target or self._default_target(checkpoint, label)).rstrip("/") if kind == "savepoint" else None,
            requested_target=target,
        )
        try:
            self._files.create(join(self._home(checkpoint), CLAIM_NAME), encode_claim(record))
        except AlreadyExists:
            self._verify()
            raise
        with self._lock:
            self._pending[checkpoint] = _Pending(record, set())
            self._highest = max(self._highest, checkpoint)
        try:
            # Only now: a driver that claims the job after this check finds our claim.
            self._verify()
            if record.target is not None:
                self._claim_target(record.target, record)
        except Exception:
            with contextlib.suppress(StoreError):
                self.discard(checkpoint)
            raise
        self._remove_emptied()

    def pin(
        self,
        checkpoint: CheckpointId,
        query: QueryName,
        lineage: str,
        spark: str,
        boundary: Epoch,
        planned: Epoch | None = None,
    ) -> Pinned:
        """Make the files of a query part of a claimed checkpoint.

        Args:
            lineage: the name of the folder of its lineage.
            spark: its Spark checkpoint directory.
            boundary: the last epoch in it, committed; -1: none yet.
            planned: Spark's last planned epoch, of a query that does not run: it becomes part of the checkpoint too.

        Raises:
            StateFileMissing: Spark has removed a file before it could be pinned; pin at a newer epoch.
            DamagedRecord: a file of Spark that says which others are needed cannot be understood.
            StoreUnavailable: the storage.
        """
        source, prefix = self._storage(spark), f"{query}/{lineage}"
        live = LiveFiles.of(source, spark, boundary, lineage, planned, self._read.get(prefix))
        with collector.paused(len(live.infos) > MANY_FILES):
            pinned = self._pin(checkpoint, query, live)
        is_small = sum(map(len, live.contents.values())) <= _MAX_READ_BYTES
        self._read[prefix] = live.contents if is_small else {}
        return pinned

    def pin_sink_log(
        self,
        checkpoint: CheckpointId,
        query: QueryName,
        lineage: str,
        log: str,
        boundary: Epoch,
        planned: Epoch | None = None,
    ) -> tuple[Epoch, tuple[FileEntry, ...]]:
        """Make the log of a query's file sink part of a claimed checkpoint, after the query's files.

        Args:
            log: the folder of the log, or of a copy of it.
            boundary, planned: as for :meth:`pin`.

        Returns:
            The newest entry of the log in the checkpoint, -1 if no epoch is committed; and the files.

        Raises:
            MissingRecord: the log ends before the boundary, or is not to be seen from here.
            StateFileMissing: Spark has removed a file of it.
            StoreUnavailable: the storage.
        """
        live = LiveFiles.of_sink_log(self._storage(log), log, boundary, lineage, planned)
        pinned = self._pin(checkpoint, query, live, SINK_LOG)
        entries = tuple(msgspec.structs.replace(each, path=f"{SINK_LOG}/{each.path}") for each in pinned.entries)
        return live.layout.epoch, entries

    def complete(self, metadata: CheckpointMetadata) -> Written:
        """Write the metadata of a claimed checkpoint: from then on it exists.

        Raises:
            Fenced: a newer driver has claimed the job, or has aborted the checkpoint.
            StoreUnavailable: it does not exist, or that is unknown; discard it.
        """
        self._verify()
        checkpoint = metadata.checkpoint
        record = self._pending[checkpoint].claim
        home = record.target or self._home(checkpoint)
        content = encode_metadata(metadata)
        self._create(self._storage(home), join(home, METADATA_NAME), content)
        if record.target is not None:
            try:
                self._create(self._files, join(self._home(checkpoint), COMPLETED_NAME), encode_claim(record))
            except Fenced:
                self._storage(home).delete(join(home, METADATA_NAME))
                raise
        # A newer driver that has removed the folder altogether has left nothing that would have stopped us.
        if not self._files.exists(join(self._home(checkpoint), CLAIM_NAME)):
            raise Fenced(self._job, self._generation)
        with self._lock:
            del self._pending[checkpoint]
            if record.kind == "checkpoint":
                self._retained.add(checkpoint)
                self.shared.keep(checkpoint, shared_names(metadata))
        return Written(home, len(content))

    def discard(self, checkpoint: CheckpointId) -> None:
        """Remove a claimed checkpoint that was not completed.

        Raises:
            StoreUnavailable: something may be left; the next removal tries again, or the next driver.
        """
        with self._lock:
            pending = self._pending.pop(checkpoint, None)
        if pending is not None:
            self._condemn(checkpoint, pending.claim)

    # Removing.

    def retain(self, count: int) -> list[CheckpointId]:
        """Remove all completed checkpoints but the newest ones, and those that are being read, from the job's storage.

        Args:
            count: how many stay; one at least always does.

        Returns:
            Those that do not exist any more.

        Raises:
            StoreUnavailable: some are left; the next call continues.
        """
        self.open()
        self._finish_removals(is_elsewhere=False)
        self.shared.remove_unneeded()
        removed: list[CheckpointId] = []
        if len(self._retained) <= max(count, 1):
            return removed
        for checkpoint in self._existing()[: -max(count, 1)]:
            if active_hold(self._files, self._home(checkpoint)) is None:
                with contextlib.suppress(CheckpointInUse):  # since just now: the rest is removed when it is read
                    self._condemn(checkpoint, self._claim_of_checkpoint(checkpoint))
                removed.append(checkpoint)
        return removed

    @property
    def has_rest_elsewhere(self) -> bool:
        """Whether :meth:`retain_elsewhere` has something to do."""
        return any(record.requested_target is not None for record in list(self._condemned.values()))

    def retain_elsewhere(self) -> None:
        """Like :meth:`retain`, for savepoints that failed and were written outside the job's folder."""
        self._finish_removals(is_elsewhere=True)

    def dispose(self, checkpoint: CheckpointId) -> None:
        """Remove a checkpoint that is no longer wanted. Repeatable.

        Raises:
            Fenced: a newer driver has claimed the job.
            CheckpointNotFound: there is none of that id.
            CheckpointInUse: it is being made, or read, or is the newest completed checkpoint.
            StoreUnavailable: something may be left; repeat it, or the next driver does.
        """
        self.open()
        self._verify()  # a newer driver's checkpoints are not ours to remove
        if checkpoint in self._pending:
            raise CheckpointInUse(self._home(checkpoint), "it is being made; abort it instead")
        record = self._condemned.get(checkpoint)
        if record is None:
            record = self._disposable(checkpoint)
        self._condemn(checkpoint, record)

    # Inside: making one.

    def _pin(self, checkpoint: CheckpointId, query: QueryName, live: LiveFiles, *below: str) -> Pinned:
        record, targets = self._pending[checkpoint]
        prefix = join(f"{query}/{live.lineage}", *below)
        if record.target is None:
            return pin_shared(live, self.shared, checkpoint, prefix)
        target = join(record.target, QUERIES_NAME, query, "spark", *below)
        storage = self._storage(target)
        if record.requested_target is not None:
            # A newer driver may have removed the folder, and claimed it for another savepoint.
            self._verify_target(record, record.target)
        if target in targets:  # pinned at an earlier epoch
            storage.delete(target)
        targets.add(target)
        pinned = pin_savepoint(live, storage, target, self.shared.checksums(prefix, live.infos))
        self.shared.remember(prefix, live.infos, [Checksum(one.size, one.crc32) for one in pinned.entries])
        try:
            self._verify_target(record, record.target)
        except Fenced:
            storage.delete(target)  # the driver that removed the folder has not seen these
            raise
        return pinned

    def _default_target(self, checkpoint: CheckpointId, label: str | None) -> str:
        return join(self._folder, "savepoints", f"{checkpoint}-{label}" if label else str(checkpoint))

    def _claim_target(self, target: str, record: CheckpointClaim) -> None:
        for own in ("checkpoints", "shared", "queries", "generations"):
            if f"{target}/".startswith(join(self._folder, own) + "/"):
                raise SavepointTargetTaken(target, f"it lies among the job's own {own}")
        storage = self._storage(target)
        # Below the job's own folder each savepoint has another number: there the claim is enough.
        if record.requested_target is not None and storage.list(target):
            raise SavepointTargetTaken(target, "there is something in it")
        try:
            storage.create(join(target, CLAIM_NAME), encode_claim(record))
        except AlreadyExists:
            raise SavepointTargetTaken(target, "another savepoint is being written to it") from None

    def _verify_target(self, record: CheckpointClaim, target: str) -> None:
        found = read_claim(self._storage(target), target)
        if found is None or found.token != record.token:
            raise Fenced(self._job, self._generation)

    def _create(self, files: Files, path: str, data: bytes) -> None:
        try:
            files.create(path, data)
        except AlreadyExists:
            # A newer driver has made it void.
            raise Fenced(self._job, self._generation) from None
        except StoreUnavailable:
            # It may have been written all the same.
            with contextlib.suppress(FileNotFoundError):
                if files.read(path) == data:
                    return
            raise

    # Inside: removing.

    def _existing(self) -> list[CheckpointId]:
        """Return the completed checkpoints, oldest first; the newest was seen on the storage just now."""
        while True:
            with self._lock:
                existing = sorted(self._retained)
            if not existing or self._files.exists(join(self._home(existing[-1]), METADATA_NAME)):
                return existing
            self._retained.discard(existing[-1])  # removed by another process

    def _condemn(self, checkpoint: CheckpointId, record: CheckpointClaim) -> None:
        with self._lock:
            self._condemned[checkpoint] = record
            self._retained.discard(checkpoint)
        self._remove(checkpoint, record)
        with self._lock:
            self._condemned.pop(checkpoint, None)

    def _finish_removals(self, *, is_elsewhere: bool) -> None:
        for checkpoint, record in list(self._condemned.items()):
            if (record.requested_target is not None) is is_elsewhere:
                with contextlib.suppress(CheckpointInUse):
                    self._condemn(checkpoint, record)

    def _remove(self, checkpoint: CheckpointId, record: CheckpointClaim) -> None:
        """Remove a checkpoint or savepoint. Every step may be repeated.

        Raises:
            CheckpointInUse: it no longer exists, but its files are still being read.
        """
        if record.target is None:
            home = self._home(checkpoint)
            self._files.delete(join(home, METADATA_NAME))
            refuse_if_held(self._storage, home)
            self.shared.release(checkpoint)
            self.shared.remove_unneeded()
        else:
            dispose_of_savepoint(self._files, self._folder, record, self._storage)
        self._remove_claim(checkpoint, record)

    def _remove_claim(self, checkpoint: CheckpointId, record: CheckpointClaim) -> None:
        with self._lock:
            if not remove_claim(self._files, self._folder, checkpoint, record.kind, self._highest):
                self._emptied[checkpoint] = record

    def _remove_emptied(self) -> None:
        with self._lock:
            emptied = {checkpoint: one for checkpoint, one in self._emptied.items() if checkpoint < self._highest}
            for checkpoint, record in emptied.items():
                with contextlib.suppress(StoreError):  # the next one tries again, or the next driver
                    self._remove_claim(checkpoint, record)
                    del self._emptied[checkpoint]

    def _disposable(self, checkpoint: CheckpointId) -> CheckpointClaim:
        found = look(self._files, self._folder, checkpoint, self._storage)
        if found is None or found[0].state is StoredState.VOID:
            raise CheckpointNotFound(str(checkpoint), "there is none of that number")
        entry = found[0]
        if entry.is_completed and self._existing()[-1:] == [checkpoint]:
            raise CheckpointInUse(entry.path, NEWEST)
        refuse_if_held(self._storage, entry.path)
        return entry.claim or self._claim_of_checkpoint(checkpoint)

    def _claim_of_checkpoint(self, checkpoint: CheckpointId) -> CheckpointClaim:
        return CheckpointClaim(checkpoint=checkpoint, kind="checkpoint", generation=self._generation)

    def _no_shared_files(self) -> SharedFiles:
        return SharedFiles(self._files, shared_folder(self._folder), self._generation)

    def _home(self, checkpoint: CheckpointId) -> str:
        return checkpoint_folder(self._folder, checkpoint)
