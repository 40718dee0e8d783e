"""Translates errors of SQLAlchemy and database drivers to errors of this package, with fault and retry.

Messages never contain values of statements, which may be payloads.

Threads: any.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final, TypeAlias

from sqlalchemy import exc

from coord_control.errors import (
    CoordControlError,
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseForbidden,
    DatabaseFull,
    DatabaseReadOnly,
    DatabaseUnavailable,
    RecordRefused,
)

__all__ = ["translated"]

_Error: TypeAlias = Callable[[str, object], CoordControlError]

_SQLITE: Final[dict[int, _Error]] = {
    sqlite3.SQLITE_PERM: DatabaseReadOnly,
    sqlite3.SQLITE_BUSY: DatabaseBusy,
    sqlite3.SQLITE_LOCKED: DatabaseBusy,
    sqlite3.SQLITE_READONLY: DatabaseReadOnly,
    sqlite3.SQLITE_FULL: DatabaseFull,
    sqlite3.SQLITE_CORRUPT: DatabaseDamaged,
    sqlite3.SQLITE_NOTADB: DatabaseDamaged,
    sqlite3.SQLITE_CONSTRAINT: RecordRefused,
    sqlite3.SQLITE_TOOBIG: RecordRefused,
    sqlite3.SQLITE_MISMATCH: RecordRefused,
}

#: By prefix of SQLSTATE, longest first.
_POSTGRESQL: Final[tuple[tuple[str, _Error], ...]] = (
    ("53100", DatabaseFull),
    ("25006", DatabaseReadOnly),
    ("42501", DatabaseForbidden),
    ("55P03", DatabaseBusy),  # lock timeout
    ("57014", DatabaseBusy),  # statement timeout
    ("42P01", DatabaseDamaged),  # a missing table, although the version is right
    ("42703", DatabaseDamaged),
    ("22", RecordRefused),
    ("23", RecordRefused),
    ("28", DatabaseForbidden),
    ("3D", DatabaseForbidden),  # no such database
    ("40", DatabaseBusy),  # deadlocks
    ("53", DatabaseBusy),  # too many connections, no memory
    ("54", RecordRefused),
    ("XX", DatabaseDamaged),
)

#: While connecting, PostgreSQL's client library has no SQLSTATE, only the server's message.
_NOT_ALLOWED: Final = (
    "authentication failed",
    "no pg_hba.conf entry",
    "does not exist",
    "no password supplied",
)


def translated(error: exc.SQLAlchemyError, database: str) -> CoordControlError:
    """Return the error of this package for ``error``; ``database`` is the address without secrets."""
    if isinstance(error, exc.TimeoutError):
        return DatabaseBusy(database, "all its connections are in use in this process")
    cause = error.orig if isinstance(error, exc.StatementError) else None
    if isinstance(cause, ValueError):
        return RecordRefused(database, cause)
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause, database)
    if isinstance(error, exc.DBAPIError):
        return _of_postgresql(cause, database)
    return RecordRefused(database, type(error).__name__)


def _of_sqlite(cause: sqlite3.Error, database: str) -> CoordControlError:
    code: int | None = getattr(cause, "sqlite_errorcode", None)
    if code is None:  # raised by Python before SQLite was called
        return RecordRefused(database, cause)
    kind = _SQLITE.get(code & 0xFF, DatabaseUnavailable)
    return kind(database, cause)


def _of_postgresql(cause: BaseException | None, database: str) -> CoordControlError:
    state: str | None = getattr(cause, "sqlstate", None)
    text = [line.strip() for line in str(cause).splitlines() if line.strip()]
    # The first line only: it has the cause; the next ones contain advice, or values of the row.
    first = text[0] if text else state or type(cause).__name__
    if state is not None:
        kind = next((kind for prefix, kind in _POSTGRESQL if state.startswith(prefix)), DatabaseUnavailable)
        return kind(database, first)
    refusal = next((line for line in text if any(words in line for words in _NOT_ALLOWED)), None)
    return DatabaseUnavailable(database, first) if refusal is None else DatabaseForbidden(database, refusal)
