"""A control database of each kind for every test: a fresh file, and a fresh database of one real PostgreSQL server.

The server belongs to the process of tests that first needs it: it listens on a Unix socket in a temporary folder, and
is stopped when the process has run its tests.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from coord_control.storage.database import Database
from coord_control.storage.store import ControlStore
from tests.storage.server import Server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The PostgreSQL server of this process."""
    folder = Path(tempfile.mkdtemp(prefix="coord-pg-"))  # short: the path of a socket has at most 107 characters
    server = Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql_url(server: Server) -> Iterator[str]:
    """The address of an empty database on the server."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield server.url(name)
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'control' / 'control.db'}"
    address: str = request.getfixturevalue("postgresql_url")
    return address


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url, application="tests")
    yield database
    database.close()


@pytest.fixture
def store(database: Database) -> ControlStore:
    return ControlStore(database)
