"""What a dashboard may do on PostgreSQL, tried by a role that has been granted just that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import errors

from coord_control.errors import DatabaseForbidden, DatabaseReadOnly, DatabaseUrlInvalid
from coord_control.storage.database import Database
from coord_control.storage.grants import grants, revokes
from coord_control.storage.records import CommandKind
from coord_control.storage.store import ControlStore
from tests.records_kit import JOB, checkpoint, request
from tests.storage.kit import register

USER = 'dash"board; DROP TABLE jobs'


@pytest.fixture
def store(postgresql_url: str) -> Iterator[ControlStore]:
    store = ControlStore(Database(postgresql_url))
    register(store)
    store.checkpoints.save(JOB, checkpoint(1))
    store.commands.submit(request(CommandKind.SEND_EVENT, operator="op", payload={"limit": 3}))
    yield store
    store.close()
    with psycopg.connect(postgresql_url, autocommit=True) as owner:
        run(owner, [f"DROP OWNED BY {_QUOTED}", f"DROP ROLE {_QUOTED}"])


_QUOTED = '"' + USER.replace('"', '""') + '"'


def run(connection: psycopg.Connection[tuple[object, ...]], statements: Iterable[str]) -> None:
    for statement in statements:
        connection.execute(statement.encode())


def granted(store: ControlStore, url: str, *, with_payloads: bool = False) -> psycopg.Connection[tuple[object, ...]]:
    """Grant, twice as after an upgrade, and return a connection of the dashboard."""
    with psycopg.connect(url, autocommit=True) as owner:
        run(owner, grants(store.database, USER, with_payloads=with_payloads, create=True))
        run(owner, grants(store.database, USER, with_payloads=with_payloads))
    return psycopg.connect(url, user=USER, autocommit=True)


def test_a_dashboard_reads_what_it_shows(store: ControlStore, postgresql_url: str) -> None:
    with granted(store, postgresql_url) as dashboard:
        for table in ("jobs", "checkpoints", "query_samples", "recoveries", "savepoints", "generations"):
            dashboard.execute(f"SELECT * FROM {table}")
        row = dashboard.execute("SELECT kind, state, requested_by, finished_at FROM commands").fetchone()
        assert row == ("send_event", "pending", "ada", None)
        assert dashboard.execute("SELECT actor, action, outcome FROM audit").fetchall()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT payload FROM commands",
        "SELECT * FROM commands",
        "SELECT result FROM commands",
        "SELECT details FROM audit",
        "SELECT * FROM upkeep",
    ],
)
def test_a_dashboard_does_not_read_what_people_have_sent(store: ControlStore, postgresql_url: str, query: str) -> None:
    with granted(store, postgresql_url) as dashboard, pytest.raises(errors.InsufficientPrivilege):
        dashboard.execute(query)


def test_payloads_are_read_where_that_was_asked_for(store: ControlStore, postgresql_url: str) -> None:
    with granted(store, postgresql_url, with_payloads=True) as dashboard:
        assert dashboard.execute("SELECT payload FROM commands").fetchall() == [({"limit": 3},)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE jobs SET generation = 99",
        "DELETE FROM checkpoints",
        "INSERT INTO upkeep (duty, at) VALUES ('x', now())",
        "TRUNCATE audit",
        "CREATE TABLE mine (id int)",
        "DROP TABLE jobs",
        "SELECT nextval('jobs_id_seq')",
        "UPDATE alembic_version SET version_num = 'x'",
    ],
)
def test_a_dashboard_writes_nothing(store: ControlStore, postgresql_url: str, statement: str) -> None:
    with granted(store, postgresql_url) as dashboard:
        with pytest.raises((errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction)):
            dashboard.execute(statement)
        dashboard.execute("SET default_transaction_read_only = off")  # a default only: the rights are what counts
        with pytest.raises(errors.InsufficientPrivilege):
            dashboard.execute(statement)


def test_our_own_package_works_for_a_reader(store: ControlStore, postgresql_url: str) -> None:
    granted(store, postgresql_url, with_payloads=True).close()
    reader = ControlStore(Database(postgresql_url.replace("postgres@", "") + "&user=" + quote(USER, safe="")))
    assert reader.jobs.get(JOB).name == JOB
    assert reader.checkpoints.summary(JOB).counts["total"] == 1
    assert len(reader.commands.list(JOB)) == 1
    with pytest.raises((DatabaseReadOnly, DatabaseForbidden)):
        reader.commands.submit(request())
    reader.close()


def test_the_exporter_needs_no_payloads(store: ControlStore, postgresql_url: str) -> None:
    granted(store, postgresql_url).close()
    reader = ControlStore(Database(postgresql_url.replace("postgres@", "") + "&user=" + quote(USER, safe="")))
    assert [each.job.name for each in reader.fleets.read().jobs] == [JOB]
    assert [each.state for each in reader.fleets.counts().open_commands] == ["pending"]
    reader.close()


def test_what_was_granted_can_be_taken_away(store: ControlStore, postgresql_url: str) -> None:
    with granted(store, postgresql_url) as dashboard, psycopg.connect(postgresql_url, autocommit=True) as owner:
        run(owner, revokes(store.database, USER))
        with pytest.raises(errors.InsufficientPrivilege):
            dashboard.execute("SELECT name FROM jobs")


def test_sqlite_has_no_users(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUrlInvalid, match="mode of its file"):
        grants(Database(f"sqlite:///{tmp_path / 'control.db'}"), "ada")
