"""Tables of jobs, their queries, operators, gateways and commands.

Threads: any; pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table

from coord_control.cli.checkpoint_views import checkpoint_table
from coord_control.cli.output import human_seconds, human_time, marked, text_table
from coord_control.control.client.command_wait import progress_text
from coord_control.control.client.job_snapshot import JobSnapshot
from coord_control.control.wording import state_text
from coord_control.storage.records import CommandRecord, JobRecord, OperatorRecord, QueryRecord

__all__ = ["command_table", "job_screen", "job_table"]

_JOB_COLUMNS: Final = ("job", "state", "generation", "host", "process", "driver started", "supervised", "root")
_QUERY_COLUMNS: Final = (
    "query",
    "state",
    "epoch",
    "in/s",
    "rows/s",
    "backlog",
    "lag",
    "watermark",
    "state rows",
    "restarts",
    "last failure",
)
_OPERATOR_COLUMNS: Final = (
    "operator",
    "query",
    "epoch",
    "subtasks",
    "closed",
    "blocked now",
    "blocked so far",
    "blocked for",
    "mailbox",
    "takes",
    "answers",
)
_GATEWAY_COLUMNS: Final = ("operator", "subtask", "gateway", "blocked now", "blocked so far", "blocked for", "mailbox")
_COMMAND_COLUMNS: Final = ("command", "job", "kind", "state", "asked", "by", "what")


def job_table(jobs: Iterable[JobRecord]) -> Table:
    """Return a table with one row per job."""
    return text_table(
        "",
        _JOB_COLUMNS,
        [
            (
                job.name,
                state_text(job),
                job.generation,
                job.host,
                job.pid,
                human_time(job.driver_started_at),
                "yes" if job.is_supervised else "no",
                job.root,
            )
            for job in jobs
        ],
    )


def job_screen(snapshot: JobSnapshot, *, all_gateways: bool = False) -> RenderableType:
    """Render a job on one screen: its state and its activity.

    Args:
        all_gateways: include gateways without blocked events.
    """
    job = snapshot.job
    when = "" if job.is_alive else ", as of the driver's last heartbeat"
    tables = [
        _query_table("queries" if job.ended_at is not None else f"queries{when}", job.queries),
        _operator_table(f"operators{when}", job.operators),
        _gateway_table(f"gateways{when}", job.operators, all_gateways=all_gateways),
        checkpoint_table("checkpoints", snapshot.checkpoints),
        command_table("commands", snapshot.commands),
    ]
    return Group(*_header(job), *(table for table in tables if table.row_count))


def command_table(title: str, commands: Iterable[CommandRecord]) -> Table:
    """Return a table with one row per command."""
    return text_table(title, _COMMAND_COLUMNS, [_command_row(command) for command in commands])


def _header(job: JobRecord) -> list[str]:
    since = human_seconds(max(0.0, (datetime.now(UTC) - job.driver_started_at).total_seconds()))
    supervisor = ", supervised by coordctl run" if job.is_supervised else ", not supervised"
    lines = [f"job {job.name}: {state_text(job)}, generation {job.generation}, process {job.pid} on {job.host}"]
    if job.is_alive:
        lines.append(f"running for {since}{supervisor}, in {job.folder}")
    else:
        reason = f": {job.end_reason}" if job.end_reason else ""
        again = "; coordctl run restarts it, if it still runs" if job.is_restarting else ""
        since = human_time(job.ended_at or job.heartbeat_at)
        lines.append(f"not running since {since} UTC{reason}{again}; in {job.folder}")
    if job.log_file:
        lines.append(f"log: {job.log_file}")
    if job.is_alive and job.live is not None and job.live.metrics:
        lines.append(f"metrics: http://{job.live.metrics}/metrics")
    if job.live is not None and job.live.message:
        lines.append(job.live.message)
    agent = job.agent
    if agent is not None and (agent.buffered or agent.dropped or agent.database_failures):
        lines.append(
            f"agent: {agent.buffered} records are waiting for the database, {agent.dropped} were dropped, "
            f"{agent.database_failures} failures {agent.last_failure}"
        )
    return [marked(line) for line in lines]


def _query_table(title: str, queries: Sequence[QueryRecord]) -> Table:
    rows = [
        (
            query.name,
            query.state,
            query.epoch,
            _number(query.input_rows_per_second),
            _number(query.rows_per_second),
            _number(query.backlog),
            human_seconds(query.lag_seconds),
            human_time(query.watermark),
            query.state_rows,
            query.restarts,
            query.last_failure,
        )
        for query in queries
    ]
    return text_table(title, _QUERY_COLUMNS, rows)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _operator_table(title: str, operators: Sequence[OperatorRecord]) -> Table:
    rows = [
        (
            operator.uid,
            operator.query,
            operator.epoch,
            operator.parallelism,
            operator.closed,
            operator.blocked_now,
            operator.blocked_total,
            human_seconds(operator.blocked_seconds),
            operator.mailbox,
            ", ".join(each.name for each in operator.event_types),
            ", ".join(each.name for each in operator.request_types),
        )
        for operator in operators
    ]
    return text_table(title, _OPERATOR_COLUMNS, rows)


def _gateway_table(title: str, operators: Sequence[OperatorRecord], *, all_gateways: bool) -> Table:
    rows = [
        (
            operator.uid,
            gateway.subtask,
            "open" if gateway.is_open else "closed",
            gateway.blocked,
            gateway.blocked_total,
            human_seconds(gateway.blocked_seconds),
            gateway.mailbox,
        )
        for operator in operators
        for gateway in operator.gateways
        if all_gateways or gateway.blocked or not gateway.is_open
    ]
    return text_table(title, _GATEWAY_COLUMNS, rows)


def _command_row(command: CommandRecord) -> tuple[object, ...]:
    error = command.error
    what = f"{error.code}: {error.message}" if error is not None else ""
    return (
        command.id,
        command.job,
        command.kind.words,
        command.state,
        human_time(command.requested_at),
        f"{command.requested_by}@{command.requested_from}",
        what or ("" if command.is_finished else progress_text(command)),
    )
