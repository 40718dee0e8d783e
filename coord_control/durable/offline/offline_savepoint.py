"""Take a savepoint of a job that does not run, or of a Spark checkpoint directory that no job owns, without Spark.

Everything that a savepoint needs is on the storage: Spark's logs say the last commit of each query, and the epoch that
was planned and not committed; the epoch store what its operators recover from there. So a dead job is saved exactly as
it would have recovered, on any machine that can read its storage.

The job's generation is claimed first, as by a driver, so no other process changes anything meanwhile. A driver that is
known to be alive is left alone; one that cannot be looked at is fenced off only if that is asked for.

Threads: the caller's.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import CLAIM_NAME, QUERIES_NAME, CheckpointClaim, Storage
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.metadata_file import (
    METADATA_NAME,
    SINK_LOG,
    CheckpointMetadata,
    FileEntry,
    OperatorSnapshot,
    QuerySnapshot,
    SinkSnapshot,
    Trigger,
    encode_metadata,
)
from coord_control.durable.checkpoints.pins import LiveFiles, Pinned, pin_savepoint
from coord_control.durable.checkpoints.query_snapshot import with_sink
from coord_control.durable.checkpoints.removal import remove_savepoint
from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.generations import Claim, ClaimRecord
from coord_control.durable.job_folder.holder import Aliveness, Holder, may_live
from coord_control.durable.job_folder.lineage import Lineage, read_query_id, recorded_lineage, spark_position
from coord_control.durable.job_folder.lineage_record import LineageOperator, LineageRecord, query_folder
from coord_control.durable.job_folder.sink_record import SinkRecord, newest_sink
from coord_control.durable.restore.live_log import stored_live_values
from coord_control.durable.restore.prepared_restore import queries_of
from coord_control.durable.restore.seeds import read_seed
from coord_control.durable.spark_layout.file_sink_log import FILE_SINK, LOG_NAME
from coord_control.errors import (
    AlreadyExists,
    InvalidName,
    JobRunning,
    LabelTaken,
    MissingRecord,
    NothingToSave,
    SavepointTargetTaken,
    StoreError,
)
from coord_control.ids import (
    NO_CHECKPOINT,
    CheckpointId,
    Epoch,
    Generation,
    OperatorUid,
    QueryName,
    is_valid_label,
)
from coord_control.protocol.cut import cut_of
from coord_control.protocol.job import first_barrier
from coord_control.protocol.live_epochs import Values, frozen_in
from coord_control.protocol.recovery import Facts, recover, recovery_marker

__all__ = ["OfflineSavepoint", "adopt", "installed_spark", "own_job", "save"]

_NOT_ASKED: Final = "the query did not run, and only its driver can ask the table"
#: Nothing is dropped from the records: the job's next driver may still need an older commit.
_KEEP_ALL: Final = 1 << 31
#: What was adopted has no place in a job's list.
_UNNUMBERED: Final = CheckpointId(0)
_NO_OWNER: Final = Generation(0)


@dataclass(frozen=True, slots=True)
class OfflineSavepoint:
    """What was made.

    Attributes:
        path: its folder.
    """

    path: str
    metadata: CheckpointMetadata
    linked_bytes: int
    copied_bytes: int

    @property
    def replayed(self) -> Mapping[QueryName, Epoch]:
        """Epochs that Spark had planned and not committed, by query: a restore runs them again as they were."""
        queries = self.metadata.queries.items()
        return {query: snapshot.planned for query, snapshot in queries if snapshot.planned > snapshot.epoch}


def installed_spark() -> str | None:
    """Return the version of the Spark in this environment, or None if it has none."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


@contextlib.contextmanager
def own_job(
    files: Files,
    job_folder: str,
    *,
    force: bool = False,
    above: Generation = generations.NO_GENERATION,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Claim]:
    """Own a job that has no driver, as a driver would.

    Args:
        force: also when its driver runs where we cannot look; it is fenced off, and stops itself when it notices.
        above: claim a generation above this.

    Raises:
        JobRunning: its driver is alive, or may be and ``force`` was not given; it is not fenced.
        DamagedRecord, UnsupportedFormat: the newest claim cannot be read.
    """
    job = job_folder.rstrip("/").rpartition("/")[2]
    folder = join(job_folder, "generations")
    is_unseen = False

    def leave_alone(record: ClaimRecord, is_released: bool) -> None:
        nonlocal is_unseen
        aliveness = may_live(record.holder, is_released=is_released)
        if aliveness is Aliveness.ALIVE or (aliveness is Aliveness.UNKNOWN and not force):
            raise JobRunning(job, record.generation, record.holder.host, is_known=aliveness is Aliveness.ALIVE)
        is_unseen = is_unseen or aliveness is Aliveness.UNKNOWN

    claim = generations.claim(files, folder, Holder.of([os.getpid()]), above=above, look_at=leave_alone)
    try:
        if is_unseen:
            sleep(generations.UNSEEN_SECONDS)
        yield claim
    finally:
        claim.release()


def save(
    files: Files,
    job_folder: str,
    *,
    target: str | None = None,
    label: str | None = None,
    storage: Storage | None = None,
    requested_by: str | None = None,
    force: bool = False,
) -> OfflineSavepoint:
    """Take a savepoint of a job that does not run, with the state that each query would recover from.

    Args:
        target: the savepoint's folder; None for one below the job's.
        storage: returns the storage of a path; None if everything is on ``files``.
        requested_by: the user, for the record.
        force: as for :func:`own_job`.

    Raises:
        NothingToSave: the job has no query.
        InvalidName, LabelTaken: ``label`` cannot be used; nothing was changed.
        JobRunning: the job has a driver, or may have.
        StateFileMissing, MissingRecord, DamagedRecord: a query cannot be restarted from what is there.
        SavepointTargetTaken: the target is not an empty folder.
        Fenced: a driver of the job was started meanwhile.
        StoreUnavailable: the storage; nothing is left of the savepoint, or the next driver removes it.
    """
    if not queries_of(files, job_folder):
        raise NothingToSave(job_folder, "no query of that job has ever been started")
    _check_label(label)
    with own_job(files, job_folder, force=force) as claim:
        job = job_folder.rstrip("/").rpartition("/")[2]
        store = CheckpointStore(files, job_folder, claim.generation, lambda: claim.verify(job), storage=storage)
        checkpoint = CheckpointId(store.newest_id() + 1)  # removes what earlier drivers have not completed
        if label is not None and label in Catalog(files, job_folder, storage).labels():
            raise LabelTaken(label)
        store.claim(checkpoint, "savepoint", target=target, label=label)
        try:
            trigger = _trigger("offline", requested_by)
            return _Saver(files, job_folder, claim.generation, store, checkpoint).save(label, trigger)
        except Exception:
            with contextlib.suppress(StoreError):  # the error that led here is the one to report
                store.discard(checkpoint)
            raise


def adopt(
    files: Files,
    spark_checkpoint: str,
    target: str,
    target_files: Files,
    *,
    job: str,
    query: QueryName,
    label: str | None = None,
    requested_by: str | None = None,
) -> OfflineSavepoint:
    """Take a savepoint of a Spark checkpoint directory that no job of ours owns; its query should not run.

    It can be restored as a query of a job (:mod:`coord_control.durable.restore.prepared_restore`), or given back to
    plain Spark (:mod:`coord_control.durable.restore.export`).

    Args:
        files: the storage of the directory.
        job, query: by which names a job that restores it knows the query.
        requested_by: the user, for the record.

    Raises:
        InvalidName: ``label`` cannot be used.
        NothingToSave: it is not a Spark checkpoint directory, or nothing was ever planned in it.
        StateFileMissing, MissingRecord, DamagedRecord: Spark could not restart from what is there.
        SavepointTargetTaken: the target is not an empty folder.
    """
    _check_label(label)
    trigger = _trigger("adopted", requested_by, {"from": spark_checkpoint})
    try:
        query_id = read_query_id(files, spark_checkpoint)
    except FileNotFoundError:
        raise NothingToSave(spark_checkpoint, "it holds no file `metadata` with the id of a query") from None
    committed, planned = spark_position(files, spark_checkpoint)
    if planned < 0:
        raise NothingToSave(spark_checkpoint, "its query has never begun an epoch")
    claim = CheckpointClaim(checkpoint=_UNNUMBERED, kind="savepoint", label=label, generation=_NO_OWNER, target=target)
    if target_files.list(target):
        raise SavepointTargetTaken(target, "there is something in it")
    try:
        target_files.create(join(target, CLAIM_NAME), claim.model_dump_json(indent=2).encode())
    except AlreadyExists:
        raise SavepointTargetTaken(target, "another savepoint is being written to it") from None
    try:
        pinned = _pin_adopted(
            files, spark_checkpoint, committed, planned, target_files, join(target, QUERIES_NAME, query, "spark")
        )
        metadata = CheckpointMetadata(
            checkpoint=_UNNUMBERED,
            kind="savepoint",
            job=job,
            label=label,
            generation=_NO_OWNER,
            barrier=NO_CHECKPOINT,
            trigger=trigger,
            triggered_at=trigger.requested_at,
            completed_at=datetime.datetime.now(datetime.UTC),
            queries={query: pinned.snapshot(query_id=query_id, spark_version=installed_spark() or "", earlier=None)},
        )
        target_files.create(join(target, METADATA_NAME), encode_metadata(metadata))
    except Exception:
        with contextlib.suppress(StoreError):
            remove_savepoint(target_files, target, claim)
        raise
    return OfflineSavepoint(target, metadata, pinned.linked_bytes, pinned.copied_bytes)


def _trigger(cause: str, requested_by: str | None, details: Mapping[str, str] | None = None) -> Trigger:
    by = {} if requested_by is None else {"requested_by": requested_by}
    return Trigger(cause=cause, requested_at=datetime.datetime.now(datetime.UTC), details={**(details or {}), **by})


def _check_label(label: str | None) -> None:
    if label is not None and not is_valid_label(label):
        raise InvalidName("label", label)


def _pin_adopted(
    files: Files, spark_checkpoint: str, epoch: Epoch, planned: Epoch, target_files: Files, target: str
) -> Pinned:
    live = LiveFiles.of(files, spark_checkpoint, epoch, "adopted", planned)
    return pin_savepoint(live, target_files, target, [None] * len(live.infos))


class _Saver:
    """Collects the parts of one savepoint."""

    def __init__(
        self, files: Files, job_folder: str, generation: Generation, store: CheckpointStore, checkpoint: CheckpointId
    ) -> None:
        self._files = files
        self._job_folder = job_folder
        self._generation = generation
        self._store = store
        self._checkpoint = checkpoint
        self._queries: dict[QueryName, QuerySnapshot] = {}
        self._operators: dict[OperatorUid, OperatorSnapshot] = {}
        self._linked = 0
        self._copied = 0

    def save(self, label: str | None, trigger: Trigger) -> OfflineSavepoint:
        job = self._job_folder.rstrip("/").rpartition("/")[2]
        for query in queries_of(self._files, self._job_folder):
            found = recorded_lineage(self._files, query_folder(self._job_folder, query), query)
            assert found is not None, "it was just listed"
            self._add(*found)
        metadata = CheckpointMetadata(
            checkpoint=self._checkpoint,
            kind="savepoint",
            job=job,
            label=label,
            generation=self._generation,
            barrier=first_barrier(self._generation),
            trigger=trigger,
            triggered_at=trigger.requested_at,
            completed_at=datetime.datetime.now(datetime.UTC),
            queries=self._queries,
            operators=self._operators,
            live=stored_live_values(self._files, self._job_folder, self._generation),
        )
        path = self._store.complete(metadata).path
        return OfflineSavepoint(path, metadata, self._linked, self._copied)

    def _add(self, lineage: Lineage, record: LineageRecord) -> None:
        committed, planned = spark_position(self._files, lineage.checkpoint)
        pinned = self._store.pin(self._checkpoint, lineage.query, lineage.name, lineage.checkpoint, committed, planned)
        snapshot = pinned.snapshot(
            query_id=lineage.query_id, spark_version=installed_spark() or "", earlier=lineage.earlier
        )
        self._queries[lineage.query] = with_sink(snapshot, *self._sink(lineage, committed, planned))
        self._linked += pinned.linked_bytes
        self._copied += pinned.copied_bytes
        if lineage.restored is not None:
            # Nothing has run since the restore; what it has brought is still all there is.
            seed = read_seed(self._files, lineage.folder)
            self._operators.update(seed.operators)
            self._keep_live(lineage.query, seed.queries[lineage.query].planned_live)
        elif record.operators or self._files.list(lineage.epochs):
            self._add_records(lineage, record.operators, committed, planned)

    def _keep_live(self, query: QueryName, live: Values | None) -> None:
        kept = None if live is None else dict(live)
        self._queries[query] = self._queries[query].model_copy(update={"planned_live": kept})

    def _sink(self, lineage: Lineage, committed: Epoch, planned: Epoch) -> tuple[SinkSnapshot, tuple[FileEntry, ...]]:
        # Only a driver can ask a table for its version, and only Spark may reach the storage of a sink.
        kind, place = "unknown", None
        try:
            sink = newest_sink(self._files, self._job_folder, lineage.query)
            if lineage.restored is not None:
                # The query still stands where it was restored to, so what was recorded there holds. The sink itself may
                # hold something else: it was not set back, not yet, or only in part.
                then = read_seed(self._files, lineage.folder).queries[lineage.query]
                if then.sink is not None and (sink is None or _is_same(sink, then.sink)):
                    kind, place = then.sink.kind, then.sink.place
                    return then.sink, self._log_as_restored(lineage, then, committed, planned)
            if sink is None:
                return SinkSnapshot(kind=kind, unknown="the query has not run since sinks are recorded"), ()
            kind, place = sink.kind, sink.place
            if kind == FILE_SINK and place is not None:
                newest, files = self._store.pin_sink_log(
                    self._checkpoint, lineage.query, lineage.name, join(place, LOG_NAME), committed, planned
                )
                return SinkSnapshot(kind=kind, place=place, position=str(newest)), files
        except Exception as error:
            return SinkSnapshot(kind=kind, place=place, unknown=str(error)), ()
        return SinkSnapshot(kind=kind, place=place, unknown=_NOT_ASKED if place is not None else ""), ()

    def _log_as_restored(
        self, lineage: Lineage, then: QuerySnapshot, committed: Epoch, planned: Epoch
    ) -> tuple[FileEntry, ...]:
        """Pin the log of a file sink as it was in the checkpoint from which the query was restored.

        Raises:
            MissingRecord: the sink holds other epochs, and the restore has not kept the log.
        """
        if not then.sink_files:
            return ()
        assert then.sink is not None, "it has files"
        kept = join(lineage.folder, SINK_LOG)
        log = kept if self._files.exists(kept) else join(then.sink.place or "", LOG_NAME)
        _, found = self._store.pin_sink_log(self._checkpoint, lineage.query, lineage.name, log, committed, planned)
        if {_content(entry) for entry in found} != {_content(entry) for entry in then.sink_files}:
            raise MissingRecord(log, "it does not hold the epochs of the checkpoint from which the query was restored")
        return found

    def _add_records(
        self, lineage: Lineage, operators: Mapping[str, LineageOperator], committed: Epoch, planned: Epoch
    ) -> None:
        store = EpochStore(self._files, lineage.epochs, self._generation, _KEEP_ALL)
        records = tuple(store.open())
        store.check_reaches(committed)
        facts = Facts(records, committed, planned)
        if (marker := recovery_marker(facts, self._generation)) is not None:
            facts = Facts((*records, marker), committed, planned)
        self._keep_live(lineage.query, frozen_in(facts))
        for uid, record in operators.items():
            operator = OperatorUid(uid)
            cut = cut_of(recover(facts, operator), operator)
            self._operators[operator] = OperatorSnapshot.of(lineage.query, record, cut)


def _is_same(sink: SinkRecord, recorded: SinkSnapshot) -> bool:
    return (sink.kind, sink.place) == (recorded.kind, recorded.place)


def _content(entry: FileEntry) -> tuple[str, int, str]:
    return entry.path, entry.size, entry.crc32
