"""Jobs, checkpoints and commands to put into a control database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Connection, Engine, event

from coord_control.storage import schema
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

__all__ = ["JOB", "NEXT_VERSION", "NOW", "become_next_release", "checkpoint", "register", "request", "statements"]

JOB = "flights"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

#: The tables of the release that ``become_next_release`` makes up: jobs have a colour.
NEXT_VERSION: Final = f"{int(schema.NEWEST) + 1:04}"
_NEXT_MIGRATION: Final = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT_VERSION}"
down_revision = "{schema.NEWEST}"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("colour", sa.String(16)))
    op.execute("UPDATE jobs SET colour = 'red'")
"""


def become_next_release(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the migrations of a release after this one; they are put into ``folder``."""
    shutil.copytree(schema.MIGRATIONS, folder)
    (folder / "versions" / f"v{NEXT_VERSION}_colour.py").write_text(_NEXT_MIGRATION, encoding="utf-8")
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    monkeypatch.setattr(schema, "NEWEST", NEXT_VERSION)


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
