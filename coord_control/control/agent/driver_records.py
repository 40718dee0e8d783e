"""Converts what the driver reports into database records."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from coord_control.control.progress import lag_seconds, rows_per_second, state_rows, watermark
from coord_control.ids import CheckpointKind
from coord_control.protocol.job_facts import JobFacts, OperatorFacts, QueryFacts, RecoveryFact
from coord_control.protocol.statistics import (
    CheckpointStatistics,
    CheckpointStatus,
    OperatorStatistics,
    QueryStatistics,
)
from coord_control.protocol.status import JobStatus, OperatorStatus, QueryStatus
from coord_control.storage.records import (
    CheckpointRecord,
    CheckpointState,
    EventType,
    GatewayRecord,
    LiveOperator,
    LiveQuery,
    LiveStatus,
    OperatorCheckpoint,
    OperatorRecord,
    QueryCheckpoint,
    QueryRecord,
    RecoveryRecord,
    SavepointRecord,
    SubtaskRecord,
)

__all__ = [
    "checkpoint_record",
    "live_status",
    "operator_records",
    "query_records",
    "recovery_record",
    "savepoint_record",
    "subtask_records",
]

_STATES = {
    CheckpointStatus.IN_PROGRESS: CheckpointState.IN_PROGRESS,
    CheckpointStatus.COMPLETED: CheckpointState.COMPLETED,
    CheckpointStatus.FAILED: CheckpointState.FAILED,
}


# --- checkpoints


def checkpoint_record(job: str, generation: int, each: CheckpointStatistics) -> CheckpointRecord:
    """Return the record of a checkpoint, with totals per query and operator."""
    triggered = _utc(each.triggered_at_seconds)
    finished = None
    if each.duration_seconds is not None:
        finished = triggered + datetime.timedelta(seconds=each.duration_seconds)
    return CheckpointRecord(
        job=job,
        id=each.checkpoint,
        kind=each.kind,
        state=CheckpointState.DISCARDED if each.discarded else _STATES[each.status],
        triggered_at=triggered,
        label=each.label,
        key=each.key,
        cause=each.cause,
        requested_by=each.requested_by,
        generation=generation,
        finished_at=finished,
        duration_seconds=each.duration_seconds,
        state_bytes=each.state_bytes,
        new_bytes=each.new_bytes,
        channel_bytes=each.channel_bytes,
        linked_bytes=each.linked_bytes,
        copied_bytes=each.copied_bytes,
        blocked_events=each.blocked_events,
        blocked_seconds=each.blocked_seconds,
        snapshot_seconds=each.snapshot_seconds,
        subtasks=each.subtasks,
        passed_subtasks=each.passed_subtasks,
        path=each.path,
        reason=None if each.reason is None else each.reason.code,
        message=each.message,
        metadata_bytes=each.metadata_bytes,
        queries=tuple(_query_part(job, query) for query in each.queries),
    )


def subtask_records(each: CheckpointStatistics) -> tuple[SubtaskRecord, ...]:
    """Return the records of a checkpoint's subtasks."""
    return tuple(
        SubtaskRecord(
            operator=operator.operator,
            subtask=subtask.subtask,
            passed_seconds=subtask.passed_seconds,
            state_bytes=subtask.state_bytes,
            blocked_events=subtask.blocked_events,
            blocked_seconds=subtask.blocked_seconds,
            down_bytes=subtask.down_bytes,
            up_bytes=subtask.up_bytes,
            ack_seconds=subtask.ack_seconds,
        )
        for operator in each.operators
        for subtask in operator.subtasks
    )


def savepoint_record(record: CheckpointRecord) -> SavepointRecord | None:
    """Return the savepoint record of a checkpoint, or None unless it is a completed savepoint."""
    if record.kind is not CheckpointKind.SAVEPOINT or record.state is not CheckpointState.COMPLETED:
        return None
    if record.path is None:
        return None
    epochs = {query.query: query.boundary for query in record.queries}
    numbers = {part.operator: part.applied_number for query in record.queries for part in query.operators}
    return SavepointRecord(
        path=record.path,
        job=record.job,
        checkpoint=record.id,
        label=record.label,
        size=record.state_bytes,
        created_at=record.finished_at,
        summary={"queries": epochs, "applied_numbers": numbers},
    )


def _query_part(job: str, query: QueryStatistics) -> QueryCheckpoint:
    return QueryCheckpoint(
        query=query.query,
        boundary=query.boundary,
        boundary_seconds=query.boundary_seconds,
        pin_seconds=query.pin_seconds,
        files=query.files,
        file_bytes=query.file_bytes,
        linked_bytes=query.linked_bytes,
        copied_bytes=query.copied_bytes,
        offsets=dict(query.offsets),
        operators=tuple(_operator_part(job, operator) for operator in query.operators),
    )


def _operator_part(job: str, operator: OperatorStatistics) -> OperatorCheckpoint:
    return OperatorCheckpoint(
        operator=operator.operator,
        asked_seconds=operator.asked_seconds,
        snapshot_seconds=operator.snapshot_seconds,
        coordinator_bytes=operator.coordinator_bytes,
        state_bytes=operator.state_bytes,
        channel_bytes=operator.channel_bytes,
        blocked_events=operator.blocked_events,
        blocked_seconds=operator.blocked_seconds,
        subtasks=len(operator.subtasks),
        passed_subtasks=operator.passed_subtasks,
        applied_number=None if operator.applied_events is None else operator.applied_events.get(job, 0),
    )


# --- the job


def query_records(queries: tuple[QueryFacts, ...], status: JobStatus) -> tuple[QueryRecord, ...]:
    """Return the records of the started queries."""
    now = {query.name: query for query in status.queries}
    return tuple(_query_record(query, now.get(query.name)) for query in queries)


def _query_record(facts: QueryFacts, status: QueryStatus | None) -> QueryRecord:
    return QueryRecord(
        name=facts.name,
        query_id=facts.query_id,
        lineage=facts.lineage,
        state=facts.state,
        epoch=None if status is None or status.committed < 0 else status.committed,
        restarts=0 if status is None else status.restarts,
        last_failure=(status.last_failure or "") if status is not None else "",
    )


def operator_records(operators: tuple[OperatorFacts, ...], durable: Mapping[str, int]) -> tuple[OperatorRecord, ...]:
    """Return the records of the declared operators; ``durable`` is the last durable control event by operator."""
    return tuple(
        OperatorRecord(
            uid=operator.uid,
            query=operator.query or "",
            parallelism=operator.parallelism,
            event_types=tuple(EventType(name=event.name, schema=dict(event.schema)) for event in operator.events),
            applied_number=durable.get(operator.uid, 0),
        )
        for operator in operators
    )


def live_status(status: JobStatus, checkpoint: int | None, metrics: str | None) -> LiveStatus:
    """Return the status that is part of a heartbeat; ``metrics`` is the address of the metrics."""
    return LiveStatus(
        queries=tuple(_live_query(query) for query in status.queries),
        operators=tuple(_live_operator(operator) for operator in status.operators),
        checkpoint=checkpoint,
        metrics=metrics or "",
    )


def _live_query(query: QueryStatus) -> LiveQuery:
    return LiveQuery(
        name=query.name,
        state=query.state,
        epoch=None if query.committed < 0 else query.committed,
        restarts=query.restarts,
        rows_per_second=rows_per_second(query.progress),
        lag_seconds=lag_seconds(query.progress),
        state_rows=state_rows(query.progress),
        watermark=watermark(query.progress),
    )


def _live_operator(operator: OperatorStatus) -> LiveOperator:
    return LiveOperator(
        uid=operator.uid,
        epoch=operator.epoch,
        blocked_now=sum(gateway.blocked for gateway in operator.gateways),
        blocked_total=sum(gateway.blocked_total for gateway in operator.gateways),
        blocked_seconds=sum(gateway.blocked_seconds for gateway in operator.gateways),
        mailbox=sum(gateway.mailbox for gateway in operator.gateways),
        closed=sum(not gateway.is_open for gateway in operator.gateways),
        gateways=tuple(
            GatewayRecord(
                subtask=gateway.subtask,
                is_open=gateway.is_open,
                blocked=gateway.blocked,
                blocked_total=gateway.blocked_total,
                blocked_seconds=gateway.blocked_seconds,
                mailbox=gateway.mailbox,
            )
            for gateway in operator.gateways
        ),
    )


def recovery_record(facts: JobFacts, fact: RecoveryFact) -> RecoveryRecord:
    """Return the record of a query's recovery."""
    return RecoveryRecord(
        job=facts.name,
        generation=fact.generation,
        cause=fact.cause.value,
        started_at=_utc(fact.started_at_seconds),
        query=fact.query,
        what=fact.what,
        from_epoch=None if fact.from_epoch < 0 else fact.from_epoch,
        from_checkpoint=fact.checkpoint,
        path=fact.path,
        duration_seconds=fact.duration_seconds,
        epochs_rerun=fact.epochs_again,
        message=fact.message,
    )


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
