"""Undo a restore: a job whose program does not fit what it was restored to goes back to where it stood.

A restore leaves the lineages before it alone, so as long as nothing has been processed since, one more record that
names them again is all there is to do. It is committed like a restore: before it the restored lineages count,
afterwards the old ones. The lineages that were built for the undone restore stay next to them, like all earlier ones.

Threads: the caller's.
"""

from __future__ import annotations

import datetime
import uuid

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import are_sinks_set_back, spark_position
from coord_control.durable.job_folder.lineage_record import query_folder, read_record
from coord_control.durable.job_folder.restore_log import (
    RestoreRecord,
    commit_restore,
    newest_restore,
    next_number,
    restore_before,
)
from coord_control.durable.offline.offline_savepoint import own_job
from coord_control.errors import RestoreNotUndone
from coord_control.ids import NO_CHECKPOINT, NO_EPOCH

__all__ = ["query_that_ran", "sinks_are_back", "undo_restore"]


def undo_restore(files: Files, job_folder: str, *, force: bool = False) -> RestoreRecord:
    """Let a job resume from where it stood before its newest restore.

    Args:
        force: also when the job's driver runs where we cannot look.

    Returns:
        The restore that was undone.

    Raises:
        RestoreNotUndone: there is none, or something has been processed since; nothing was changed.
        JobRunning: the job has a driver, or may have.
    """
    job = job_folder.rstrip("/").rpartition("/")[2]
    _check(files, job_folder, job)  # nothing is claimed for what cannot be done
    with own_job(files, job_folder, force=force) as claim:
        undone = _check(files, job_folder, job)
        before = restore_before(files, job_folder, undone)
        assert undone.replaced is not None, "it was checked"
        fields = {
            "number": next_number(files, job_folder),
            "id": uuid.uuid4().hex,
            "generation": claim.generation,
            "committed_at": datetime.datetime.now(datetime.UTC),
            "queries": undone.replaced,
            # What was to begin empty before, and has not begun.
            "begun": {} if before is None else {q: n for q, n in before.begun.items() if q not in undone.replaced},
            "replaced": None,
            "key": None,
        }
        if before is None:  # no checkpoint is what the job stands at
            nothing = {"path": "", "ref": "", "is_fork": False, "allow_missing_input": False, "roll_back_sinks": False}
            fields |= {**nothing, "checkpoint": NO_CHECKPOINT, "job": job}
        claim.verify(job)
        commit_restore(files, job_folder, job, (before or undone).model_copy(update=fields))
    return undone


def query_that_ran(files: Files, job_folder: str, restore: RestoreRecord) -> str | None:
    """Return a query that may have run in the lineages of a restore, or None: they are untouched.

    Raises:
        DamagedRecord, MissingRecord, UnsupportedFormat: what is stored cannot be used.
    """
    for query, name in {**restore.queries, **restore.begun}.items():
        record = read_record(files, query_folder(job_folder, query), name)
        if record is None:
            continue  # it was to begin empty, and has not begun
        restored, position = record.restored_from, spark_position(files, record.checkpoint_location)
        if not (position == (NO_EPOCH, NO_EPOCH) if restored is None else restored.is_untouched_at(position)):
            return query
    return None


def sinks_are_back(files: Files, job_folder: str, restore: RestoreRecord) -> bool:
    """Return whether sinks were set back with a restore, in whole or in part: then it cannot be undone."""
    lineages = (join(query_folder(job_folder, query), name) for query, name in restore.queries.items())
    return any(are_sinks_set_back(files, lineage) for lineage in lineages)


def _check(files: Files, job_folder: str, job: str) -> RestoreRecord:
    newest = newest_restore(files, job_folder)
    if newest is None:
        raise RestoreNotUndone(job, "it was never restored")
    if newest.replaced is None:
        raise RestoreNotUndone(job, "its newest restore has been undone already")
    if not newest.replaced:
        raise RestoreNotUndone(job, f"it began with {newest.path}, and would begin empty")
    if (query := query_that_ran(files, job_folder, newest)) is not None:
        raise RestoreNotUndone(job, f"query {query} has processed epochs since it was restored from {newest.path}")
    if sinks_are_back(files, job_folder, newest):
        raise RestoreNotUndone(job, f"its sinks are being set back to {newest.path}, or have been")
    return newest
