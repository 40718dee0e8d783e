"""The agent while its database is away, and when it is back: the history is filled from the storage."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord_control.control.agent import agent as agent_module
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.storage.records import CheckpointState, CommandKind, CommandState, JobState
from tests.agent_kit import JOB, ScriptedDriver, damage_state
from tests.patience import SECONDS, eventually
from tests.unit.control.agent_rig import (
    AgentRig,
    submit_periodic,
)

#: Notes each command that is completed while the history lacks its checkpoint.
_EARLY_OUTCOMES = """
    CREATE TABLE early_outcomes (command TEXT);
    CREATE TRIGGER early AFTER UPDATE OF state ON commands
    WHEN NEW.state = 'completed' AND NEW.checkpoint IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM checkpoints
        WHERE job_id = NEW.job_id AND checkpoint = NEW.checkpoint AND state = 'completed'
    )
    BEGIN INSERT INTO early_outcomes VALUES (NEW.id); END
"""


def test_the_database_comes_back_and_everything_is_there_in_order(rig: AgentRig) -> None:
    driver, agent = rig.driver(is_automatic=False)
    running = rig.ask(CommandKind.TRIGGER_CHECKPOINT)
    eventually(lambda: driver.checkpoint_statistics().counts.in_progress)
    rig.away()
    eventually(lambda: agent.metrics().database_failures)
    driver.complete(1)
    driver.is_automatic = True
    submit_periodic(driver, 3)
    eventually(lambda: agent.metrics().buffered >= 4)
    assert not agent.is_connected
    eventually(lambda: agent.commands_under_way == 0)
    assert agent.outcomes()["trigger_checkpoint", "completed"] == 1
    assert agent.outcomes()["trigger_savepoint", "completed"] == 0, "counters begin with zero"
    rig.back()
    assert rig.outcome(running).state is CommandState.COMPLETED
    eventually(lambda: len(rig.store.checkpoints.list(JOB, state=CheckpointState.COMPLETED)) == 4)
    eventually(lambda: agent.metrics().buffered == 0 and agent.is_connected)
    assert agent.outcomes()["trigger_checkpoint", "completed"] == 1, "it is not carried out again"
    assert agent.metrics().dropped == 0
    assert agent.metrics().last_contact is not None


@pytest.fixture
def _close_is_patient() -> Iterator[None]:
    """Let a job that ends wait for its database as long as a slow machine takes to bring it back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_module, "_CLOSE_SECONDS", SECONDS)
        yield


@pytest.mark.usefixtures("_close_is_patient")
@pytest.mark.parametrize("outage", ["none", "before the record", "before the outcome"])
@pytest.mark.parametrize("kind", [CommandKind.TRIGGER_CHECKPOINT, CommandKind.STOP_WITH_SAVEPOINT])
def test_a_command_is_never_completed_before_its_checkpoint_is_in_the_history(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch, kind: CommandKind, outage: str
) -> None:
    driver, agent = rig.driver()
    driver.closing = agent.close
    with contextlib.closing(sqlite3.connect(rig.database, timeout=SECONDS)) as database, database:
        database.executescript(_EARLY_OUTCOMES)
    store = rig.stores[-1]
    writes = {"before the record": store.checkpoints, "before the outcome": store.commands}
    if outage != "none":
        write = "save" if outage == "before the record" else "finish"
        is_lost = lose_database_once(rig, monkeypatch, writes[outage], write)
        asked = rig.ask(kind)
        assert is_lost.wait(SECONDS)
        rig.back()
    else:
        asked = rig.ask(kind)
    done = rig.outcome(asked)
    assert done.state is CommandState.COMPLETED, done.error
    assert done.checkpoint is not None
    assert rig.store.checkpoints.report(JOB, done.checkpoint).checkpoint.state is CheckpointState.COMPLETED
    with contextlib.closing(sqlite3.connect(rig.database, timeout=SECONDS)) as database:
        assert database.execute("SELECT command FROM early_outcomes").fetchall() == []


def lose_database_once(rig: AgentRig, monkeypatch: pytest.MonkeyPatch, part: object, write: str) -> threading.Event:
    """Let the database be away from the next such write on; return what says that the write has failed."""
    real, is_lost = getattr(part, write), threading.Event()

    def lost(*args: object) -> object:
        monkeypatch.undo()
        rig.away()
        try:
            return real(*args)
        finally:
            is_lost.set()

    monkeypatch.setattr(part, write, lost)
    return is_lost


def test_a_job_starts_without_its_database_and_is_entered_later(rig: AgentRig) -> None:
    rig.away()
    driver, agent = rig.driver()
    assert not agent.is_connected
    submit_periodic(driver, 1)
    rig.back()
    eventually(lambda: agent.is_connected)
    eventually(lambda: rig.store.checkpoints.list(JOB))
    assert rig.store.jobs.get(JOB).is_alive


def test_a_database_that_is_lost_for_good_is_made_by_hand_and_filled_from_the_storage(rig: AgentRig) -> None:
    driver, agent = rig.driver()
    submit_periodic(driver, 2)
    eventually(lambda: len(rig.store.checkpoints.list(JOB)) == 2)
    rig.away()
    eventually(lambda: agent.metrics().database_failures)
    rig.database.rmdir()
    failures = agent.metrics().database_failures
    eventually(lambda: agent.metrics().database_failures > failures)
    assert rig.store.database.schema_version() is None, "a driver that lives never puts an empty one in its place"
    rig.store.database.upgrade()  # coordctl db upgrade
    eventually(lambda: agent.is_connected)
    assert rig.store.jobs.get(JOB).is_alive
    found = rig.store.checkpoints.list(JOB)
    assert [(each.id, each.state) for each in found] == [(2, CheckpointState.COMPLETED), (1, CheckpointState.COMPLETED)]
    assert rig.outcome(rig.ask(CommandKind.TRIGGER_CHECKPOINT)).state is CommandState.COMPLETED


def test_an_embedded_database_that_is_replaced_under_a_living_driver_is_used_within_moments(rig: AgentRig) -> None:
    """Bug: the driver kept the removed file open and wrote to it; the job was not seen any more, without a word."""
    driver, _ = rig.driver()
    submit_periodic(driver, 1)
    eventually(lambda: len(rig.store.checkpoints.list(JOB)) == 1)
    for file in rig.database.parent.glob(f"{rig.database.name}*"):
        file.unlink()
    rig.store.database.upgrade()  # coordctl db upgrade
    eventually(lambda: [each.name for each in rig.store.jobs.list()] == [JOB])
    eventually(lambda: len(rig.store.checkpoints.list(JOB)) == 1)
    assert rig.store.jobs.get(JOB).is_alive
    assert rig.outcome(rig.ask(CommandKind.TRIGGER_CHECKPOINT)).state is CommandState.COMPLETED


def test_what_an_older_driver_completed_and_never_reported_is_in_the_history(rig: AgentRig) -> None:
    lost = ScriptedDriver(rig.folder / "jobs")
    submit_periodic(lost, 2)
    rig.driver()
    found = rig.store.checkpoints.list(JOB)
    assert [(each.id, each.state) for each in found] == [(2, CheckpointState.COMPLETED), (1, CheckpointState.COMPLETED)]
    assert sorted(each.checkpoint.id for each in rig.store.changes.list() if each.checkpoint) == [1, 2]
    assert rig.store.changes.newest() == 2


def test_what_completed_while_the_database_was_away_is_in_the_history_with_its_statistics(rig: AgentRig) -> None:
    """Bug: "its statistics were lost" was said of a checkpoint whose metadata holds them."""
    driver, agent = rig.driver(is_automatic=False)
    submit_periodic(driver, 1)
    eventually(lambda: rig.store.checkpoints.list(JOB))
    rig.away()
    eventually(lambda: agent.metrics().database_failures)
    driver.complete(1)
    agent.close(is_fenced=True)  # it dies with all that it had to report
    rig.back()
    assert rig.store.checkpoints.get(JOB, 1).state is CheckpointState.IN_PROGRESS

    rig.driver()

    found = rig.store.checkpoints.get(JOB, 1)
    assert (found.state, found.cause, found.message) == (CheckpointState.COMPLETED, "periodic", "")
    assert (found.subtasks, found.passed_subtasks, found.snapshot_seconds) == (2, 2, 0.1)
    assert found.path is not None
    assert found.state_bytes == 25 + Path(found.path, "_metadata").stat().st_size
    parts = rig.store.checkpoints.subtasks(JOB, 1)
    assert [(each.subtask, each.passed_seconds, each.state_bytes) for each in parts] == [(0, 0.1, 10), (1, 0.1, 10)]


def test_a_checkpoint_whose_state_is_damaged_keeps_no_job_from_its_database(
    rig: AgentRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: the agent met it at each try, and never registered the job."""
    lost = ScriptedDriver(rig.folder / "jobs")
    submit_periodic(lost, 2)
    damage_state(f"{lost.folder}/checkpoints/1/_metadata")

    _, agent = rig.driver()

    assert agent.is_connected
    assert [each.id for each in rig.store.checkpoints.list(JOB)] == [2]
    assert "the history lacks checkpoint 1: " in caplog.text
    assert rig.outcome(rig.ask(CommandKind.TRIGGER_CHECKPOINT)).state is CommandState.COMPLETED


def test_a_checkpoint_that_is_removed_while_it_is_read_is_no_outage(
    rig: AgentRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: it was reported as an outage of the database."""
    lost = ScriptedDriver(rig.folder / "jobs")
    submit_periodic(lost, 2)
    driver, agent = rig.driver(is_ready_to_start=False)
    driver.files = _RemovedWhenRead(f"{lost.folder}/checkpoints/1/_metadata")

    rig.start(driver, agent)

    assert agent.is_connected
    assert (agent.metrics().database_failures, caplog.text) == (0, "")
    assert [each.id for each in rig.store.checkpoints.list(JOB)] == [2]


class _RemovedWhenRead(LocalFiles):
    """Retention removes a file just after it has been read."""

    def __init__(self, removed: str) -> None:
        super().__init__()
        self._removed = removed

    def read(self, path: str) -> bytes:
        data = super().read(path)
        if path == self._removed:
            self.delete(path)
        return data


def test_what_an_older_driver_had_begun_has_failed_and_what_is_gone_was_discarded(rig: AgentRig) -> None:
    first, agent = rig.driver()
    submit_periodic(first, 2)
    first.is_automatic = False
    submit_periodic(first, 1)
    eventually(lambda: len(rig.store.checkpoints.list(JOB)) == 3)
    agent.close(is_fenced=True)
    first.discard(1)
    rig.driver()
    expected = {1: CheckpointState.DISCARDED, 2: CheckpointState.COMPLETED, 3: CheckpointState.FAILED}
    # A driver waits only a few seconds for the first pass of its agent.
    eventually(lambda: {each.id: each.state for each in rig.store.checkpoints.list(JOB)} == expected)


@pytest.mark.parametrize("has_failed", [False, True])
@pytest.mark.parametrize("kind", [CommandKind.STOP, CommandKind.STOP_WITH_SAVEPOINT])
def test_a_job_whose_driver_died_of_a_stop_while_the_database_was_away_ends_all_the_same(
    rig: AgentRig, kind: CommandKind, has_failed: bool
) -> None:
    """Bug: it ran on. The stop was completed as one of long ago, or by the driver that was failing."""
    first, agent = rig.driver(is_supervised=True, supervisor="s")
    has_died = threading.Event()
    first.stop = lambda *_, **__: has_died.set()  # type: ignore[method-assign]
    command = rig.ask(kind)
    assert has_died.wait(SECONDS)
    rig.expire(command)
    if has_failed:
        agent.close(JobState.FAILED, "Spark is gone")
        assert rig.store.commands.get(command).state is CommandState.CLAIMED
    rig.away()
    agent.close(is_fenced=True)
    second, _ = rig.driver(is_supervised=True, supervisor="s")
    rig.back()
    done = rig.outcome(command)
    assert done.state is CommandState.COMPLETED
    assert second.ended.wait(SECONDS)
    assert done.result is not None
    assert (done.result.get("savepoint") is not None) == (kind is CommandKind.STOP_WITH_SAVEPOINT)
