"""From every released version of the tables to today's, with the rows that were there; from today's to the next one.

``released/<version>`` holds the tables of a version as its release made them on each database, and a row of every
table. A new revision adds a folder, and what its rows must read as below; no file of an older one is ever changed.
"""

from __future__ import annotations

import importlib.resources
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, func, inspect, select, text

from coord_control.errors import SchemaMismatch
from coord_control.storage import schema, tables
from coord_control.storage.database import Database
from coord_control.storage.records import CheckpointState, CommandState, JobState
from coord_control.storage.store import ControlStore
from tests.records_kit import JOB
from tests.storage.kit import NEXT_VERSION, become_next_release, register

RELEASED: Final = Path(__file__).parent / "released"
VERSIONS: Final = sorted(path.name for path in RELEASED.iterdir())


def run_script(url: str, script: str) -> None:
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(file)
        connection.executescript(script)
        connection.commit()
        connection.close()
    else:
        with psycopg.connect(url) as server:
            server.execute(script.encode())


@pytest.fixture(params=VERSIONS)
def released(url: str, request: pytest.FixtureRequest) -> str:
    """A database of this version; returns the version."""
    folder = RELEASED / request.param
    run_script(
        url,
        (folder / f"{url.partition(':')[0]}.sql").read_text(encoding="utf-8")
        + (folder / "rows.sql").read_text(encoding="utf-8"),
    )
    version: str = request.param
    return version


def differences(database: Database) -> list[Any]:
    with database.reading() as transaction:
        context = MigrationContext.configure(transaction.connection, opts={"compare_type": True})
        return list(compare_metadata(context, tables.metadata))


def checks(connection: Connection, of_schema: str | None = None) -> dict[str, dict[str, str]]:
    inspector = inspect(connection)
    return {
        table: {
            str(each["name"]): str(each["sqltext"]) for each in inspector.get_check_constraints(table, schema=of_schema)
        }
        for table in tables.metadata.tables
    }


def declared_checks(database: Database) -> dict[str, dict[str, str]]:
    """What the checks are when SQLAlchemy makes the tables from the code, as the database itself says them."""
    if database.dialect == "sqlite":
        engine = create_engine("sqlite://")
        tables.metadata.create_all(engine)
        with engine.connect() as connection:
            found = checks(connection)
        engine.dispose()
        return found
    with database.transaction() as transaction:
        transaction.execute(text("CREATE SCHEMA declared"))
        connection = transaction.connection.execution_options(schema_translate_map={None: "declared"})
        tables.metadata.create_all(connection)
        return checks(connection, "declared")


def test_the_migrations_make_exactly_the_tables_of_the_code(database: Database) -> None:
    database.upgrade()
    assert differences(database) == []
    with database.reading() as transaction:
        made = checks(transaction.connection)
    assert made == declared_checks(database)  # Alembic does not compare these
    assert len([name for table in made.values() for name in table]) == 5


def test_the_newest_revision_is_the_version_of_the_code_and_every_revision_has_a_release(database: Database) -> None:
    database.upgrade()
    with database.reading() as transaction:
        scripts = ScriptDirectory.from_config(schema.alembic_config(transaction.connection))
    assert (scripts.get_bases(), scripts.get_heads()) == ([schema.OLDEST], [schema.NEWEST])
    assert sorted(script.revision for script in scripts.walk_revisions()) == VERSIONS


def test_a_released_version_becomes_todays_with_all_its_rows(database: Database, released: str) -> None:
    assert database.schema_version() == released
    database.upgrade()
    database.upgrade()
    assert database.schema_version() == schema.NEWEST
    assert differences(database) == []
    with database.reading() as transaction:
        for name, table in tables.metadata.tables.items():
            assert transaction.execute(select(func.count()).select_from(table)).scalar_one() >= 1, name
    _read_back(ControlStore(database))


def test_a_released_version_can_be_written_to_after_the_upgrade(database: Database, released: str) -> None:
    database.upgrade()
    store = ControlStore(database)
    store.jobs.ended("flights", 2, JobState.FAILED, "again")
    assert store.jobs.get("flights").end_reason == "again"
    assert store.checkpoints.discarded("flights", [7]) == 1
    assert store.checkpoints.summary("flights").counts["discarded"] == 1
    store.jobs.forget("flights")
    assert store.jobs.list() == ()


def test_the_next_release_upgrades_the_tables_of_this_one_when_it_is_told_to(
    url: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(ControlStore(database))
    become_next_release(tmp_path / "migrations", monkeypatch)
    newer = Database(url, application="tests")
    for use in (lambda: register(ControlStore(newer)), lambda: ControlStore(newer).jobs.list(), newer.check_schema):
        with pytest.raises(
            SchemaMismatch, match=f"has version {VERSIONS[-1]} .* needs {NEXT_VERSION}; run: coordctl db"
        ):
            use()
    assert newer.schema_version() == VERSIONS[-1], "nothing but an upgrade changes tables"

    newer.upgrade()
    newer.upgrade()

    assert newer.schema_version() == NEXT_VERSION
    assert ControlStore(newer).jobs.get(JOB).queries[0].name == "q"
    with newer.reading() as transaction:
        assert transaction.execute(text("SELECT colour FROM jobs")).scalar_one() == "red"
    newer.close()


def test_tables_from_before_the_first_release_are_left_alone_with_advice(url: str, database: Database) -> None:
    database.upgrade()
    before = f"{int(schema.OLDEST) - 1:04}"
    with database.transaction() as transaction:
        transaction.execute(text("UPDATE alembic_version SET version_num = :before"), {"before": before})
    older = Database(url, application="tests")
    for use in (lambda: register(ControlStore(older)), lambda: ControlStore(older).jobs.list(), older.upgrade):
        with pytest.raises(SchemaMismatch, match=r"before the first release.*move this database away") as caught:
            use()
        assert (caught.value.found, caught.value.needed, caught.value.retry) == (before, schema.NEWEST, False)
    assert older.schema_version() == before
    older.close()


def _read_back(store: ControlStore) -> None:
    job = store.jobs.get("flights")
    assert (job.state, job.generation, job.is_alive, job.is_supervised) == (JobState.ENDED, 2, False, True)
    assert job.heartbeat_at == datetime(2026, 3, 1, 13, 0, 0, 250_000, tzinfo=UTC)
    assert job.live is not None
    assert job.agent is not None
    assert (job.queries[0].epoch, job.operators[0].event_types[0].name) == (41, "Threshold")
    [live] = job.live_values
    assert (live.version, live.value, live.by, live.uses["q"].since) == (2, {"minutes": 45}, "ada", 38)
    assert [each.since for each in store.live.list("flights")] == [{"q": 38}, {"q": 0}]
    assert [each.is_clean for each in store.jobs.generations("flights")] == [True, False]
    checkpoint = store.checkpoints.get("flights", 7)
    assert (checkpoint.state, checkpoint.label, checkpoint.queries[0].boundary) == (
        CheckpointState.COMPLETED,
        "nightly",
        40,
    )
    assert store.checkpoints.subtasks("flights", 7)[0].blocked_events == 3
    assert store.checkpoints.summary("flights").duration.p50 == 1.5
    assert store.savepoints.get("/saved/one").label == "before"
    [command] = store.commands.list("flights")
    assert (command.state, command.number, command.payload) == (
        CommandState.COMPLETED,
        1,
        {"event_type": "Threshold"},
    )
    assert store.recoveries.list("flights")[0].cause == "driver_died"
    assert [each.recovery is None for each in store.changes.list()] == [False, True]
    assert store.changes.newest() == store.changes.list()[-1].sequence
    assert store.audit.list("flights")[0].actor == "ada"
    since = datetime(2026, 1, 1, tzinfo=UTC)
    [sample] = store.samples.queries("flights", since, resolution=60)
    assert (sample.rows, sample.backlog) == (120, 30)
    assert store.samples.operators("flights", since, resolution=60)[0].events_up == 5


def test_the_migrations_are_part_of_the_package() -> None:
    versions = importlib.resources.files("coord_control.storage") / "migrations" / "versions"
    assert any(entry.name.startswith(f"v{schema.OLDEST}") for entry in versions.iterdir())
