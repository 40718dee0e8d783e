"""Restoring a job, or forking a new one: through its driver, or directly on its storage if the job is not running.

The run always shows the preflight checks, as a table in its metadata and as lines in its log, even if they refuse the
restore. A driver runs the checks itself and returns the table; if the job is not running, they are run here.

A repeated step does not restore twice. A request to a driver is found again by its key. A restore on the storage is
found there by the same key, not by time: the clocks of Dagster and of the machine that restores may differ.

Threads: blocks the step's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.request_once import newest_request
from coord_control.control.commands import Refusal, Restore, RestoreResult
from coord_control.dagster import markdown
from coord_control.dagster.metadata import NAMESPACE, Metadata, entries
from coord_control.dagster.runs.driver_start import settled_job, supervisor_lives, wait_for_driver
from coord_control.dagster.runs.idempotency import attempt_key
from coord_control.dagster.runs.job_run import follow
from coord_control.durable.files.by_scheme import without_spark
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.restore_log import RestoreRecord, find_restore
from coord_control.durable.offline.offline_restore import check_fork_name, check_restore, restore_job
from coord_control.durable.restore.checks import Verdict, refusal
from coord_control.errors import CommandRefused, JobRunning, RestoreRefused
from coord_control.storage.records import JobRecord

__all__ = ["check_only", "preflight_table", "restore"]


def restore(
    context: dg.OpExecutionContext, client: ControlClient, job: str, request: Restore, *, timeout_seconds: float
) -> Metadata:
    """Restore once, no matter how often the step runs.

    Args:
        job: the job that took the checkpoint.

    Returns:
        The metadata that the run shows.

    Raises:
        dagster.Failure: the restore was refused or failed; with the table of the checks, if there is one.
        CoordControlError: nothing was changed.
    """
    check_fork_name(job, request.as_name)
    record, deadline = client.job(job), time.monotonic() + timeout_seconds
    asked = newest_request(client, job, attempt_key(context))
    if asked is not None and asked.stands:
        if not asked.is_finished and not record.is_alive:
            context.log.warning(f"the driver that was restoring job {job} is gone: its next driver continues")
        return _through_driver(context, client, record, request, timeout_seconds)
    target = request.as_name or job
    if (done := _restored_before(context, record, target, request.ref)) is not None:
        context.log.info(f"an earlier attempt has already restored job {target}: nothing was done")
        return entries(
            {
                "way": "storage",
                "job": target,
                "checkpoint_id": int(done.checkpoint),
                "path": dg.MetadataValue.path(done.path),
                "was_restored_before": dg.MetadataValue.bool(True),
            }
        )
    record = settled_job(client, job, deadline, context.log.info) or record
    if record.waits_for_driver:
        context.log.info(f"coordctl run is restarting job {job}: its next driver restores it")
    if record.is_alive or record.waits_for_driver:
        return _through_driver(context, client, record, request, timeout_seconds)
    return _on_storage(context, client, record, request)


def check_only(context: dg.OpExecutionContext, client: ControlClient, job: str, request: Restore) -> Metadata:
    """Make the preflight checks from the job's storage, whether or not the job runs, and change nothing.

    Returns:
        The metadata that the run shows.

    Raises:
        dagster.Failure: the restore would be refused, with the table of the checks; or the storage cannot be read here.
        CoordControlError: there is no such job or checkpoint, or it cannot be used.
    """
    record = client.job(job)
    files = _storage_of_job(record)
    path, checks = check_restore(files, _storage, request, root=record.root, job=job)
    found = [each.to_json() for each in checks]
    _log_checks(context, found)
    table = {"preflight": preflight_table(found)}
    if (refused := refusal(path, checks)) is not None:
        raise dg.Failure(str(refused), metadata=entries(table), allow_retries=False)
    context.log.info(f"job {job} can be restored from {path}; nothing was changed")
    return entries({"way": "check", "job": job, "path": dg.MetadataValue.path(path), **table})


def preflight_table(checks: Iterable[Mapping[str, Any]]) -> dg.MetadataValue[Any]:
    """Return the preflight checks as a table: what was checked, what was found, and the way out."""
    columns = ("verdict", "check", "of", "found", "way out")
    names = ("verdict", "name", "subject", "found", "way_out")
    return dg.MetadataValue.md(markdown.table(columns, [[check.get(name, "") for name in names] for check in checks]))


# --- through the driver


def _through_driver(
    context: dg.OpExecutionContext, client: ControlClient, job: JobRecord, request: Restore, timeout_seconds: float
) -> Metadata:
    deadline = time.monotonic() + timeout_seconds
    try:
        result = follow(context, client, job.name, request, timeout_seconds=timeout_seconds)
    except dg.Failure as failure:
        raise _with_table(context, failure) from failure.__cause__
    shown = _shown(context, "driver", result)
    if request.as_name is None:
        shown |= _started_again(context, client, job, deadline)
    return shown


def _shown(context: dg.OpExecutionContext, way: str, result: RestoreResult) -> Metadata:
    _log_checks(context, result.checks)
    return entries(
        {
            "way": way,
            "job": result.job,
            "checkpoint_id": result.checkpoint,
            "path": dg.MetadataValue.path(result.path),
            "linked_bytes": result.linked_bytes,
            "copied_bytes": result.copied_bytes,
            "preflight": preflight_table(result.checks),
        }
    )


def _started_again(context: dg.OpExecutionContext, client: ControlClient, job: JobRecord, deadline: float) -> Metadata:
    """Wait until the supervisor has restarted the job: only then is it known whether the state fits its program."""
    command = newest_request(client, job.name, attempt_key(context))
    assert command is not None, "it was just completed"
    context.log.info(f"job {job.name} was restored, waiting for its next driver")
    before = command.generation if command.generation is not None else job.generation
    is_expected = supervisor_lives(client, job.name)
    running = wait_for_driver(
        client, job.name, before, deadline=deadline, log_file=job.log_file, is_expected=is_expected
    )
    context.log.info(f"job {job.name} is running again: process {running.pid} on {running.host}")
    return entries({"generation": running.generation})


def _with_table(context: dg.OpExecutionContext, failure: dg.Failure) -> dg.Failure:
    error = failure.__cause__
    if not isinstance(error, CommandRefused) or error.code != Refusal.RESTORE_REFUSED or not error.fields:
        return failure
    _log_checks(context, error.fields)
    metadata = {**failure.metadata, f"{NAMESPACE}preflight": preflight_table(error.fields)}
    metadata.pop(f"{NAMESPACE}problems", None)  # the same as raw JSON
    return dg.Failure(failure.description, metadata=metadata, allow_retries=failure.allow_retries)


# --- on the storage


def _on_storage(context: dg.OpExecutionContext, client: ControlClient, job: JobRecord, request: Restore) -> Metadata:
    files = _storage_of_job(job)
    context.log.info(f"job {job.name} is not running: restoring directly on its storage in {job.root}")
    try:
        done = restore_job(files, _storage, request, root=job.root, job=job.name, key=attempt_key(context))
    except RestoreRefused as error:
        _log_checks(context, error.checks)
        table = {f"{NAMESPACE}preflight": preflight_table(error.checks)}
        raise dg.Failure(str(error), metadata=table, allow_retries=False) from error
    except JobRunning as error:
        hint = "" if error.is_known else ". In Dagster, set `force: true` in the config of the run"
        raise dg.Failure(f"{error}{hint}", allow_retries=True) from error
    context.log.info(f"job {done.job} was restored from {done.record.path}: its next driver resumes from there")
    details = None if request.as_name is None else {"as_name": request.as_name}
    client.record_done(job.name, "restore", done.record.path, details)
    return _shown(context, "storage", RestoreResult.of(done))


def _restored_before(context: dg.OpExecutionContext, job: JobRecord, target: str, ref: str) -> RestoreRecord | None:
    if (files := without_spark(job.root)) is None:
        return None
    done = find_restore(files, join(job.root, target), attempt_key(context))
    return done if done is not None and done.ref == ref else None


def _storage_of_job(job: JobRecord) -> Files:
    files = _storage(job.root)
    if not files.exists(job.folder):
        raise dg.Failure(
            f"the folder {job.folder} of job {job.name} is not accessible from this machine; run coordctl restore "
            f"{job.name} where it is (the job {'runs' if job.is_alive else 'last ran'} on {job.host})",
            allow_retries=False,
        )
    return files


def _storage(path: str) -> Files:
    if (files := without_spark(path)) is not None:
        return files
    raise dg.Failure(
        f"Dagster does not start Spark to read {path}. Run coordctl restore, which does; or, if the job does not run, "
        "start it and re-execute this run, so that its driver restores it. For S3, Azure and Google Cloud, "
        "Dagster reads it without Spark after: pip install 'coord-control[objects]'",
        allow_retries=False,
    )


def _log_checks(context: dg.OpExecutionContext, checks: Iterable[Mapping[str, Any]]) -> None:
    for check in checks:
        verdict, subject, way_out = check.get("verdict", ""), check.get("subject"), check.get("way_out")
        what = f"{check.get('name', '')} of {subject}" if subject else check.get("name", "")
        line = f"preflight: {verdict}: {what}: {check.get('found', '')}{f' ({way_out})' if way_out else ''}"
        context.log.log("INFO" if verdict == Verdict.OK.value else "WARNING", line)
