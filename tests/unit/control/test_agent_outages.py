"""The agent while its database is away, and when it is back: the history is filled from the storage."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from coord_control.durable.files.filesystem import LocalFiles
from coord_control.storage.records import CheckpointState, CommandKind, CommandState, JobState
from tests.agent_kit import JOB, ScriptedDriver, damage_state
from tests.patience import SECONDS, eventually
from tests.unit.control.agent_world import (
    World,
    submit_periodic,
)


def test_the_database_comes_back_and_everything_is_there_in_order(world: World) -> None:
    driver, agent = world.driver(is_automatic=False)
    running = world.ask(CommandKind.TRIGGER_CHECKPOINT)
    eventually(lambda: driver.checkpoint_statistics().counts.in_progress)
    world.away()
    eventually(lambda: agent.metrics().database_failures)
    driver.complete(1)
    driver.is_automatic = True
    submit_periodic(driver, 3)
    eventually(lambda: agent.metrics().buffered >= 4)
    assert not agent.is_connected
    eventually(lambda: agent.commands_under_way == 0)
    assert agent.outcomes()["trigger_checkpoint", "completed"] == 1
    assert agent.outcomes()["trigger_savepoint", "completed"] == 0, "counters begin with zero"
    world.back()
    assert world.outcome(running).state is CommandState.COMPLETED
    eventually(lambda: len(world.store.checkpoints.list(JOB, state=CheckpointState.COMPLETED)) == 4)
    eventually(lambda: agent.metrics().buffered == 0 and agent.is_connected)
    assert agent.metrics().dropped == 0
    assert agent.metrics().last_contact is not None


def test_a_job_starts_without_its_database_and_is_entered_later(world: World) -> None:
    world.away()
    driver, agent = world.driver()
    assert not agent.is_connected
    submit_periodic(driver, 1)
    world.back()
    eventually(lambda: agent.is_connected)
    eventually(lambda: world.store.checkpoints.list(JOB))
    assert world.store.jobs.get(JOB).is_alive


def test_a_database_that_is_lost_for_good_is_made_by_hand_and_filled_from_the_storage(world: World) -> None:
    driver, agent = world.driver()
    submit_periodic(driver, 2)
    eventually(lambda: len(world.store.checkpoints.list(JOB)) == 2)
    world.away()
    eventually(lambda: agent.metrics().database_failures)
    (world.folder / "control.db").rmdir()
    failures = agent.metrics().database_failures
    eventually(lambda: agent.metrics().database_failures > failures)
    assert world.store.database.schema_version() is None, "a driver that lives never puts an empty one in its place"
    world.store.database.upgrade()  # coordctl db upgrade
    eventually(lambda: agent.is_connected)
    assert world.store.jobs.get(JOB).is_alive
    found = world.store.checkpoints.list(JOB)
    assert [(each.id, each.state) for each in found] == [(2, CheckpointState.COMPLETED), (1, CheckpointState.COMPLETED)]
    assert world.outcome(world.ask(CommandKind.TRIGGER_CHECKPOINT)).state is CommandState.COMPLETED


def test_what_an_older_driver_completed_and_never_reported_is_in_the_history(world: World) -> None:
    lost = ScriptedDriver(world.folder / "jobs")
    submit_periodic(lost, 2)
    world.driver()
    found = world.store.checkpoints.list(JOB)
    assert [(each.id, each.state) for each in found] == [(2, CheckpointState.COMPLETED), (1, CheckpointState.COMPLETED)]
    assert sorted(each.checkpoint.id for each in world.store.changes.list() if each.checkpoint) == [1, 2]
    assert world.store.changes.newest() == 2


def test_what_completed_while_the_database_was_away_is_in_the_history_with_its_statistics(world: World) -> None:
    """Bug: "its statistics were lost" was said of a checkpoint whose metadata holds them."""
    driver, agent = world.driver(is_automatic=False)
    submit_periodic(driver, 1)
    eventually(lambda: world.store.checkpoints.list(JOB))
    world.away()
    eventually(lambda: agent.metrics().database_failures)
    driver.complete(1)
    agent.close(is_fenced=True)  # it dies with all that it had to report
    world.back()
    assert world.store.checkpoints.get(JOB, 1).state is CheckpointState.IN_PROGRESS

    world.driver()

    found = world.store.checkpoints.get(JOB, 1)
    assert (found.state, found.cause, found.message) == (CheckpointState.COMPLETED, "periodic", "")
    assert (found.subtasks, found.passed_subtasks, found.snapshot_seconds) == (2, 2, 0.1)
    assert found.path is not None
    assert found.state_bytes == 25 + Path(found.path, "_metadata").stat().st_size
    parts = world.store.checkpoints.subtasks(JOB, 1)
    assert [(each.subtask, each.passed_seconds, each.state_bytes) for each in parts] == [(0, 0.1, 10), (1, 0.1, 10)]


def test_a_checkpoint_whose_state_is_damaged_keeps_no_job_from_its_database(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: the agent met it at each try, and never registered the job."""
    lost = ScriptedDriver(world.folder / "jobs")
    submit_periodic(lost, 2)
    damage_state(f"{lost.folder}/checkpoints/1/_metadata")

    _, agent = world.driver()

    assert agent.is_connected
    assert [each.id for each in world.store.checkpoints.list(JOB)] == [2]
    assert "the history lacks checkpoint 1: " in caplog.text
    assert world.outcome(world.ask(CommandKind.TRIGGER_CHECKPOINT)).state is CommandState.COMPLETED


def test_a_checkpoint_that_is_removed_while_it_is_read_is_no_outage(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: it was reported as an outage of the database."""
    lost = ScriptedDriver(world.folder / "jobs")
    submit_periodic(lost, 2)
    driver, agent = world.driver(is_ready_to_start=False)
    driver.files = _RemovedWhenRead(f"{lost.folder}/checkpoints/1/_metadata")

    world.start(driver, agent)

    assert agent.is_connected
    assert (agent.metrics().database_failures, caplog.text) == (0, "")
    assert [each.id for each in world.store.checkpoints.list(JOB)] == [2]


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


def test_what_an_older_driver_had_begun_has_failed_and_what_is_gone_was_discarded(world: World) -> None:
    first, agent = world.driver()
    submit_periodic(first, 2)
    first.is_automatic = False
    submit_periodic(first, 1)
    eventually(lambda: len(world.store.checkpoints.list(JOB)) == 3)
    agent.close(is_fenced=True)
    first.discard(1)
    world.driver()
    expected = {1: CheckpointState.DISCARDED, 2: CheckpointState.COMPLETED, 3: CheckpointState.FAILED}
    # A driver waits only a few seconds for the first pass of its agent.
    eventually(lambda: {each.id: each.state for each in world.store.checkpoints.list(JOB)} == expected)


@pytest.mark.parametrize("has_failed", [False, True])
@pytest.mark.parametrize("kind", [CommandKind.STOP, CommandKind.STOP_WITH_SAVEPOINT])
def test_a_job_whose_driver_died_of_a_stop_while_the_database_was_away_ends_all_the_same(
    world: World, kind: CommandKind, has_failed: bool
) -> None:
    """Bug: it ran on. The stop was completed as one of long ago, or by the driver that was failing."""
    first, agent = world.driver(is_supervised=True, supervisor="s")
    has_died = threading.Event()
    first.stop = lambda *_, **__: has_died.set()  # type: ignore[method-assign]
    command = world.ask(kind)
    assert has_died.wait(SECONDS)
    world.expire(command)
    if has_failed:
        agent.close(JobState.FAILED, "Spark is gone")
        assert world.store.commands.get(command).state is CommandState.CLAIMED
    world.away()
    agent.close(is_fenced=True)
    second, _ = world.driver(is_supervised=True, supervisor="s")
    world.back()
    done = world.outcome(command)
    assert done.state is CommandState.COMPLETED
    assert second.ended.wait(SECONDS)
    assert done.result is not None
    assert (done.result.get("savepoint") is not None) == (kind is CommandKind.STOP_WITH_SAVEPOINT)
