"""Converts a job of the control database to samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from coord_control.control.measure import Place, shown
from coord_control.control.measures import CHECKPOINT
from coord_control.metrics.driver import QUERY_STATES
from coord_control.metrics.families import Families, Of
from coord_control.metrics.live_samples import add_live_value
from coord_control.storage.records import (
    LOST_QUERY,
    AgentMetrics,
    CheckpointCount,
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    Fleet,
    FleetCounts,
    JobOverview,
    JobRecord,
    JobState,
    OperatorRecord,
    QueryRecord,
)

__all__ = ["add_counts", "add_job"]

_COMPLETED: Final = (CheckpointState.COMPLETED.value, CheckpointState.DISCARDED.value)


def add_job(of_job: Of, overview: JobOverview) -> None:
    """Add one job."""
    job = overview.job
    _add_driver(of_job, job)
    if job.is_alive:
        for query in job.queries:
            _add_query(of_job.of(query.name), query)
        for operator in job.operators:
            _add_operator(of_job.of(operator.query, operator.uid), operator)
        for live in job.live_values:
            at = live.at.timestamp()
            version, uses = live.version, live.uses
            add_live_value(of_job, live.name, live.value, version=version, at_seconds=at, uses=uses, prefix="fleet_")
        of_job.add("fleet_checkpoints_in_progress", overview.under_way)
        if job.agent is not None:
            _add_agent(of_job, job.agent)
    of_job.add("fleet_checkpoint_failures_in_a_row", overview.failed_in_a_row)
    _add_newest(of_job, overview)
    if (recovery := overview.last_recovery) is not None:
        of_job.add("fleet_last_recovery_timestamp_seconds", recovery.started_at.timestamp())
        of_job.add("fleet_last_recovery_duration_seconds", recovery.duration_seconds)


def add_counts(families: Families, fleet: Fleet, counts: FleetCounts) -> None:
    """Add counts of events; zero totals are included, so that the first event is visible as an increase."""
    totals: defaultdict[tuple[str, str], list[CheckpointCount]] = defaultdict(list)
    for total in counts.checkpoints:
        totals[total.job, total.kind].append(total)
    for overview in fleet.jobs:
        for kind in CheckpointKind:
            job = families.of(overview.job.name)
            _add_totals(job, kind, totals[overview.job.name, kind.value])
    for failed in counts.failures:
        families.add("fleet_checkpoint_failures_last_hour", failed.count, failed.job, failed.kind, failed.reason)
    for recovered in counts.recoveries:
        families.add("fleet_recoveries_last_hour", recovered.count, recovered.job, recovered.reason)
    for waiting in counts.open_commands:
        labels = (waiting.job, waiting.kind, waiting.state)
        families.add("fleet_commands_open", waiting.count, *labels)
        families.add("fleet_oldest_open_command_timestamp_seconds", waiting.oldest_at.timestamp(), *labels)
    for ended in counts.ended_commands:
        families.add("fleet_commands_last_hour", ended.count, ended.job, ended.kind, ended.state)


def _add_driver(of_job: Of, job: JobRecord) -> None:
    supervised = str(job.is_supervised).lower()
    of_job.info("fleet_job_info", job.version, job.spark_version, job.host, str(job.pid), supervised)
    of_job.add("fleet_job_alive", job.is_alive)
    for state in JobState:
        of_job.add("fleet_job_state", state is job.state, state.value)
    of_job.add("fleet_generation", job.generation)
    of_job.add("fleet_driver_start_time_seconds", job.driver_started_at.timestamp())
    of_job.add("fleet_heartbeat_timestamp_seconds", job.heartbeat_at.timestamp())
    of_job.add("fleet_lease_seconds", job.lease_seconds)
    if job.ended_at is not None and (job.dead_since is None or job.state is JobState.FAILED):
        of_job.add("fleet_job_end_timestamp_seconds", job.ended_at.timestamp())


def _add_agent(of_job: Of, agent: AgentMetrics) -> None:
    of_job.add("fleet_agent_buffered_records", agent.buffered)
    of_job.add("fleet_agent_dropped_records_total", agent.dropped)
    of_job.add("fleet_agent_database_failures_total", agent.database_failures)


def _add_query(of_query: Of, query: QueryRecord) -> None:
    for state in (*QUERY_STATES, LOST_QUERY):
        of_query.add("fleet_query_state", state == query.state, state)
    of_query.add("fleet_query_epoch", query.epoch)
    of_query.add("fleet_query_restarts_total", query.restarts)
    of_query.add("fleet_query_input_rows_per_second", query.input_rows_per_second)
    of_query.add("fleet_query_backlog", query.backlog)
    of_query.add("fleet_query_rows_per_second", query.rows_per_second)
    of_query.add("fleet_query_state_rows", query.state_rows)
    of_query.add("fleet_query_watermark_lag_seconds", query.lag_seconds)
    if query.watermark is not None:
        of_query.add("fleet_query_watermark_timestamp_seconds", query.watermark.timestamp())


def _add_operator(of_operator: Of, operator: OperatorRecord) -> None:
    of_operator.add("fleet_operator_subtasks", operator.parallelism)
    of_operator.add("fleet_operator_epoch", operator.epoch)
    of_operator.add("fleet_blocked_events", operator.blocked_now)
    of_operator.add("fleet_closed_gateways", operator.closed)
    of_operator.add("fleet_mailbox_events", operator.mailbox)
    of_operator.add("fleet_events_blocked_total", operator.blocked_total)
    of_operator.add("fleet_blocked_seconds_total", operator.blocked_seconds)
    of_operator.add("fleet_control_event_durable_number", operator.applied_number)


def _add_totals(of_job: Of, kind: CheckpointKind, totals: Iterable[CheckpointCount]) -> None:
    counted = {total.state: total.count for total in totals}
    completed = sum(counted.get(state, 0) for state in _COMPLETED)
    of_job.add("fleet_checkpoints_completed_total", completed, kind.value)
    of_job.add("fleet_checkpoints_failed_total", counted.get(CheckpointState.FAILED.value, 0), kind.value)
    of_job.add("fleet_checkpoints_stored", counted.get(CheckpointState.COMPLETED.value, 0), kind.value)


def _add_newest(of_job: Of, overview: JobOverview) -> None:
    for record in overview.newest:
        if record.state is CheckpointState.COMPLETED:
            _add_completed(of_job, record)
            continue
        of_job.add("fleet_last_failed_checkpoint_id", record.id, record.kind.value)
        if record.finished_at is not None:
            at = record.finished_at.timestamp()
            of_job.add("fleet_last_failed_checkpoint_timestamp_seconds", at, record.kind.value)


def _add_completed(of_job: Of, record: CheckpointRecord) -> None:
    kind = record.kind.value
    of_job.add("fleet_last_checkpoint_id", record.id, kind)
    if record.finished_at is not None:
        of_job.add("fleet_last_checkpoint_timestamp_seconds", record.finished_at.timestamp(), kind)
    for measure in shown(CHECKPOINT, Place.METRIC):
        of_job.add(f"fleet_last_checkpoint_{measure.name}", measure.value(record), kind)
