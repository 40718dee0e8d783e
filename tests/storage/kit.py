"""Jobs, checkpoints and commands to put into a control database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, event

from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    CommandKind,
    CommandRequest,
    JobRegistration,
    OperatorRecord,
    QueryRecord,
)
from coord_control.storage.store import ControlStore

__all__ = ["JOB", "NOW", "checkpoint", "register", "request", "statements"]

JOB = "flights"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@contextmanager
def statements(database: str | None = None) -> Iterator[list[str]]:
    """What is asked of databases in this process meanwhile.

    Args:
        database: only of this one: the path of its file, or its name.
    """
    asked: list[str] = []

    def listen(connection: Connection, _cursor: object, statement: str, *_rest: object) -> None:
        if database in (None, connection.engine.url.database):
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", listen)


def register(store: ControlStore, name: str = JOB, generation: int = 1, **values: Any) -> None:
    """Register a driver with a query ``q`` and an operator ``op``; its lease outlives every test."""
    registration: dict[str, Any] = {
        "root": "/jobs",
        "folder": f"/jobs/{name}",
        "host": "here",
        "pid": 1,
        "lease_seconds": 3600.0,
        "queries": (QueryRecord(name="q", query_id="id"),),
        "operators": (OperatorRecord(uid="op", query="q", parallelism=2),),
    }
    store.jobs.register(JobRegistration(name=name, generation=generation, **{**registration, **values}))


def request(kind: CommandKind = CommandKind.TRIGGER_CHECKPOINT, **values: Any) -> CommandRequest:
    return CommandRequest(**{"job": JOB, "kind": kind, "requested_by": "ada", "requested_from": "laptop", **values})


def checkpoint(
    number: int,
    state: CheckpointState = CheckpointState.COMPLETED,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    **values: Any,
) -> CheckpointRecord:
    return CheckpointRecord(
        **{
            "job": JOB,
            "id": number,
            "kind": kind,
            "state": state,
            "triggered_at": NOW + timedelta(seconds=number),
            **values,
        }
    )
