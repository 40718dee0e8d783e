"""Notifies a driver, quickly and cheaply, of new commands to its job.

On PostgreSQL, submitting a command sends a notification, and the driver listens on a separate connection. SQLite is
polled: reading ``data_version`` on an open connection costs a few microseconds and shows whether anything was written;
only then are commands of the job looked up. Polling is frequent for some seconds after a command, then slower.

A signal may be spurious, or late if the database is unreachable: it only ends a wait. Claim commands after each signal,
and periodically anyway.

Threads: ``wait`` belongs to one thread; ``wake`` and ``close`` may be called from any.
"""

from __future__ import annotations

import contextlib
import os
import select
import sqlite3
import time
import urllib.parse
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from coord_control.storage.database import Database
from coord_control.storage.jobs import COMMANDS_CHANNEL

if TYPE_CHECKING:
    import psycopg

__all__ = ["CommandSignal", "for_database"]

#: How long polling stays fast after an event.
_FAST_SECONDS: Final = 5.0

#: Interval between attempts to listen again.
_RECONNECT_SECONDS: Final = (0.1, 0.5, 1.0, 2.0, 5.0)

#: Interval for checking a silent connection.
_PROBE_SECONDS: Final = 30.0

_WORK: Final = """
SELECT EXISTS (
    SELECT 1 FROM commands JOIN jobs ON jobs.id = commands.job_id
    WHERE jobs.name = ? AND (
        commands.state = 'pending' OR (commands.state = 'claimed' AND commands.cancel_requested_at IS NOT NULL)
    )
)
"""


class CommandSignal(ABC):
    """Ends a wait when there may be work to do."""

    def __init__(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._is_closed = False

    @abstractmethod
    def wait(self, timeout_seconds: float) -> bool:
        """Wait until there may be work to do; return False on timeout, or if it was woken or closed."""

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"!")

    def close(self) -> None:
        """End the wait and release the connection; afterwards ``wait`` returns at once."""
        if not self._is_closed:
            self._is_closed = True
            self.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        for descriptor in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _sleep(self, seconds: float, *others: int) -> tuple[bool, bool]:
        """Wait for one of ``others`` to be readable; return whether one is, and whether ``wake`` was called."""
        readable, _, _ = select.select([self._wake_read, *others], [], [], max(seconds, 0.0))
        was_woken = self._wake_read in readable
        if was_woken:
            os.read(self._wake_read, 4096)
        return any(other in readable for other in others), was_woken


class SqliteSignal(CommandSignal):
    """Polls ``data_version``; never creates the file, and never keeps a transaction open.

    Args:
        poll_min_seconds: interval after recent events.
        poll_max_seconds: interval otherwise.
    """

    def __init__(
        self, file: Path, job: str, *, poll_min_seconds: float = 0.025, poll_max_seconds: float = 0.05
    ) -> None:
        super().__init__()
        self._file, self._job = file, job
        self._poll_min, self._poll_max = poll_min_seconds, poll_max_seconds
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        self._fast_until = 0.0

    def wait(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not self._is_closed:
            now = time.monotonic()
            if self._look():
                self._fast_until = now + _FAST_SECONDS
                return True
            pause = self._poll_min if now < self._fast_until else self._poll_max
            _, was_woken = self._sleep(min(pause, deadline - now))
            if was_woken or time.monotonic() >= deadline:
                break
        if self._is_closed:
            self._drop()
        return False

    def _look(self) -> bool:
        try:
            connection = self._connected()
            version: int = connection.execute("PRAGMA data_version").fetchone()[0]
            if version == self._version:
                return False
            has_work = bool(connection.execute(_WORK, (self._job,)).fetchone()[0])
            self._version = version
            return has_work
        except sqlite3.Error:  # missing, just being created, locked or removed: retry at the next poll
            self._drop()
            return False

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            uri = f"file:{urllib.parse.quote(str(self._file.absolute()))}?mode=ro"
            self._connection = sqlite3.connect(
                uri, uri=True, timeout=0.2, isolation_level=None, check_same_thread=False
            )
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._version = None


class PostgresqlSignal(CommandSignal):
    """Listens on a separate connection, and reconnects if it is lost."""

    def __init__(self, database: Database, channel: str, job: str) -> None:
        super().__init__()
        self._database, self._channel, self._job = database, channel, job
        self._connection: psycopg.Connection[Any] | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._probe_at = 0.0

    def wait(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not self._is_closed:
            now = time.monotonic()
            if self._connection is None and now >= self._retry_at and self._connect():
                return True  # notifications may have been missed
            connection = self._connection
            until = deadline if connection is not None else min(deadline, self._retry_at)
            descriptors = () if connection is None else (connection.fileno(),)
            has_news, was_woken = self._sleep(until - now, *descriptors)
            if connection is not None and self._hear(connection, has_news):
                return True
            if was_woken or time.monotonic() >= deadline:
                break
        if self._is_closed:
            self._drop()
        return False

    def _connect(self) -> bool:
        import psycopg
        from psycopg import sql

        url = self._database.url.set(drivername="postgresql")
        try:
            connection = psycopg.connect(
                url.render_as_string(hide_password=False),
                autocommit=True,
                connect_timeout=5,
                application_name="coord-control listener",
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
            )
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except psycopg.Error:
            self._lost()
            return False
        self._connection, self._failures = connection, 0
        self._probe_at = time.monotonic() + _PROBE_SECONDS
        return True

    def _hear(self, connection: psycopg.Connection[Any], has_news: bool) -> bool:
        import psycopg

        try:
            if not has_news and time.monotonic() >= self._probe_at:
                connection.execute("SELECT 1")
                self._probe_at = time.monotonic() + _PROBE_SECONDS
            heard = {notice.payload for notice in connection.notifies(timeout=0)}
            return self._job in heard
        except psycopg.Error:
            self._drop()
            self._lost()
            return False

    def _lost(self) -> None:
        pause = _RECONNECT_SECONDS[min(self._failures, len(_RECONNECT_SECONDS) - 1)]
        self._failures += 1
        self._retry_at = time.monotonic() + pause

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def for_database(
    database: Database, job: str, *, poll_min_seconds: float = 0.025, poll_max_seconds: float = 0.05
) -> CommandSignal:
    """Return the signal for new commands and for requested cancellations."""
    if database.file is None:
        return PostgresqlSignal(database, COMMANDS_CHANNEL, job)
    return SqliteSignal(database.file, job, poll_min_seconds=poll_min_seconds, poll_max_seconds=poll_max_seconds)
