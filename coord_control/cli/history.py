"""``coordctl recoveries``, ``audit``, ``generations`` and ``forget``: the history of a job.

Threads: the command's thread.
"""

from __future__ import annotations

from coord_control.cli.options import Control, JobName, Json, Limit, OptionalJob, Yes
from coord_control.cli.output import confirm, human_seconds, human_time, print_json, print_table, say
from coord_control.cli.requests import connected

__all__ = ["audit", "forget", "generations", "recoveries"]


def recoveries(job: JobName, limit: Limit = 20, control: Control = None, as_json: Json = False) -> None:
    """List the recoveries of JOB, newest first: their causes, and from where it resumed."""
    with connected(control, as_json) as client:
        found = client.recoveries(job, limit=limit)
        if as_json:
            print_json([each.to_json() for each in found])
            return
        rows = [
            (
                human_time(each.started_at),
                each.generation,
                each.query,
                each.cause.replace("_", " "),
                each.from_epoch,
                each.from_checkpoint,
                human_seconds(each.duration_seconds),
                each.epochs_rerun,
                each.message or each.what or each.path,
            )
            for each in found
        ]
        columns = ("at", "generation", "query", "cause", "from epoch", "from checkpoint", "took", "rerun", "what")
        print_table("", columns, rows)
        if not rows:
            say(f"job {job} has never had to recover")


def audit(job: OptionalJob = None, limit: Limit = 20, control: Control = None, as_json: Json = False) -> None:
    """List the audit trail of JOB, or of all, newest first: who requested what, from where, and the outcome."""
    with connected(control, as_json) as client:
        if job is not None:
            client.job(job)  # raises for an unknown name, instead of printing an empty list
        found = client.audit(job, limit=limit)
        if as_json:
            print_json([each.to_json() for each in found])
            return
        rows = [
            (
                human_time(each.at),
                f"{each.actor}@{each.host}" if each.host else each.actor,
                each.job,
                each.action.replace("_", " "),
                each.outcome,
                each.subject,
                ", ".join(f"{name} {value}" for name, value in each.details.items() if value is not None),
            )
            for each in found
        ]
        print_table("", ("at", "who", "job", "action", "outcome", "subject", "details"), rows)
        if not rows:
            say("no requests have been recorded yet")


def generations(job: JobName, control: Control = None, as_json: Json = False) -> None:
    """List the drivers of JOB, newest first."""
    with connected(control, as_json) as client:
        found = client.generations(job)
        if as_json:
            print_json([each.to_json() for each in found])
            return
        rows = [
            (
                each.generation,
                each.host,
                each.pid,
                human_time(each.started_at),
                human_time(each.ended_at),
                "yes" if each.is_clean else "no" if each.ended_at is not None else "",
                each.end_reason,
            )
            for each in found
        ]
        print_table("", ("generation", "host", "process", "started", "ended", "cleanly", "why"), rows)


def forget(
    job: JobName,
    yes: Yes = False,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Remove the history of JOB, which must be stopped, from the control database. Its storage is not touched."""
    with connected(control, as_json) as client:
        record = client.job(job)
        if not yes:
            confirm(f"remove the history of job {record.name}?")
        client.forget(job)
        if as_json:
            print_json({"job": job, "forgotten": True})
        else:
            say(f"removed the history of job {job}; its storage is unchanged: {record.folder}")
