"""A restore of a job that does not run: ``coordctl restore``, without the job's program.

The same steps as those of a driver (:mod:`coord_control.durable.restore.prepared_restore`): check, claim the
generation, build, commit. One thing takes Spark, between the last two: rewriting states into another number of
partitions (:mod:`coord_control.durable.restore.shuffle_partitions`). What only the program knows (operators,
parallelism) is compared when it starts: until the first epoch is planned the restored lineage is open for that.

Threads: the caller's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import Storage
from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource, open_checkpoint
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.generations import NO_GENERATION, Claim
from coord_control.durable.job_folder.restore_log import RestoreRecord
from coord_control.durable.offline.offline_savepoint import installed_spark, own_job
from coord_control.durable.restore.checks import Check, refuse
from coord_control.durable.restore.prepared_restore import prepare_restore, remove_unborn
from coord_control.durable.restore.request import RestoreRequest, check_request, check_what_moves
from coord_control.durable.restore.shuffle_partitions import Repartition, check_repartition
from coord_control.errors import ForkNameTaken, InvalidName, RestoreRefused
from coord_control.ids import Generation, is_valid_name

__all__ = ["OfflineRestore", "check_fork_name", "check_restore", "restore_job"]


@dataclass(frozen=True, slots=True)
class OfflineRestore:
    """A restore that has taken place.

    Attributes:
        job: the job that resumes from the checkpoint: the new one after a fork.
    """

    job: str
    record: RestoreRecord
    checks: tuple[Check, ...]
    linked_bytes: int
    copied_bytes: int


def check_fork_name(job: str, fork: str | None) -> None:
    """Refuse a fork that has the name of its original: a fork must not reset the job itself.

    Raises:
        ForkNameTaken: it has.
    """
    if fork == job:
        raise ForkNameTaken(job)


def check_restore(
    files: Files,
    storage: Storage,
    request: RestoreRequest,
    *,
    root: str,
    job: str,
    shuffle_partitions: int | None = None,
) -> tuple[str, list[Check]]:
    """Make the checks alone; nothing is written but a hold on the checkpoint.

    Args:
        job: the job that took the checkpoint, if the request names it by an id, a label or ``latest``; and the job that
            is restored, unless the request is a fork.
        shuffle_partitions: rewrite the states of Spark's operators into this many partitions; None to leave them.

    Returns:
        The checkpoint's folder, and what was found.

    Raises:
        InvalidName, ForkNameTaken: no job can have this name.
        CheckpointNotFound: no checkpoint is meant, or several.
        MissingRecord, DamagedRecord, UnsupportedFormat: it cannot be used.
    """
    folder, path = _folders(files, storage, request, root, job)
    with open_checkpoint(storage(path), path, "it is being checked") as source:
        return path, _checks(files, storage, source, request, folder, shuffle_partitions)


def restore_job(
    files: Files,
    storage: Storage,
    request: RestoreRequest,
    *,
    root: str,
    job: str,
    key: str | None = None,
    shuffle_partitions: int | None = None,
    repartition: Repartition | None = None,
    above: Generation = NO_GENERATION,
) -> OfflineRestore:
    """Restore a stopped job. Start its driver afterwards.

    Args:
        job, shuffle_partitions: see :func:`check_restore`.
        key: an idempotency key, by which ``find_restore`` finds it when it is done.
        repartition: lets Spark rewrite states; needed for another number of shuffle partitions.
        above: claim a generation above this too: the newest that the control database knows of the job, whose history
            continues in this folder.

    Raises:
        InvalidName, ForkNameTaken: no job can have this name.
        CheckpointNotFound: no checkpoint is meant, or several.
        RestoreRefused: the check refuses, or Spark refuses to rewrite a state; nothing was changed.
        JobRunning: the job has a driver, or may have.
        MissingRecord, DamagedRecord, UnsupportedFormat: the checkpoint cannot be used; nothing was changed.
    """
    folder, path = _folders(files, storage, request, root, job)
    target = request.as_name or job
    with open_checkpoint(storage(path), path) as source:
        checks = _checks(files, storage, source, request, folder, shuffle_partitions)
        refuse(path, checks)
        with _own_or_forget(files, folder, request, max(source.metadata.generation, above)) as claim:
            # A driver may have run since the check, and ended.
            refuse(path, check_what_moves(request, source, files, folder, storage))
            prepared = prepare_restore(
                files,
                folder,
                source,
                generation=claim.generation,
                verify_claim=lambda: claim.verify(target),
                ref=request.ref,
                key=key,
                is_fork=source.metadata.job != target,
                allow_non_restored_state=request.allow_non_restored_state,
                allow_missing_input=request.allow_missing_input,
                roll_back_sinks=request.roll_back_sinks,
            )
            if shuffle_partitions is not None:
                assert repartition is not None, "another number of partitions needs the function"
                prepared.repartition(shuffle_partitions, repartition)
            prepared.commit()
    return OfflineRestore(target, prepared.record, tuple(checks), prepared.linked_bytes, prepared.copied_bytes)


@contextlib.contextmanager
def _own_or_forget(files: Files, folder: str, request: RestoreRequest, above: Generation) -> Iterator[Claim]:
    """As ``own_job``; of a job that began with a restore that failed nothing is left."""
    is_first = False
    try:
        with own_job(files, folder, force=request.force, above=above) as claim:
            is_first = claim.previous is None
            yield claim
    except RestoreRefused:
        if is_first:
            remove_unborn(files, folder)
        raise


def _folders(files: Files, storage: Storage, request: RestoreRequest, root: str, job: str) -> tuple[str, str]:
    """Return the folder of the job to restore, and that of the checkpoint."""
    for name in (job, request.as_name):
        if name is not None and not is_valid_name(name):
            raise InvalidName("job", name)
    check_fork_name(job, request.as_name)
    path = Catalog(files, join(root, job), storage).resolve(request.ref).path
    return join(root, request.as_name or job), path


def _checks(
    files: Files,
    storage: Storage,
    source: CheckpointSource,
    request: RestoreRequest,
    folder: str,
    shuffle_partitions: int | None,
) -> list[Check]:
    checks = check_request(request, source, files, folder, storage, spark_version=installed_spark())
    if shuffle_partitions is not None:
        is_fork = source.metadata.job != folder.rpartition("/")[2]
        checks += check_repartition(files, folder, source.metadata, shuffle_partitions, is_fork=is_fork)
    return checks
