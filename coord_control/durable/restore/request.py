"""A request for a restore, and the checks before it: the same for a driver, and for a job that does not run.

Threads: values, and reads.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from coord_control.durable.checkpoints.checkpoint_folder import Storage
from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.files.filesystem import Files
from coord_control.durable.restore.checks import Check
from coord_control.durable.restore.preflight import check_files, check_job, check_spark_version
from coord_control.durable.restore.preflight_sinks import SinkOptions, check_sinks
from coord_control.durable.restore.preflight_sources import check_sources

__all__ = ["RestoreRequest", "check_request", "check_what_moves"]


class RestoreRequest(BaseModel):
    """What to restore.

    Attributes:
        ref: an id, a label, ``latest``, or a path.
        allow_non_restored_state: let queries and operators differ from those of the checkpoint.
        allow_missing_input: restore even if files that a source would read again are missing; their rows are lost.
        roll_back_sinks: set the sinks back to the checkpoint too.
        accept_skipped_epochs: restore even if a sink skips epochs that it has received; what they produce now is lost.
        verify: read all files and compare their checksums, not only their sizes.
        force: proceed even if a driver of the restored job may run on a host that cannot be checked.
        as_name: fork a new job with this name instead of restoring the job itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ref: str
    allow_non_restored_state: bool = False
    allow_missing_input: bool = False
    roll_back_sinks: bool = False
    accept_skipped_epochs: bool = False
    verify: bool = True
    force: bool = False
    as_name: str | None = None


def check_request(
    request: RestoreRequest,
    source: CheckpointSource,
    files: Files,
    job_folder: str,
    storage: Storage,
    *,
    spark_version: str | None,
) -> list[Check]:
    """Make all checks of a request that do not need the program.

    Args:
        files: the storage of the restored job.
        spark_version: the version in this environment, or None if it has no Spark.
    """
    return [
        *check_files(source, verify=request.verify),
        *check_spark_version(source.metadata, spark_version),
        *check_what_moves(request, source, files, job_folder, storage),
    ]


def check_what_moves(
    request: RestoreRequest, source: CheckpointSource, files: Files, job_folder: str, storage: Storage
) -> list[Check]:
    """Make those checks of :func:`check_request` whose answer changes when a driver of the job runs: of its queries,
    sources and sinks."""
    root, _, job = job_folder.rstrip("/").rpartition("/")
    is_fork, allow = source.metadata.job != job, request.allow_non_restored_state
    options = SinkOptions(is_fork, request.roll_back_sinks, request.accept_skipped_epochs)
    return [
        *check_job(files, job_folder, source, is_fork=is_fork, allow_non_restored_state=allow),
        *check_sources(files, storage, root, source, allow_missing_input=request.allow_missing_input),
        *check_sinks(files, job_folder, source, storage, options),
    ]
