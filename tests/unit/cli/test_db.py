from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from coord_control.storage.records import CheckpointState
from coord_control.storage.schema import NEWEST
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import invoke, run, run_json
from tests.storage.kit import NEXT_VERSION, become_next_release


def test_a_database_is_made_and_then_is_as_it_should_be(tmp_path: Path) -> None:
    assert "there is no control database" in run(tmp_path, "db", "check", code=78)
    made = run_json(tmp_path, "db", "upgrade")
    assert (made["before"], made["after"]) == (None, run_json(tmp_path, "db", "check")["version"])
    assert "already" in run(tmp_path, "db", "upgrade")


@pytest.mark.parametrize("is_alive", [True, False])
def test_an_upgrade_names_the_jobs_whose_drivers_cannot_use_the_new_tables(
    tmp_path: Path, store: ControlStore, monkeypatch: pytest.MonkeyPatch, *, is_alive: bool
) -> None:
    """Bug: they were said to write down later what they cannot write now, and did so only when started again."""
    if not is_alive:
        store.jobs.ended("flights", 1)
    become_next_release(tmp_path / "migrations", monkeypatch)

    shown = run(tmp_path, "db", "upgrade")

    assert f"upgraded from {NEWEST} to version {NEXT_VERSION}" in shown
    assert ("cannot use the new tables: flights; " in shown) is is_alive
    assert "flights" not in run(tmp_path, "db", "upgrade"), "nothing was changed"


@pytest.mark.parametrize(("found", "advice"), [("9999", "upgrade coord-control"), ("0004", "move this database away")])
def test_tables_of_another_release_are_said_with_what_to_do(
    tmp_path: Path, store: ControlStore, found: str, advice: str
) -> None:
    store.close()
    with sqlite3.connect(tmp_path / "control.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (found,))
    connection.close()

    for command in (("db", "check"), ("db", "upgrade"), ("jobs",)):
        assert advice in run(tmp_path, *command, code=78)


def test_what_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "control.db").write_text("not a database, but quite a long text " * 100)
    assert "is not a control database, or is corrupt" in run(tmp_path, "jobs", code=65)


def test_old_history_is_removed_and_what_is_on_storage_is_not(tmp_path: Path, store: ControlStore) -> None:
    kit.put_checkpoint(store, 1, triggered_at=kit.NOON - timedelta(days=900))
    kit.put_checkpoint(
        store, 2, triggered_at=kit.NOON - timedelta(days=900), state=CheckpointState.FAILED, reason="TIMEOUT"
    )

    assert "removed: 1 checkpoints" in run(tmp_path, "db", "prune")
    assert "removed: nothing" in run(tmp_path, "db", "prune", "--older-than", "8760h")
    assert [each.id for each in store.checkpoints.list("flights")] == [1]


def test_grants_are_sql_for_postgresql_alone(tmp_path: Path, store: ControlStore) -> None:
    assert "SQLite has no users" in run(tmp_path, "db", "grants", "dashboard", code=78)
    result = invoke(
        tmp_path, "db", "grants", 'dash"board', "--create", "--control", "postgresql://me@127.0.0.1/control"
    )
    assert result.exit_code == 0
    assert 'CREATE ROLE "dash""board" LOGIN;' in result.stdout
    assert all(line.endswith(";") for line in result.stdout.splitlines())


def test_an_address_is_never_shown_with_its_password(tmp_path: Path) -> None:
    for url in ("postgresql://me:s3cret@127.0.0.1:1/control", "mysql://me:s3cret@127.0.0.1/control"):
        result = invoke(tmp_path, "db", "check", "--control", url, COORD_CONTROL_RETRY_SECONDS="0.01")
        assert result.exit_code != 0
        assert "s3cret" not in result.output
