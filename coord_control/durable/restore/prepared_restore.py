"""Restore: new lineages for all queries of a job from a checkpoint's files, which take place all at once.

Nothing old is touched, neither the job's lineages nor the checkpoint. The new ones get links to the checkpoint's files
(copies, where the storage has no links, or is another one): Spark replaces files and never writes into one, so a
running query does not change what the checkpoint holds. Two things are rewritten: the query id, and the descriptions of
operators that name their schemas by absolute paths.

**The query id** is chosen on purpose. A *resume* (the same job) keeps it: sinks that remember (query id, batch id)
continue their sequence, and skip those of the repeated epochs that they have seen. A *fork* (another job) gets a new
one, and runs in parallel with the original.

**Crashes.** Each lineage's record is written first and says which restore it belongs to, so whatever is found half
made is known for what it is. The restore takes place when its own record is created
(:mod:`coord_control.durable.job_folder.restore_log`); until then all old lineages count, afterwards all new ones. What
an uncommitted restore has left is removed by the next one.

Operators' states are put into the new lineage when its query starts (:mod:`.seeds`), because only then it is known
how many subtasks there are.

Threads: any, one restore of a job at a time; the claim of the job's generation sees to that.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import current_lineage
from coord_control.durable.job_folder.lineage_record import (
    RECORD_NAME,
    lineage_names,
    next_name,
    query_folder,
    read_record,
)
from coord_control.durable.job_folder.restore_log import (
    RestoreRecord,
    commit_restore,
    newest_restore,
    next_number,
    read_restore,
    standing_restores,
)
from coord_control.durable.restore.lineage_builder import LineageBuilder
from coord_control.durable.restore.shuffle_partitions import Repartition, repartition_lineages
from coord_control.errors import RestoreRefused
from coord_control.ids import LATEST, Generation, QueryName

__all__ = [
    "PreparedRestore",
    "applied_restore",
    "is_restore_of",
    "prepare_restore",
    "queries_of",
    "remove_leftovers",
    "remove_unborn",
]


@dataclass(frozen=True, slots=True)
class PreparedRestore:
    """New lineages that are not in use yet.

    Attributes:
        record: what is going to be committed.
        linked_bytes, copied_bytes: of the files; linked ones take no space.
    """

    record: RestoreRecord
    source: CheckpointSource
    linked_bytes: int
    copied_bytes: int
    job_folder: str
    _files: Files
    _verify_claim: Callable[[], None]

    def commit(self) -> None:
        """Commit the restore: from now on every query of the job resumes from the checkpoint.

        Raises:
            Fenced: a newer driver owns the job, or has; nothing has changed.
            StoreUnavailable: it may have taken place or not.
        """
        self._verify_claim()
        job = self.job_folder.rstrip("/").rpartition("/")[2]
        commit_restore(self._files, self.job_folder, job, self.record)

    def repartition(self, partitions: int, repartition: Repartition) -> None:
        """Have the states of all queries rewritten into this many partitions; only before :meth:`commit`.

        Raises:
            RestoreRefused: Spark cannot do it. Nothing is left of what was built.
        """
        metadata, lineages = self.source.metadata, self.record.queries
        try:
            repartition_lineages(
                self._files, self.job_folder, metadata, lineages, partitions, repartition, self.source.path
            )
        except RestoreRefused:
            self._verify_claim()
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was built; only before :meth:`commit`."""
        remove_leftovers(self._files, self.job_folder)


def applied_restore(files: Files, job_folder: str, ref: str, source: CheckpointSource | None) -> RestoreRecord | None:
    """Find the restore that has done what is asked for; then the job resumes, wherever it was set to since.

    Every driver of a job is started with the same ``restore_from``, so it must not compete with restores that were
    requested later. What was asked for has been done if the checkpoint was the same: its path, number and time of
    completion. It has also been done if a driver has done it and ``ref`` was the same: a label may be given to another
    checkpoint, and a driver that is restarted must not go back to that. For ``latest`` a command may have done it.

    Args:
        source: None if the checkpoint is gone, as retention may remove it after the restore.
    """
    for restore in standing_restores(files, job_folder):
        is_same = source is not None and is_restore_of(restore, source)
        is_source_gone = source is None and ref in (restore.ref, restore.path)
        if is_same or is_source_gone or (ref == restore.ref and (restore.by_program or ref == LATEST)):
            return restore
    return None


def is_restore_of(restore: RestoreRecord, source: CheckpointSource) -> bool:
    """Return whether a restore came from this checkpoint."""
    return restore.is_of(source.path, source.metadata.checkpoint, source.metadata.completed_at)


def queries_of(files: Files, job_folder: str) -> list[QueryName]:
    """Return the queries that have begun a lineage in this job."""
    names = [QueryName(name) for name in files.list(join(job_folder, "queries"))]
    return [name for name in names if current_lineage(files, query_folder(job_folder, name), name) is not None]


def prepare_restore(
    files: Files,
    job_folder: str,
    source: CheckpointSource,
    *,
    generation: Generation,
    verify_claim: Callable[[], None],
    ref: str,
    key: str | None = None,
    is_fork: bool,
    by_program: bool = False,
    allow_non_restored_state: bool = False,
    allow_missing_input: bool = False,
    roll_back_sinks: bool = False,
) -> PreparedRestore:
    """Build the lineages of a restore; they have no effect before they are committed.

    Args:
        files: the job's storage.
        job_folder: the folder of the job that is to resume from the checkpoint.
        generation: ours; it was claimed before, and is above the checkpoint's.
        verify_claim: raises when a newer driver has claimed.
        ref: how the checkpoint was asked for.
        key: the idempotency key of the request, if it has one.
        is_fork: give the queries new ids.
        by_program: for the record.
        allow_non_restored_state: let operators come and go when the queries start.
        allow_missing_input: what was allowed by the check, for the record.
        roll_back_sinks: let the driver that starts the queries set their sinks back before.

    Raises:
        DamagedRecord, MissingRecord: a file of the checkpoint is not what its manifest says.
        StoreUnavailable: the storage; repeating it works.
    """
    remove_leftovers(files, job_folder)
    newest = newest_restore(files, job_folder)
    number, restore_id = next_number(files, job_folder), uuid.uuid4().hex
    # Also those that an earlier restore has made begin empty, and that have not begun since.
    known = {*queries_of(files, job_folder), *map(QueryName, newest.begun if newest else ())}
    begun = known - set(source.metadata.queries)
    names = {
        query: next_name(lineage_names(files, query_folder(job_folder, query)))
        for query in sorted({*source.metadata.queries, *begun})
    }
    builder = LineageBuilder(
        files, job_folder, source, number, restore_id, is_fork, allow_non_restored_state, roll_back_sinks
    )
    for query in source.metadata.queries:
        verify_claim()
        builder.build(query, names[query])
    record = RestoreRecord(
        number=number,
        id=restore_id,
        path=source.path,
        checkpoint=source.metadata.checkpoint,
        job=source.metadata.job,
        completed_at=source.metadata.completed_at,
        ref=ref,
        key=key,
        generation=generation,
        committed_at=datetime.datetime.now(datetime.UTC),
        is_fork=is_fork,
        by_program=by_program,
        allow_missing_input=allow_missing_input,
        roll_back_sinks=roll_back_sinks,
        queries={query: names[query] for query in source.metadata.queries},
        begun={query: names[query] for query in sorted(begun)},
        replaced={
            query: before.name
            for query in names
            if (before := current_lineage(files, query_folder(job_folder, query), query)) is not None
        },
    )
    return PreparedRestore(
        record, source, builder.placed.linked, builder.placed.copied, job_folder, files, verify_claim
    )


def remove_leftovers(files: Files, job_folder: str) -> None:
    """Remove the lineages of restores that were never committed; only for the owner of the generation."""
    for query in files.list(join(job_folder, "queries")):
        folder = query_folder(job_folder, query)
        for name in lineage_names(files, folder):
            record = read_record(files, folder, name)
            if record is None and not files.list(join(folder, name)):
                files.delete(join(folder, name))  # the last step of a removal was missing
            if record is None or record.restored_from is None:
                continue
            committed = read_restore(files, job_folder, record.restored_from.restore)
            if committed is None or committed.id != record.restored_from.id:
                _remove_lineage(files, join(folder, name))


def remove_unborn(files: Files, job_folder: str) -> bool:
    """Remove the folder of a job that a restore was to begin and did not; only for the owner of its first claim.

    Returns:
        False: there is more than the restore has made, and nothing was removed.
    """
    made = {"generations", "live", "queries"}
    if set(files.list(job_folder)) - made or queries_of(files, job_folder):
        return False
    files.delete(job_folder)
    return True


def _remove_lineage(files: Files, lineage: str) -> None:
    # Its record goes last: files of Spark in a folder without one could be taken for a lineage that has just begun.
    for name in files.list(lineage):
        if name != RECORD_NAME:
            files.delete(join(lineage, name))
    files.delete(join(lineage, RECORD_NAME))
    files.delete(lineage)
