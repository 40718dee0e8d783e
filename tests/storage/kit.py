"""Control databases: jobs to put into them, what is asked of them, and the tables of the next release."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Connection, Engine, event

from coord_control.storage import schema
from coord_control.storage.store import ControlStore
from tests.records_kit import JOB, registration

__all__ = ["NEXT_VERSION", "become_next_release", "register", "statements"]

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
    """What is asked of databases meanwhile.

    Args:
        database: by all threads of this process, of this one: the path of its file, or its name. None: by this thread,
            of all, because agents of earlier tests may still be saying goodbye to theirs.
    """
    asked: list[str] = []
    thread = threading.get_ident()

    def listen(connection: Connection, _cursor: object, statement: str, *_rest: object) -> None:
        is_meant = threading.get_ident() == thread if database is None else connection.engine.url.database == database
        if is_meant:
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", listen)


def register(store: ControlStore, name: str = JOB, generation: int = 1, **values: Any) -> None:
    """Register a driver with a query ``q`` and an operator ``op``; its lease outlives every test."""
    store.jobs.register(registration(name, generation=generation, **values))
