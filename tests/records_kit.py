"""Records of a control database, and parts of checkpoints: made by keyword, with defaults for what does not matter.

The job is ``flights``, its query ``q``, its operator ``op``; its times are at noon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from coord_control.ids import CheckpointKind, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.statistics import OperatorStatistics, QueryStatistics, SubtaskTotals
from coord_control.storage.records import (
    CheckpointRecord,
    CheckpointState,
    CommandKind,
    CommandRecord,
    CommandRequest,
    CommandState,
    JobRecord,
    JobRegistration,
    JobState,
    OperatorRecord,
    QueryRecord,
    RecoveryRecord,
    SubtaskRecord,
)

__all__ = [
    "JOB",
    "NOON",
    "checkpoint",
    "command",
    "job",
    "operator_part",
    "query_part",
    "recovery",
    "registration",
    "request",
    "subtask_part",
    "with_subtasks",
]

JOB: Final = "flights"
NOON: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def registration(name: str = JOB, **values: Any) -> JobRegistration:
    """Return what the first driver of a job reports; its lease outlives every test."""
    defaults = _driver_of(name) | {
        "lease_seconds": 3600.0,
        "queries": (QueryRecord(name="q", query_id="id"),),
        "operators": (OperatorRecord(uid="op", query="q", parallelism=2),),
    }
    return JobRegistration(**defaults | values)


def job(name: str = JOB, **values: Any) -> JobRecord:
    """Return a job whose driver was started at noon, and is alive."""
    times = dict.fromkeys(("created_at", "driver_started_at", "heartbeat_at"), NOON)
    defaults = _driver_of(name) | times | {"state": JobState.RUNNING, "lease_seconds": 10.0, "is_alive": True}
    return JobRecord(**defaults | values)


def _driver_of(job: str) -> dict[str, Any]:
    return {"name": job, "root": "/jobs", "folder": f"/jobs/{job}", "generation": 1, "host": "here", "pid": 4711}


def checkpoint(
    number: int = 1,
    state: CheckpointState = CheckpointState.COMPLETED,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    **values: Any,
) -> CheckpointRecord:
    """Return a checkpoint that was triggered ``number`` seconds after noon."""
    defaults: dict[str, Any] = {"job": JOB, "triggered_at": NOON + timedelta(seconds=number)}
    return CheckpointRecord(id=number, state=state, kind=kind, **defaults | values)


def recovery(**values: Any) -> RecoveryRecord:
    """Return a recovery of a job whose query failed."""
    defaults: dict[str, Any] = {"job": JOB, "generation": 1, "cause": "query_failed", "started_at": NOON}
    return RecoveryRecord(**defaults | values)


def request(kind: CommandKind = CommandKind.TRIGGER_CHECKPOINT, **values: Any) -> CommandRequest:
    """Return a request of ada's."""
    return CommandRequest(**{"job": JOB, "kind": kind, "requested_by": "ada", "requested_from": "laptop"} | values)


def command(kind: CommandKind = CommandKind.TRIGGER_CHECKPOINT, **values: Any) -> CommandRecord:
    """Return a command of ada's that no driver has claimed yet."""
    defaults: dict[str, Any] = {
        "id": "c1",
        "job": JOB,
        "kind": kind,
        "key": "k",
        "payload": {},
        "state": CommandState.PENDING,
        "requested_by": "ada",
        "requested_from": "laptop",
        "requested_at": NOON,
        "expires_at": NOON + timedelta(minutes=10),
    }
    return CommandRecord(**defaults | values)


def query_part(query: str = "q", **values: Any) -> QueryStatistics:
    return QueryStatistics(query=QueryName(query), **values)


def operator_part(operator: str = "op", **values: Any) -> OperatorStatistics:
    """An operator without its subtasks; ``values``: its own, and totals of its subtasks."""
    totals = {each.name: values.pop(each.name) for each in fields(SubtaskTotals) if each.name in values}
    return OperatorStatistics(operator=OperatorUid(operator), totals=SubtaskTotals(**totals), **values)


def subtask_part(subtask: int = 0, operator: str = "op", **values: Any) -> SubtaskRecord:
    """A subtask that has not passed, unless ``values`` say so."""
    return SubtaskRecord(operator=operator, subtask=SubtaskIndex(subtask), **{"passed_seconds": None, **values})


def with_subtasks(record: CheckpointRecord, subtasks: Sequence[SubtaskRecord]) -> CheckpointRecord:
    """The record with these subtasks, in an operator of the first query where it does not have theirs."""
    found = {
        uid: tuple(each for each in subtasks if each.operator == uid) for uid in {each.operator for each in subtasks}
    }
    queries = [
        replace(
            query,
            operators=tuple(
                replace(operator, subtasks=found.pop(operator.operator, ())) for operator in query.operators
            ),
        )
        for query in record.queries or (query_part(),)
    ]
    more = tuple(OperatorStatistics(OperatorUid(uid), subtasks=parts) for uid, parts in found.items())
    queries[0] = replace(queries[0], operators=(*queries[0].operators, *more))
    return replace(record, queries=tuple(queries))
