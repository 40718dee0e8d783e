"""Converts a snapshot of a driver to families.

Samples of individual subtasks are only included on request, and for at most
:data:`coord_control.metrics.subtasks.MAX_SUBTASKS` of a job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from coord_control.control.backlog import backlog_of_sources, batch_parts_seconds, input_rows_per_second
from coord_control.control.progress import lag_seconds, rows_per_second, state_rows, watermark
from coord_control.ids import OperatorUid
from coord_control.metrics.driver_checkpoints import add_checkpoints
from coord_control.metrics.families import Families, Family, Of
from coord_control.metrics.live_samples import add_live_value
from coord_control.metrics.snapshot import AgentSnapshot, DriverSnapshot, EndpointSnapshot
from coord_control.metrics.subtasks import choose
from coord_control.protocol.job_facts import FeedStatus, QueryFacts, RecoveryCause
from coord_control.protocol.status import GatewayStatus, OperatorStatus, QueryStatus

__all__ = ["QUERY_STATES", "driver_families"]

QUERY_STATES: Final = ("running", "restarting", "paused", "stopped", "finished", "failed")


def driver_families(snapshot: DriverSnapshot, subtasks: int = 0) -> Iterable[Family]:
    """Return the families of a scrape.

    Args:
        subtasks: the maximum number of individual subtasks.
    """
    families = Families()
    job = families.of(snapshot.facts.name)
    _add_job(job, snapshot)
    for query in snapshot.queries:
        job.info("query_info", query.name, query.query_id, query.lineage)
    if snapshot.status is not None:
        for status in snapshot.status.queries:
            _add_query(job.of(status.name), status)
        _add_operators(job, snapshot, snapshot.status.operators, subtasks)
    for each in snapshot.live:
        value, at = json.loads(each.value), each.at_seconds
        add_live_value(job, each.name, value, version=each.version, at_seconds=at, uses=each.uses)
    add_checkpoints(job, snapshot.observed, snapshot.progress)
    _add_recoveries(job, snapshot)
    _add_endpoint(job, snapshot.endpoint)
    if snapshot.agent is not None:
        _add_agent(job, snapshot.agent)
    return families.collect()


def _add_job(job: Of, snapshot: DriverSnapshot) -> None:
    facts = snapshot.facts
    versions = (facts.version, facts.spark_version, facts.python_version, str(snapshot.protocol_version))
    job.info("driver_info", *versions, facts.host, str(facts.pid), facts.master)
    job.add("job_up", snapshot.is_up and snapshot.status is not None)
    job.add("generation", facts.generation)
    job.add("driver_start_time_seconds", facts.started_at_seconds)
    if snapshot.status is not None:
        job.add("slow_callbacks_total", snapshot.status.slow_callbacks)
    job.add("callbacks_waiting", snapshot.callbacks_waiting)
    job.add("group_commits_total", snapshot.writer.writes)
    job.add("group_commit_records_total", snapshot.writer.records)
    job.durations("group_commit_duration_seconds", snapshot.writer.durations)


def _add_query(query: Of, status: QueryStatus) -> None:
    for state in QUERY_STATES:
        query.add("query_state", state == status.state, state)
    query.add("query_epoch", status.committed if status.committed >= 0 else None)
    query.add("query_restarts_total", status.restarts)
    query.add("query_batches_total", status.batches)
    query.add("query_rows_total", status.rows)
    query.add("query_batch_seconds_total", status.batch_seconds)
    query.add("query_input_rows_per_second", input_rows_per_second(status.progress))
    query.add("query_processed_rows_per_second", rows_per_second(status.progress))
    for source, waiting in backlog_of_sources(status.progress).items():
        query.add("query_backlog", waiting, source)
    for part, seconds in batch_parts_seconds(status.progress).items():
        query.add("query_batch_part_seconds", seconds, part)
    query.add("query_state_rows", state_rows(status.progress))
    query.add("query_watermark_lag_seconds", lag_seconds(status.progress))
    if (mark := watermark(status.progress)) is not None:
        query.add("query_watermark_timestamp_seconds", mark.timestamp())


def _add_operators(job: Of, snapshot: DriverSnapshot, operators: tuple[OperatorStatus, ...], subtasks: int) -> None:
    for status in operators:
        operator = job.of(status.query, status.uid)
        uid = OperatorUid(status.uid)
        operator.add("operator_subtasks", snapshot.parallelism.get(uid))
        operator.add("operator_epoch", status.epoch)
        _add_blocked(operator, status)
        _add_totals(operator, status)
        if uid in snapshot.feeds:
            _add_feed(operator, snapshot, uid, snapshot.feeds[uid])
    if subtasks:
        chosen, left_out = choose(((each.query, each.uid, each.gateways) for each in operators), subtasks)
        for query, name, gateway in chosen:
            _add_subtask(job.of(query, name, str(gateway.subtask)), gateway)
        job.add("subtasks_left_out", left_out)


def _add_blocked(operator: Of, status: OperatorStatus) -> None:
    gateways = status.gateways
    operator.add("blocked_events", status.blocked_by_epochs, "epoch")
    operator.add("blocked_events", sum(status.blocked_by_checkpoints.values()), "checkpoint")
    operator.add("blocked_checkpoint_id", min(status.blocked_by_checkpoints, default=None))
    operator.add("blocked_subtasks", sum(gateway.blocked > 0 for gateway in gateways))
    operator.add("blocked_age_seconds", max((gateway.blocked_age_seconds for gateway in gateways), default=0.0))
    operator.add("closed_gateways", sum(not gateway.is_open for gateway in gateways))
    operator.add("events_blocked_total", status.blocked_events_total)
    operator.add("blocked_seconds_total", status.blocked_seconds_total)
    operator.add("mailbox_events", sum(gateway.mailbox for gateway in gateways))
    operator.add("outbox_events", sum(gateway.outbox for gateway in gateways))
    operator.add("channel_bytes", sum(gateway.waiting_bytes for gateway in gateways))
    operator.add("channel_max_bytes", max((gateway.waiting_bytes for gateway in gateways), default=0))


def _add_totals(operator: Of, status: OperatorStatus) -> None:
    totals = status.totals
    operator.add("epochs_total", totals.epochs)
    operator.add("epoch_begins_recorded_total", totals.begins_recorded)
    operator.add("acks_total", totals.acks)
    operator.add("acks_recorded_total", totals.acks_recorded)
    operator.add("events_total", totals.events_down, "down")
    operator.add("events_total", totals.events_up, "up")
    operator.add("rows_total", totals.rows_in, "in")
    operator.add("rows_total", totals.rows_out, "out")
    operator.add("nondeterministic_subtasks_total", totals.nondeterministic)
    operator.add("attempts_refused_total", totals.stale_refused)
    operator.add("attempts_failed_total", totals.attempts_failed)
    operator.durations("epoch_begin_duration_seconds", totals.begin)
    operator.durations("epoch_ack_duration_seconds", totals.ack)
    operator.durations("epoch_settle_duration_seconds", totals.settle)
    operator.durations("epoch_duration_seconds", totals.epoch)
    operator.durations("coordinator_snapshot_duration_seconds", totals.snapshot)


def _add_feed(operator: Of, snapshot: DriverSnapshot, uid: OperatorUid, feed: FeedStatus) -> None:
    operator.add("control_event_number", feed.applied)
    operator.add("control_event_durable_number", feed.durable)
    operator.add("control_events_waiting", feed.waiting)
    counted = {outcome: count for (of, outcome), count in snapshot.observed.events.items() if of == uid}
    for outcome in ("applied", "refused"):
        operator.add("control_events_total", counted.get(outcome, 0), outcome)


def _add_subtask(subtask: Of, gateway: GatewayStatus) -> None:
    subtask.add("subtask_gateway_open", gateway.is_open)
    subtask.add("subtask_blocked_events", gateway.blocked)
    subtask.add("subtask_blocked_age_seconds", gateway.blocked_age_seconds)
    subtask.add("subtask_events_blocked_total", gateway.blocked_total)
    subtask.add("subtask_blocked_seconds_total", gateway.blocked_seconds)
    subtask.add("subtask_mailbox_events", gateway.mailbox)
    subtask.add("subtask_outbox_events", gateway.outbox)
    subtask.add("subtask_channel_bytes", gateway.waiting_bytes)


def _add_recoveries(job: Of, snapshot: DriverSnapshot) -> None:
    observed = snapshot.observed
    for query in _names(snapshot.queries):
        for cause in RecoveryCause:
            job.add("recoveries_total", observed.recoveries.get((query, cause.value), 0), query, cause.value)
        job.add("recovery_epochs_rerun_total", observed.rerun.get(query, 0), query)
        if (restored := observed.restored.get(query)) is not None:
            job.add("last_restored_checkpoint_id", restored.checkpoint, query)
            job.add("last_restored_checkpoint_timestamp_seconds", restored.at_seconds, query)
    for cause, durations in observed.recovery_durations.items():
        job.durations("recovery_duration_seconds", durations, cause.value)
    job.add("recoveries_in_progress", snapshot.recoveries_under_way)


def _names(queries: tuple[QueryFacts, ...]) -> tuple[str, ...]:
    return tuple(query.name for query in queries)


def _add_endpoint(job: Of, endpoint: EndpointSnapshot) -> None:
    job.add("endpoint_connections", endpoint.authenticated, "authenticated")
    job.add("endpoint_connections", endpoint.strangers, "stranger")
    job.add("endpoint_connections_accepted_total", endpoint.accepted)
    job.add("endpoint_frames_total", endpoint.frames_in, "in")
    job.add("endpoint_frames_total", endpoint.frames_out, "out")
    job.add("endpoint_answers_dropped_total", endpoint.dropped_answers)
    for reason, count in endpoint.rejected.items():
        job.add("endpoint_rejections_total", count, reason)
    job.add("endpoint_held_bytes", endpoint.held_bytes)


def _add_agent(job: Of, agent: AgentSnapshot) -> None:
    for (kind, outcome), count in agent.outcomes.items():
        job.add("commands_total", count, kind, outcome)
    job.add("commands_in_progress", agent.under_way)
    job.add("agent_connected", agent.is_connected)
    job.add("agent_database_failures_total", agent.numbers.database_failures)
    job.add("agent_buffered_records", agent.numbers.buffered)
    job.add("agent_dropped_records_total", agent.numbers.dropped)
    if agent.numbers.last_contact is not None:
        job.add("agent_last_contact_timestamp_seconds", agent.numbers.last_contact.timestamp())
