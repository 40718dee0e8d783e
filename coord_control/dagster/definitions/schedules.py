"""Scheduled checkpoints and savepoints: a tick asks the database whether to take one, and then requests a run.

A tick is evaluated in the code server, which must stay responsive, so it may not block. It makes one query to the
database, on a thread that is abandoned if there is no answer within ten seconds; any error is a reason to skip the
tick. The requested run, in its own process, waits as long as necessary.

A tick is skipped rather than queued: a savepoint that comes an hour late, together with the next one, is useless. A job
that is being restarted by its supervisor is not down: the run waits for its next driver.

Labels are unique in a job, so the label of each savepoint contains the time of its tick. The savepoints of a schedule
are found by their requester (``schedule_actor``).

Threads: the tick's, and one for its query.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import dagster as dg

from coord_control.control.client.job_snapshot import JobSnapshot
from coord_control.control.commands import takes
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.runs.own_runs import NOT_OVER, SCHEDULE_TAG, schedule_actor
from coord_control.dagster.runs.patience import within
from coord_control.dagster.spec import ScheduleSpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import CoordControlError, JobNotFound
from coord_control.ids import MAX_NAME
from coord_control.storage.records import JobState

__all__ = ["build_schedules", "find_schedule", "schedule_name"]

# A tick that is skipped is a savepoint that is missing, so a busy database gets longer than a sensor gives it.
_ANSWER_SECONDS: Final = 10.0
#: The tag that names the tick for which Dagster launched a run.
_RUN_KEY_TAG: Final = "dagster/run_key"
#: The tag that limits the duration of a run; Dagster's run monitoring enforces it.
_LONGEST_TAG: Final = "dagster/max_runtime"
#: How long a run may take after its savepoint is complete: to wait for its record and to remove older savepoints.
_AFTERWARDS_SECONDS: Final = 240.0
#: Dagster submits a run as soon as it has created it. One that still waits after this time was left by a daemon that
#: was killed in between: if the daemon returns after the next tick, it evaluates that tick only.
_SUBMITTED_WITHIN_SECONDS: Final = 60.0
#: There is more than one unfinished run only if runs were lost.
_RUNS: Final = 20


def build_schedules(
    jobs: Sequence[StreamingJobSpec], translator: StreamingJobTranslator
) -> list[dg.ScheduleDefinition]:
    """Return the schedules of all jobs."""
    return [
        _schedule(job, spec, schedule_name(job, place, translator), translator)
        for job in jobs
        for place, spec in enumerate(job.schedules)
    ]


def schedule_name(job: StreamingJobSpec, place: int, translator: StreamingJobTranslator) -> str:
    """Return the name of the schedule at an index of the job's list."""
    spec = job.schedules[place]
    return spec.name or translator.name(job, f"{spec.kind}_schedule_{place + 1}")


def find_schedule(job: StreamingJobSpec, name: str, translator: StreamingJobTranslator) -> ScheduleSpec | None:
    """Return the schedule with this name, or None if the job does not have one (any more)."""
    places = range(len(job.schedules))
    return next((job.schedules[place] for place in places if schedule_name(job, place, translator) == name), None)


def _schedule(
    job: StreamingJobSpec, spec: ScheduleSpec, name: str, translator: StreamingJobTranslator
) -> dg.ScheduleDefinition:
    key = translator.checkpoint_key(job) if spec.kind == "checkpoint" else translator.savepoint_key(job)
    status = dg.DefaultScheduleStatus.RUNNING if spec.running else dg.DefaultScheduleStatus.STOPPED

    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        plane: ControlPlaneResource = getattr(context.resources, RESOURCE_KEY)
        moment = context.scheduled_execution_time.astimezone(UTC)
        reason = None
        if not _has_run(context, name, moment):
            reason = _unfinished_run(context, name, spec)
            reason = reason or _reason_to_skip(plane, job.name, spec, schedule_actor(name))
        if reason is not None:
            return dg.SkipReason(reason)
        return dg.RunRequest(
            run_key=moment.isoformat(),
            run_config=_run_config(spec, name, translator.name(job, spec.kind), moment),
            tags={
                SCHEDULE_TAG: name,
                "coord_control/job": job.name,
                _LONGEST_TAG: f"{_longest_run(spec):.0f}",
            },
        )

    return dg.ScheduleDefinition(
        name=name,
        cron_schedule=spec.cron,
        execution_timezone=spec.timezone,
        target=dg.AssetSelection.assets(key),
        execution_fn=evaluate,
        required_resource_keys={RESOURCE_KEY},
        default_status=status,
        description=_description(job, spec),
    )


def _run_config(spec: ScheduleSpec, name: str, op: str, moment: datetime) -> dict[str, Any]:
    config: dict[str, Any] = {"label": _label(spec.label or name, moment), "timeout_seconds": spec.timeout_seconds}
    if spec.target is not None:
        config["target"] = f"{spec.target.rstrip('/')}/{name}-{_utc(moment)}"
    return {"ops": {op: {"config": config}}}


def _label(stem: str, moment: datetime) -> str:
    # A long name is cut at the front: the names of a job's schedules differ at the end.
    end = f"-{_utc(moment)}"
    return f"{stem[-(MAX_NAME - len(end)) :]}{end}".lstrip("_.-")


def _utc(moment: datetime) -> str:
    # UTC, because a clock that is set back at the end of summer shows the same local time twice.
    return f"{moment:%Y%m%dT%H%M%SZ}"


def _has_run(context: dg.ScheduleEvaluationContext, name: str, moment: datetime) -> bool:
    # If the daemon died during this tick, the tick is evaluated again, and its run may exist already. Request it again:
    # Dagster recognizes its key, and launches it unless that has been done. A skipped tick would never launch it.
    tags = {SCHEDULE_TAG: name, _RUN_KEY_TAG: moment.isoformat()}
    return bool(context.instance.get_runs(filters=dg.RunsFilter(tags=tags), limit=1))


def _unfinished_run(context: dg.ScheduleEvaluationContext, name: str, spec: ScheduleSpec) -> str | None:
    """Return why to skip the tick if an earlier run is unfinished, even if it has not sent its request yet."""
    unfinished = dg.RunsFilter(tags={SCHEDULE_TAG: name}, statuses=NOT_OVER)
    for record in context.instance.get_run_records(filters=unfinished, limit=_RUNS):
        if not _is_lost(record, spec):
            run = record.dagster_run
            return (
                f"run {run.run_id} of an earlier tick has not finished: {run.status.value} for {_age(record):.0f} s; "
                "its page shows what it waits for"
            )
    return None


def _is_lost(record: dg.RunRecord, spec: ScheduleSpec) -> bool:
    # If a code server is killed together with its run workers, Dagster's default launcher never notices. Run monitoring
    # ends such runs by their maximum runtime; without it, they must not block the schedule permanently.
    status = record.dagster_run.status
    if status is dg.DagsterRunStatus.QUEUED:
        return False
    never_submitted = status is dg.DagsterRunStatus.NOT_STARTED
    return _age(record) > (_SUBMITTED_WITHIN_SECONDS if never_submitted else _longest_run(spec))


def _age(record: dg.RunRecord) -> float:
    """Return the seconds since a run started, or since it was created if it has not started."""
    return time.time() - (record.start_time or record.create_timestamp.timestamp())


def _longest_run(spec: ScheduleSpec) -> float:
    """Return the maximum duration of a run that has started, in seconds."""
    return spec.timeout_seconds + _AFTERWARDS_SECONDS


def _reason_to_skip(plane: ControlPlaneResource, job: str, spec: ScheduleSpec, actor: str) -> str | None:
    try:
        snapshot = within(_ANSWER_SECONDS, lambda: _look(plane, job, actor))
    except JobNotFound:
        return f"job {job!r} has never run with this control database: start it"
    except CoordControlError as error:
        return f"the control database could not be read: {error}"
    except TimeoutError:
        return f"the control database did not answer within {_ANSWER_SECONDS:g} s"
    return _down(snapshot) or _under_way(snapshot, spec)


def _look(plane: ControlPlaneResource, job: str, actor: str) -> JobSnapshot:
    with plane.client(actor, retry_seconds=_ANSWER_SECONDS) as client:
        return client.snapshot(job)


def _down(snapshot: JobSnapshot) -> str | None:
    job = snapshot.job
    if not job.is_alive and not job.is_restarting:
        since = job.ended_at or job.heartbeat_at
        why = f": {job.end_reason}" if job.end_reason else ""
        start = "" if "coordctl run" in why else "; start it with coordctl run, or with start_streaming_job"
        return f"job {job.name!r} has not been running since {since:%Y-%m-%d %H:%M:%S %Z}{why}{start}"
    return f"job {job.name!r} is stopping" if job.state is JobState.STOPPING else None


def _under_way(snapshot: JobSnapshot, spec: ScheduleSpec) -> str | None:
    for checkpoint in snapshot.under_way:
        if checkpoint.kind.value == spec.kind:
            return f"{spec.kind} {checkpoint.id} has been in progress since {checkpoint.triggered_at:%H:%M:%S %Z}"
    for command in snapshot.commands:
        if (taken := takes(command.kind)) is not None and taken.value == spec.kind:
            return f"a {spec.kind} was already requested: command {command.id}, by {command.requested_by or 'unknown'}"
    return None


def _description(job: StreamingJobSpec, spec: ScheduleSpec) -> str:
    kept = ""
    if spec.retain is not None:
        count, hours = spec.retain.count, spec.retain.max_age_hours
        parts = [f"the newest {count}" if count else "", f"those of the last {hours:g} hours" if hours else ""]
        kept = f"; {' and '.join(filter(None, parts))} are kept"
    return f"Takes a {spec.kind} of the job {job.name}{kept}. Skipped if the job is down or one is in progress."
