"""Converts what the driver reports into database records."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Final

from coord_control.control.backlog import backlog, backlog_of_partitions, input_rows_per_second
from coord_control.control.progress import lag_seconds, rows_per_second, state_rows, watermark
from coord_control.ids import CheckpointKind
from coord_control.protocol.job_facts import JobFacts, LiveFacts, OperatorFacts, QueryFacts, RecoveryFact
from coord_control.protocol.records import LiveChanged
from coord_control.protocol.statistics import CheckpointStatistics, CheckpointStatus
from coord_control.protocol.status import JobStatus, OperatorStatus, QueryStatus
from coord_control.storage.records import (
    BlockedRecord,
    CheckpointRecord,
    CheckpointState,
    EventType,
    GatewayRecord,
    LiveChangeRecord,
    LiveOperator,
    LiveQuery,
    LiveStatus,
    LiveValueRecord,
    OperatorRecord,
    QueryRecord,
    RecoveryRecord,
    RequestType,
    SavepointRecord,
)

__all__ = [
    "checkpoint_record",
    "live_change_record",
    "live_status",
    "live_value_record",
    "operator_records",
    "query_records",
    "recovery_record",
    "savepoint_record",
]

#: Partitions of a query with the largest backlogs that are part of a heartbeat.
_MOST_PARTITIONS: Final = 10

_STATES = {
    CheckpointStatus.IN_PROGRESS: CheckpointState.IN_PROGRESS,
    CheckpointStatus.COMPLETED: CheckpointState.COMPLETED,
    CheckpointStatus.FAILED: CheckpointState.FAILED,
}


# --- checkpoints


def checkpoint_record(job: str, generation: int, each: CheckpointStatistics) -> CheckpointRecord:
    """Return the record of a checkpoint."""
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
        generation=generation,
        finished_at=finished,
        reason=None if each.reason is None else each.reason.code,
        queries=each.queries,
        **each.totals(),
    )


def savepoint_record(record: CheckpointRecord) -> SavepointRecord | None:
    """Return the savepoint record of a checkpoint, or None unless it is a completed savepoint."""
    if record.kind is not CheckpointKind.SAVEPOINT or record.state is not CheckpointState.COMPLETED:
        return None
    if record.path is None:
        return None
    numbers = {
        str(part.operator): part.applied_events.get(record.job, 0)
        for query in record.queries
        for part in query.operators
        if part.applied_events is not None
    }
    return SavepointRecord(
        path=record.path,
        job=record.job,
        checkpoint=record.id,
        label=record.label,
        size=record.state_bytes,
        created_at=record.finished_at,
        applied_numbers=numbers,
    )


# --- the job


def query_records(queries: tuple[QueryFacts, ...]) -> tuple[QueryRecord, ...]:
    """Return the records of the started queries."""
    return tuple(
        QueryRecord(
            name=query.name,
            query_id=query.query_id,
            lineage=query.lineage,
            state=query.status.state,
            epoch=None if query.status.committed < 0 else query.status.committed,
            restarts=query.status.restarts,
            last_failure=query.status.last_failure or "",
        )
        for query in queries
    )


def operator_records(operators: tuple[OperatorFacts, ...], durable: Mapping[str, int]) -> tuple[OperatorRecord, ...]:
    """Return the records of the declared operators; ``durable`` is the last durable control event by operator."""
    return tuple(
        OperatorRecord(
            uid=operator.uid,
            query=operator.query or "",
            parallelism=operator.parallelism,
            event_types=tuple(EventType(name=event.name, schema=dict(event.schema)) for event in operator.events),
            request_types=tuple(
                RequestType(name=each.name, schema=dict(each.schema), answer=dict(each.answer))
                for each in operator.requests
            ),
            applied_number=durable.get(operator.uid, 0),
        )
        for operator in operators
    )


def live_value_record(facts: LiveFacts) -> LiveValueRecord:
    """Return the record of a live value."""
    return LiveValueRecord(
        name=facts.name,
        version=facts.version,
        value=json.loads(facts.value),
        by=facts.by,
        at=_utc(facts.at_seconds),
        schema=dict(facts.schema),
        uses={str(query): use for query, use in facts.uses.items()},
    )


def live_change_record(change: LiveChanged) -> LiveChangeRecord:
    """Return the record of a change of a live value."""
    return LiveChangeRecord(
        name=change.name,
        version=change.version,
        value=json.loads(change.value),
        by=change.by,
        at=_utc(change.at_seconds),
    )


def live_status(status: JobStatus, checkpoint: int | None, metrics: str | None, spark_ui: str) -> LiveStatus:
    """Return the status that is part of a heartbeat.

    Args:
        metrics: the address of the metrics, or None.
        spark_ui: the address of Spark's page, or an empty text.
    """
    return LiveStatus(
        queries=tuple(_live_query(query) for query in status.queries),
        operators=tuple(_live_operator(operator) for operator in status.operators),
        checkpoint=checkpoint,
        metrics=metrics or "",
        spark_ui=spark_ui,
    )


def _live_query(query: QueryStatus) -> LiveQuery:
    return LiveQuery(
        name=query.name,
        state=query.state,
        epoch=None if query.committed < 0 else query.committed,
        restarts=query.restarts,
        input_rows_per_second=input_rows_per_second(query.progress),
        rows_per_second=rows_per_second(query.progress),
        backlog=backlog(query.progress),
        backlog_of_partitions=_largest(backlog_of_partitions(query.progress)),
        lag_seconds=lag_seconds(query.progress),
        state_rows=state_rows(query.progress),
        watermark=watermark(query.progress),
        rows=query.rows,
        output_rows=query.output_rows,
        table=query.target.table or "",
        columns=dict(query.target.columns),
    )


def _largest(parts: Mapping[str, int]) -> dict[str, int]:
    waiting = sorted((name for name in parts if parts[name]), key=lambda name: parts[name], reverse=True)
    return {name: parts[name] for name in waiting[:_MOST_PARTITIONS]}


def _live_operator(operator: OperatorStatus) -> LiveOperator:
    return LiveOperator(
        uid=operator.uid,
        epoch=operator.epoch,
        blocked_now=sum(gateway.blocked for gateway in operator.gateways),
        blocked_total=sum(gateway.blocked_total for gateway in operator.gateways),
        blocked_seconds=sum(gateway.blocked_seconds for gateway in operator.gateways),
        blocked_by=_blocked_by(operator),
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


def _blocked_by(operator: OperatorStatus) -> dict[str, BlockedRecord]:
    events, seconds = operator.checkpoint_blocked_events_total, operator.checkpoint_blocked_seconds_total
    return {
        "epoch": BlockedRecord(
            now=operator.blocked_by_epochs,
            events=operator.blocked_events_total - events,
            seconds=max(0.0, operator.blocked_seconds_total - seconds),
        ),
        "checkpoint": BlockedRecord(now=sum(operator.blocked_by_checkpoints.values()), events=events, seconds=seconds),
    }


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
