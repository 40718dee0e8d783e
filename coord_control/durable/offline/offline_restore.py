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
from coord_control.durable.job_folder.generations import Claim
from coord_control.durable.job_folder.restore_log import RestoreRecord
from coord_control.durable.offline.offline_savepoint import installed_spark, own_job
from coord_control.durable.restore.checks import Check, refuse
from coord_control.durable.restore.preflight import check_files, check_job, check_sinks, check_spark_version
from coord_control.durable.restore.preflight_sources import check_sources
from coord_control.durable.restore.prepared_restore import prepare_restore, remove_unborn
from coord_control.durable.restore.shuffle_partitions import Repartition, check_repartition
from coord_control.errors import ForkNameTaken, InvalidName, RestoreRefused
from coord_control.ids import Generation, is_valid_name

__all__ = ["OfflineRestore", "RestoreRequest", "check_fork_name", "check_restore", "restore_job"]


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What is to be restored into which job.

    Attributes:
        job: whose checkpoint it is, when ``ref`` is an id, a label or ``latest``; and the job that resumes from it.
        fork: name of a new job that resumes from it, in parallel with the original; None to restore the job itself.
            Must differ from ``job``.
        allow_missing_input: also when files that a source would read again are gone; their rows are lost.
        verify: read all files and compare their checksums, not only their sizes.
        force: also when the job's driver runs where we cannot look.
        shuffle_partitions: rewrite the states of Spark's operators into this many partitions; None to leave them.
        key: an idempotency key, by which ``find_restore`` finds it when it is done.
    """

    root: str
    job: str
    ref: str
    fork: str | None = None
    allow_non_restored_state: bool = False
    allow_missing_input: bool = False
    verify: bool = True
    force: bool = False
    shuffle_partitions: int | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        for name in (self.job, self.fork):
            if name is not None and not is_valid_name(name):
                raise InvalidName("job", name)
        check_fork_name(self.job, self.fork)

    @property
    def target(self) -> str:
        """The job that resumes from the checkpoint."""
        return self.fork or self.job


@dataclass(frozen=True, slots=True)
class OfflineRestore:
    """A restore that has taken place."""

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


def check_restore(files: Files, storage: Storage, request: RestoreRequest) -> tuple[str, list[Check]]:
    """Make the check alone; nothing is written but a hold on the checkpoint.

    Returns:
        The checkpoint's folder, and what was found.

    Raises:
        CheckpointNotFound: no checkpoint is meant, or several.
        MissingRecord, DamagedRecord, UnsupportedFormat: it cannot be used.
    """
    path = _path(files, storage, request)
    with open_checkpoint(storage(path), path, "it is being checked") as source:
        return path, _checks(files, storage, source, request)


def restore_job(
    files: Files, storage: Storage, request: RestoreRequest, *, repartition: Repartition | None = None
) -> OfflineRestore:
    """Restore a stopped job. Start its driver afterwards.

    Args:
        repartition: has Spark rewrite states; needed for another number of shuffle partitions.

    Raises:
        CheckpointNotFound: no checkpoint is meant, or several.
        RestoreRefused: the check refuses, or Spark refuses to rewrite a state; nothing was changed.
        JobRunning: the job has a driver, or may have.
        MissingRecord, DamagedRecord, UnsupportedFormat: the checkpoint cannot be used; nothing was changed.
    """
    path = _path(files, storage, request)
    folder = join(request.root, request.target)
    with open_checkpoint(storage(path), path) as source:
        checks = _checks(files, storage, source, request)
        refuse(path, checks)
        with _own_or_forget(files, folder, request, source.metadata.generation) as claim:
            prepared = prepare_restore(
                files,
                folder,
                source,
                generation=claim.generation,
                verify_claim=lambda: claim.verify(request.target),
                ref=request.ref,
                key=request.key,
                is_fork=_is_fork(source, request),
                allow_non_restored_state=request.allow_non_restored_state,
                allow_missing_input=request.allow_missing_input,
            )
            if request.shuffle_partitions is not None:
                assert repartition is not None, "another number of partitions needs the function"
                prepared.repartition(request.shuffle_partitions, repartition)
            prepared.commit()
    return OfflineRestore(prepared.record, tuple(checks), prepared.linked_bytes, prepared.copied_bytes)


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


def _path(files: Files, storage: Storage, request: RestoreRequest) -> str:
    return Catalog(files, join(request.root, request.job), storage).resolve(request.ref).path


def _is_fork(source: CheckpointSource, request: RestoreRequest) -> bool:
    return source.metadata.job != request.target


def _checks(files: Files, storage: Storage, source: CheckpointSource, request: RestoreRequest) -> list[Check]:
    folder, is_fork = join(request.root, request.target), _is_fork(source, request)
    allow = request.allow_non_restored_state
    checks = [
        *check_files(source, verify=request.verify),
        *check_spark_version(source.metadata, installed_spark()),
        *check_job(files, folder, source, is_fork=is_fork, allow_non_restored_state=allow),
        *check_sources(files, storage, request.root, source, allow_missing_input=request.allow_missing_input),
        *check_sinks(files, folder, source, is_fork=is_fork),
    ]
    if (partitions := request.shuffle_partitions) is not None:
        checks += check_repartition(files, folder, source.metadata, partitions, is_fork=is_fork)
    return checks
