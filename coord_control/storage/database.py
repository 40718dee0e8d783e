"""One control database, and transactions on it.

``Database`` connects on first use, and keeps no state in its connections: after an outage the next transaction works
again. All errors of transactions are errors of this package (``translation``). Connections to an embedded database keep
its file open, so each transaction looks whether another file has taken its place: after a dump was put there, or an
empty database was made.

Threads: everything may be called from any thread; a ``Transaction`` belongs to the thread that opened it. A forked
process must make its own ``Database``.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, CursorResult, Executable, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from coord_control.errors import DatabaseNotFound, DatabaseReadOnly, RecordRefused
from coord_control.storage import schema
from coord_control.storage.engine import WRITE, display, make_engine, parse_url, sqlite_file
from coord_control.storage.translation import translated

__all__ = ["Database", "Transaction"]

_File: TypeAlias = tuple[int, int]  # device and number: renamed files keep them, new ones have others
_SERVER: Final = (0, 0)
_FILE_MODE = 0o600  # requests to jobs are private to the user
_FOLDER_MODE = 0o700


class Transaction:
    """An open transaction; it commits when its block ends without an error."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.dialect = connection.dialect.name
        self._now: datetime | None = None

    @property
    def now(self) -> datetime:
        """The database's time, read once per transaction."""
        if self._now is None:
            self._now = self._clock()
        return self._now

    def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        return self.connection.execute(statement, parameters)

    def insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """Return an INSERT that supports ON CONFLICT."""
        return postgresql.insert(table) if self.dialect == "postgresql" else sqlite.insert(table)

    def notify(self, channel: str, payload: str) -> None:
        """Notify listeners when this transaction commits; on SQLite they poll instead."""
        if self.dialect == "postgresql":
            self.connection.execute(select(func.pg_notify(channel, payload)))

    def _clock(self) -> datetime:
        if self.dialect == "postgresql":
            now: datetime = self.connection.execute(select(func.clock_timestamp())).scalar_one()
            return now.astimezone(UTC)
        return datetime.now(UTC)


class Database:
    """A control database.

    Args:
        url: ``sqlite:////path`` or ``postgresql://user@host/name``.
        application: name of this program in the server's list of connections.
        password: of the user, unless ``url`` has one.

    Raises:
        DatabaseUrlInvalid, DatabaseDriverMissing: the address cannot be used.
    """

    def __init__(self, url: str, *, application: str = "coord-control", password: str | None = None) -> None:
        self.url = parse_url(url, password)
        self.display_url = display(self.url)
        self.file = sqlite_file(self.url)
        self.dialect = "sqlite" if self.file is not None else "postgresql"
        self._engine = make_engine(self.url, application)
        self._lock = threading.Lock()
        self._ready: _File | None = None  # the file whose tables were found to be right
        self._open: _File | None = None  # the one that connections have open

    def close(self) -> None:
        """Close idle connections; the next transaction opens new ones."""
        self._engine.dispose()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a transaction that writes; an empty database gets its tables first.

        Raises:
            DatabaseUnavailable: try again later; also its subclasses DatabaseBusy and DatabaseFull.
            DatabaseError: the other subclasses: the database needs attention.
            SchemaMismatch: its tables are not those of this release.
        """
        file = self._current_file()
        if file is None and self._ready is not None:  # not made again: it may be about to be restored
            self._check_file()
        if self._ready is None or self._ready != file:
            self._make_ready()
        with self._begin(is_writing=True) as connection:
            yield Transaction(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a transaction that only reads, and creates nothing.

        Raises:
            DatabaseNotFound: there is no such file.
            DatabaseError: as with ``transaction``.
            SchemaMismatch: there are no tables, or not those of this release.
        """
        file = self._current_file()
        if self._ready is None or self._ready != file:
            self.check_schema()
            self._ready = file
        with self._begin(is_writing=False) as connection:
            yield Transaction(connection)

    def check_schema(self) -> None:
        """Check that the tables are those of this release, without changes.

        Raises:
            DatabaseNotFound, DatabaseError, SchemaMismatch: as with ``reading``.
        """
        self._check_file()
        with self._begin(is_writing=False) as connection:
            schema.check(connection, self.display_url)

    def schema_version(self) -> str | None:
        """Return the version of the tables, or None if there are none."""
        if self.file is not None and not self.file.exists():
            return None
        with self._begin(is_writing=False) as connection:
            return schema.version(connection)

    def upgrade(self) -> None:
        """Upgrade the tables to the version of this release, in one transaction; create them if there are none.

        Raises:
            SchemaMismatch: they are newer, or older than the first release.
        """
        self._make_file()
        with self._begin(is_writing=True) as connection:
            schema.upgrade(connection, self.display_url)

    @contextlib.contextmanager
    def _begin(self, *, is_writing: bool) -> Iterator[Connection]:
        if (file := self._current_file()) != self._open:
            self._engine.dispose()
            self._open = file
        try:
            with self._engine.connect() as connection:
                connection.execution_options(**{WRITE: is_writing})
                with connection.begin():
                    yield connection
        except SQLAlchemyError as error:
            raise translated(error, self.display_url) from error
        except OverflowError as error:  # of Python's driver of SQLite, for a number of more than 64 bits
            raise RecordRefused(self.display_url, error) from error

    def _make_ready(self) -> None:
        with self._lock:
            self._make_file()
            file = self._current_file()
            if file is not None and self._ready == file:
                return
            with self._begin(is_writing=False) as connection:
                is_made = schema.version(connection) is not None
                if is_made:
                    schema.check(connection, self.display_url)
            if not is_made:
                with self._begin(is_writing=True) as connection:
                    schema.make_if_empty(connection, self.display_url)
            self._ready = file

    def _current_file(self) -> _File | None:
        """Return which file is at the address now; the same value always for a server."""
        if self.file is None:
            return _SERVER
        try:
            found = os.stat(self.file)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _make_file(self) -> None:
        if self.file is None or self.file.exists():
            return
        try:
            self.file.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            # SQLite creates its other files with the mode of this one.
            os.close(os.open(self.file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _FILE_MODE))
        except OSError as error:
            raise DatabaseReadOnly(self.display_url, error) from error

    def _check_file(self) -> None:
        if self.file is None or self.file.exists():
            return
        raise DatabaseNotFound(self.display_url, _similar(self.file))


def _similar(file: Path) -> list[str]:
    try:
        names = [path.name for path in file.parent.iterdir() if path.suffix in (".db", ".sqlite", ".sqlite3")]
    except OSError:
        return []
    return [str(file.parent / name) for name in difflib.get_close_matches(file.name, names, n=3)]
