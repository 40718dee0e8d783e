"""Opens the two kinds of databases: addresses without passwords, and configured SQLAlchemy engines.

SQLite commits are durable, even if the machine crashes: WAL with ``synchronous=FULL`` syncs every commit. A writing
transaction takes the write lock when it begins, so that it never fails half-way because of another writer. PostgreSQL
is used at READ COMMITTED, and rows that decide something are locked.

Threads: an engine may be used by any thread; each transaction has its own connection.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from coord_control.errors import DatabaseDriverMissing, DatabaseUrlInvalid
from coord_control.storage.records import to_json

__all__ = ["WRITE", "display", "make_engine", "parse_url", "sqlite_file"]

#: Connection option: its transactions write.
WRITE: Final = "coord_write"

#: How long a transaction waits for another writer. A hundred concurrent writers take a few seconds on a slow disk; a
#: transaction that stays open is reported.
_BUSY_SECONDS: Final = 30.0

_CONNECT_SECONDS: Final = 5
_LOCK_MILLISECONDS: Final = 15_000
_STATEMENT_MILLISECONDS: Final = 60_000

#: Parameters of an address that may contain secrets, or the path of one.
_HIDDEN: Final = ("password", "sslpassword", "passfile", "sslkey", "service", "options")

_POSTGRESQL: Final = ("postgresql", "postgres", "postgresql+psycopg")


def parse_url(text: str, password: str | None = None) -> URL:
    """Return the address for SQLAlchemy, with ``password`` unless it contains one.

    Raises:
        DatabaseUrlInvalid: it is neither SQLite's nor PostgreSQL's.
        DatabaseDriverMissing: it is PostgreSQL's, and psycopg is not installed.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise DatabaseUrlInvalid(text.partition(":")[0] + ":...", "it is not an address") from None
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise DatabaseUrlInvalid(display(url), "it names no file, and several processes must see the same one")
        return URL.create("sqlite", database=str(Path(url.database).expanduser()))
    if url.drivername not in _POSTGRESQL:
        raise DatabaseUrlInvalid(display(url), f"{url.drivername!r} is neither sqlite nor postgresql")
    if importlib.util.find_spec("psycopg") is None:
        raise DatabaseDriverMissing(display(url), "psycopg")
    if not url.database:
        raise DatabaseUrlInvalid(display(url), "it names no database")
    in_query = url.query.get("password")
    if in_query is not None:  # also accepted in the query string
        url = url.difference_update_query(["password"])
        password = in_query if isinstance(in_query, str) else in_query[-1]
    if password is not None and url.password is None:
        url = url.set(password=password)
    return url.set(drivername="postgresql+psycopg")


def display(url: URL) -> str:
    """Return the address without secrets, for messages and logs."""
    hidden = {key: "..." for key in url.query if key in _HIDDEN}
    shown = url.update_query_dict(hidden) if hidden else url
    shown = shown.set(drivername=shown.drivername.partition("+")[0])
    return shown.render_as_string(hide_password=True)


def sqlite_file(url: URL) -> Path | None:
    """Return the file of an embedded database, or None for PostgreSQL."""
    return Path(url.database or "") if url.drivername == "sqlite" else None


def make_engine(url: URL, application: str) -> Engine:
    """Return an engine; it connects on first use."""
    if url.drivername == "sqlite":
        # Connections are cheap, and writers wait for each other anyway.
        engine = create_engine(
            url,
            connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
            pool_size=4,
            max_overflow=28,
            json_serializer=_json_text,
            hide_parameters=True,
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(
        url,
        # Few connections per process, because a thousand drivers may share one server.
        pool_size=1,
        max_overflow=9,
        pool_pre_ping=True,
        pool_recycle=1800,
        isolation_level="READ COMMITTED",
        json_serializer=_json_text,
        hide_parameters=True,
        connect_args={
            "application_name": application[:63],
            "connect_timeout": _CONNECT_SECONDS,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
            "options": f"-c lock_timeout={_LOCK_MILLISECONDS} -c statement_timeout={_STATEMENT_MILLISECONDS} "
            "-c timezone=UTC -c idle_in_transaction_session_timeout=120000",
        },
    )


def _json_text(value: object) -> str:
    # ASCII, so that neither database refuses any text of a user.
    return json.dumps(to_json(value), separators=(",", ":"), allow_nan=False)


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # explicit BEGIN, see below
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        _enter_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA cache_size=-64000")  # at most; ten thousand rows of a long history are 40 MB of pages
    connection.execute("PRAGMA journal_size_limit=16777216")


def _enter_wal(connection: sqlite3.Connection) -> None:
    # Switching to WAL needs exclusive access for a moment, and does not always wait for it.
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
                return  # a read-only file of another user: leave its mode unchanged
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    is_writing = connection.get_execution_options().get(WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")
