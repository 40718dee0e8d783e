"""Opening a control database, and what its troubles are called."""

from __future__ import annotations

import contextlib
import re
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
from sqlalchemy import select, text

from coord_control.errors import (
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseForbidden,
    DatabaseFull,
    DatabaseNotFound,
    DatabaseReadOnly,
    DatabaseUnavailable,
    DatabaseUrlInvalid,
    RecordRefused,
    SchemaMismatch,
)
from coord_control.storage import schema, tables
from coord_control.storage.database import Database
from coord_control.storage.engine import display, parse_url
from coord_control.storage.store import ControlStore
from tests.records_kit import JOB, request
from tests.storage.kit import register
from tests.storage.server import Server

Opener: TypeAlias = Callable[[str | Path], Database]


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens databases by their address or file, and closes them when the test is over."""
    with contextlib.ExitStack() as stack:

        def open_one(where: str | Path) -> Database:
            database = Database(where if isinstance(where, str) else f"sqlite:///{where}")
            stack.callback(database.close)
            return database

        yield open_one


def test_an_embedded_database_is_made_by_the_first_writer_and_is_only_its_owners(
    opened: Opener, tmp_path: Path
) -> None:
    file = tmp_path / "state" / "control.db"
    database = opened(file)
    assert not file.parent.exists()
    assert database.schema_version() is None
    register(ControlStore(database))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    for other in file.parent.iterdir():
        assert stat.S_IMODE(other.stat().st_mode) == 0o600
    with database.transaction() as transaction:
        pragmas = ("journal_mode", "synchronous", "foreign_keys")
        assert [transaction.execute(text(f"PRAGMA {name}")).scalar() for name in pragmas] == ["wal", 2, 1]


def test_a_file_that_takes_the_place_of_another_is_noticed(opened: Opener, tmp_path: Path) -> None:
    """Bug: connections kept the file that had been removed open, and all went there."""
    file, dump = tmp_path / "control.db", tmp_path / "dump.db"
    store = ControlStore(opened(file))
    register(store)
    made = opened(dump)
    made.upgrade()
    made.close()  # what was written is in the file itself
    for path in (file, tmp_path / "control.db-wal", tmp_path / "control.db-shm"):
        path.unlink()
    for use in (store.jobs.list, lambda: register(store)):
        with pytest.raises(DatabaseNotFound):  # it may be about to be restored
            use()
    assert not file.exists()
    dump.rename(file)
    assert store.jobs.list() == ()
    register(store)
    assert [each.name for each in ControlStore(opened(file)).jobs.list()] == [JOB]


def test_reading_makes_nothing_and_names_files_that_are_similar(opened: Opener, tmp_path: Path) -> None:
    register(ControlStore(opened(tmp_path / "control.db")))
    with pytest.raises(DatabaseNotFound, match=r"did you mean .*control\.db") as caught:
        ControlStore(opened(tmp_path / "contrl.db")).jobs.list()
    assert not caught.value.retry
    with pytest.raises(DatabaseNotFound, match="the first job"):
        opened(tmp_path / "nowhere" / "x").check_schema()
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".db") == ["control.db"]


def test_an_empty_postgresql_database_gets_its_tables_from_the_first_writer_not_from_a_reader(
    opened: Opener,
    postgresql_url: str,
) -> None:
    database = opened(postgresql_url)
    with pytest.raises(SchemaMismatch, match=r"if a job is just starting, it creates them.*coordctl db upgrade"):
        ControlStore(database).jobs.list()
    register(ControlStore(database))
    assert database.schema_version() == schema.NEWEST


def test_many_that_begin_at_the_same_moment_make_the_tables_once(opened: Opener, url: str) -> None:
    barrier = threading.Barrier(6)

    def begin(number: int) -> None:
        database = opened(url)
        barrier.wait()
        register(ControlStore(database), f"job-{number}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(begin, range(6)))
    database = opened(url)
    assert len(ControlStore(database).jobs.list()) == 6


_BEGIN_IN_A_PROCESS = """
import sys
from coord_control.storage.database import Database
from coord_control.storage.store import ControlStore
from tests.storage.kit import register
sys.stdin.read(1)
register(ControlStore(Database(sys.argv[1])), "job-" + sys.argv[2])
"""


def test_processes_that_begin_at_the_same_moment_make_the_tables_once(opened: Opener, url: str) -> None:
    command = [sys.executable, "-c", _BEGIN_IN_A_PROCESS, url]
    processes = [subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE) for n in range(3)]
    for process in processes:
        process.communicate(b"!")
    assert [process.returncode for process in processes] == [0, 0, 0]
    database = opened(url)
    assert [job.name for job in ControlStore(database).jobs.list()] == ["job-0", "job-1", "job-2"]


def test_newer_tables_are_an_error_that_says_what_to_do(opened: Opener, url: str) -> None:
    found = "9999"
    database = opened(url)
    database.upgrade()
    with database.transaction() as transaction:
        transaction.execute(text("UPDATE alembic_version SET version_num = :found"), {"found": found})
    for attempt in (
        lambda: register(ControlStore(opened(url))),
        lambda: ControlStore(opened(url)).jobs.list(),
        opened(url).check_schema,
        opened(url).upgrade,
    ):
        with pytest.raises(SchemaMismatch, match="upgrade coord-control") as caught:
            attempt()
        assert (caught.value.found, caught.value.needed, caught.value.retry) == (found, schema.NEWEST, False)


def test_somebody_elses_database_is_left_alone(opened: Opener, url: str) -> None:
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        file.parent.mkdir()
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE theirs (id INTEGER)")
        connection.close()
    else:
        with psycopg.connect(url) as server:
            server.execute("CREATE TABLE theirs (id INTEGER)")
    database = opened(url)
    with pytest.raises(DatabaseDamaged, match="theirs"):
        register(ControlStore(database))
    assert database.schema_version() is None


def test_a_file_that_is_no_database_is_named(opened: Opener, tmp_path: Path) -> None:
    file = tmp_path / "control.db"
    file.write_text("dear diary, " * 1000)
    for attempt in (lambda: register(ControlStore(opened(file))), lambda: ControlStore(opened(file)).jobs.list()):
        with pytest.raises(DatabaseDamaged, match=r"control\.db"):
            attempt()
    assert file.read_text().startswith("dear diary")


def test_a_transaction_that_fails_leaves_nothing(store: ControlStore) -> None:
    register(store)

    def fail() -> None:
        with store.database.transaction() as transaction:
            transaction.execute(tables.upkeep.insert(), {"duty": "test", "at": transaction.now})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.database.reading() as transaction:
        assert transaction.execute(select(tables.upkeep)).all() == []


def test_a_full_disk_is_said_and_what_was_there_stays(opened: Opener, tmp_path: Path) -> None:
    store = ControlStore(opened(tmp_path / "control.db"))
    register(store)
    kept = store.commands.submit(request(key="before")).id
    _limit_pages(store, spare=4)

    def fill() -> None:
        for number in range(100):
            store.commands.submit(request(key=f"k{number}", payload={"x": "y" * 20_000}))

    with pytest.raises(DatabaseFull, match="Free disk space") as caught:
        fill()
    assert caught.value.retry
    assert isinstance(caught.value, DatabaseUnavailable)
    commands = store.commands.list(limit=1000)
    assert commands[-1].id == kept
    assert len(store.audit.list(limit=1000)) == len(commands)
    _limit_pages(store, spare=10_000)
    assert store.commands.submit(request(key="after", payload={"x": "y" * 20_000})).key == "after"


def _limit_pages(store: ControlStore, spare: int) -> None:
    # The limit belongs to a connection: the pool has one, which every transaction of this thread gets.
    with store.database.transaction() as transaction:
        pages = transaction.execute(text("PRAGMA page_count")).scalar_one()
        transaction.execute(text(f"PRAGMA max_page_count={pages + spare}"))


def test_a_folder_that_cannot_be_written_is_said(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseReadOnly, match="owner and mode"):
        register(ControlStore(opened(tmp_path / "file" / "control.db")))


def test_somebody_who_keeps_the_write_lock_is_waited_for_and_then_named(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coord_control.storage.engine._BUSY_SECONDS", 0.2)
    store = ControlStore(opened(tmp_path / "control.db"))
    register(store)
    other = sqlite3.connect(tmp_path / "control.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseBusy, match="is busy") as caught:
        store.commands.submit(request())
    assert caught.value.retry
    assert store.jobs.get(JOB).name == JOB  # readers are not kept waiting
    other.execute("ROLLBACK")
    other.close()
    store.commands.submit(request())


def test_connections_that_were_cut_are_replaced(opened: Opener, server: Server, postgresql_url: str) -> None:
    store = ControlStore(opened(postgresql_url))
    register(store)
    assert server.disconnect_all(postgresql_url.split("/")[3].partition("?")[0]) > 0
    assert store.jobs.get(JOB).name == JOB

    def cut_in_the_middle() -> None:
        with store.database.transaction() as transaction:
            transaction.execute(select(tables.jobs))
            server.disconnect_all(postgresql_url.split("/")[3].partition("?")[0])
            transaction.execute(select(tables.jobs))

    with pytest.raises(DatabaseUnavailable):
        cut_in_the_middle()
    assert store.jobs.get(JOB).name == JOB


def test_a_server_that_is_killed_is_unavailable_and_has_everything_when_it_is_back(
    opened: Opener, server: Server, postgresql_url: str
) -> None:
    store = ControlStore(opened(postgresql_url))
    register(store)
    command = store.commands.submit(request()).id
    server.kill()
    for attempt in (lambda: store.jobs.get(JOB), lambda: store.commands.submit(request())):
        with pytest.raises(DatabaseUnavailable, match="jobs keep running") as caught:
            attempt()
        assert caught.value.retry
    server.start()
    assert store.commands.get(command).id == command
    assert [each.id for each in store.commands.claim(JOB, 1)] == [command]


def test_who_is_not_let_in_is_told_so(opened: Opener, server: Server, postgresql_url: str) -> None:
    missing = opened(server.url("not_there"))
    with pytest.raises(DatabaseForbidden, match="not_there") as caught:
        missing.check_schema()
    assert not caught.value.retry
    with pytest.raises(DatabaseForbidden, match="nobody"):
        opened(postgresql_url.replace("postgres@", "nobody@")).check_schema()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@host/db",
        "postgresql://ada@host/db?password=hunter2",
        "postgresql+psycopg://ada@host/db?sslpassword=hunter2",
    ],
)
def test_a_password_is_never_shown(opened: Opener, url: str) -> None:
    database = opened(url)
    assert "hunter2" not in database.display_url
    assert re.search(r":\*\*\*@|sslpassword=\.\.\.", database.display_url)


def test_a_password_that_is_given_apart_is_used_and_not_shown() -> None:
    url = parse_url("postgres://ada@host/db", "hunter2")
    assert url.password == "hunter2"
    assert display(url) == "postgresql://ada:***@host/db"
    assert parse_url("postgresql://ada:own@host/db", "hunter2").password == "own"


def test_a_server_that_does_not_listen_is_said_with_its_cause() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens: refused
        database = Database(f"postgresql://ada@127.0.0.1:{nobody.getsockname()[1]}/db")
        with pytest.raises(DatabaseUnavailable, match="failed: Connection refused; jobs keep running") as caught:
            database.check_schema()
    database.close()
    assert "\t" not in str(caught.value)


def test_errors_of_a_connection_show_no_password(tmp_path: Path) -> None:
    database = Database(f"postgresql://ada:hunter2@/db?host={tmp_path}")
    with pytest.raises(DatabaseUnavailable) as caught:
        database.check_schema()
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = error.__cause__


@pytest.mark.parametrize(
    "url", ["mysql://host/db", "sqlite://", "sqlite:///:memory:", "postgresql://host", "no address at all:hunter2", ""]
)
def test_what_can_be_no_control_database_is_refused_at_once(opened: Opener, url: str) -> None:
    with pytest.raises(DatabaseUrlInvalid) as caught:
        opened(url)
    assert "hunter2" not in str(caught.value)


def test_the_statement_of_an_error_is_not_shown_with_its_values(store: ControlStore) -> None:
    register(store)
    values = {"job_id": 10**6, "name": "secret payload", "query_id": "", "lineage": "", "state": "", "restarts": 0}

    def write_for_no_job() -> None:
        with store.database.transaction() as transaction:
            transaction.execute(tables.queries.insert(), {**values, "last_failure": "", "updated_at": transaction.now})

    with pytest.raises(RecordRefused) as caught:
        write_for_no_job()
    error: BaseException | None = caught.value
    while error is not None:
        assert "secret payload" not in str(error)
        error = error.__cause__
