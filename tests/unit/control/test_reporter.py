"""What the driver says is written in order, survives a database that fails, and poison does not stop it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coord_control.control.agent.buffer import Buffer, CommandEnded, Sampled
from coord_control.control.agent.reporter import Reporter
from coord_control.errors import DatabaseError
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.protocol.statistics import CheckpointStatus
from coord_control.storage.records import CheckpointState, CommandState, Outcome, QuerySample
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.agent_kit import JOB, ScriptedDriver, control_settings, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    store = open_store(control_settings(tmp_path / "control.db"))
    store.jobs.register(records.registration(queries=(), operators=()))
    yield store
    store.close()


@pytest.fixture
def driver(tmp_path: Path) -> ScriptedDriver:
    return ScriptedDriver(tmp_path / "jobs", is_automatic=False)


@pytest.fixture
def buffer() -> Buffer:
    return Buffer()


@pytest.fixture
def reporter(driver: ScriptedDriver, buffer: Buffer) -> Reporter:
    reporter = Reporter(driver.facts, buffer, lambda: None)
    driver.add_listener(reporter)
    return reporter


def test_a_checkpoint_is_seen_under_way_then_complete_then_discarded(
    driver: ScriptedDriver, reporter: Reporter, store: ControlStore
) -> None:
    def state() -> CheckpointState:
        reporter.flush(store)
        return store.checkpoints.get(JOB, 1).state

    driver.submit(CheckpointRequest())
    assert state() is CheckpointState.IN_PROGRESS
    driver.complete(1)
    assert state() is CheckpointState.COMPLETED
    driver.submit(CheckpointRequest())
    driver.complete(2)
    driver.discard(1)
    assert state() is CheckpointState.DISCARDED


def test_the_one_under_way_goes_with_the_heartbeats(driver: ScriptedDriver, reporter: Reporter) -> None:
    seen = [reporter.current]
    driver.submit(CheckpointRequest())
    seen.append(reporter.current)
    driver.complete(1)
    seen.append(reporter.current)
    assert seen == [None, 1, None]


def test_what_could_not_be_written_waits(
    driver: ScriptedDriver, reporter: Reporter, buffer: Buffer, store: ControlStore, tmp_path: Path
) -> None:
    away = open_store(control_settings(tmp_path))  # a folder is no database
    driver.submit(CheckpointRequest())
    with pytest.raises(DatabaseError):
        reporter.flush(away)
    driver.complete(1)
    driver.submit(CheckpointRequest())
    with pytest.raises(DatabaseError):
        reporter.flush(away)
    away.close()
    assert len(buffer) == 2
    reporter.flush(store)
    assert len(buffer) == 0
    found = {each.id: each.state for each in store.checkpoints.list(JOB)}
    assert found == {1: CheckpointState.COMPLETED, 2: CheckpointState.IN_PROGRESS}


def test_a_record_that_no_database_takes_is_counted_and_keeps_nothing_back(
    driver: ScriptedDriver, reporter: Reporter, buffer: Buffer, store: ControlStore
) -> None:
    driver.submit(CheckpointRequest())
    (statistics,) = buffer.take_current()
    driver.complete(1)
    (good,) = buffer.facts(1)
    buffer.written(good)
    reporter.on_checkpoint(replace(statistics, status=CheckpointStatus.FAILED, message="\x00" * 10, label="x" * 10_000))
    buffer.add(good)
    reporter.flush(store)
    assert buffer.dropped == 1
    assert store.checkpoints.get(JOB, 1).state is CheckpointState.COMPLETED


def test_samples_and_checkpoints_under_way_that_no_database_takes_keep_nothing_back(
    driver: ScriptedDriver, reporter: Reporter, buffer: Buffer, store: ControlStore
) -> None:
    """Bug: they were written again and again, and the agent took the database for lost."""
    driver.submit(CheckpointRequest())
    (statistics,) = buffer.take_current()
    reporter.on_checkpoint(replace(statistics, label="x" * 10_000))
    now = datetime.datetime.now(datetime.UTC)
    for rows in (2**70, 1):
        buffer.sample(Sampled((QuerySample(job=JOB, query="q", at=now, rows=rows),), ()))
    reporter.flush(store)
    assert (len(buffer), buffer.dropped) == (0, 2)
    found = store.samples.queries(JOB, now - datetime.timedelta(minutes=1))
    assert [each.rows for each in found] == [1]


def test_a_result_that_no_database_takes_ends_its_command_nevertheless(
    reporter: Reporter, buffer: Buffer, store: ControlStore
) -> None:
    """Bug: the outcome was dropped, and its client waited."""
    asked = store.commands.submit(records.request())
    (command,) = store.commands.claim(JOB, 1, 10)
    result = Outcome(state=CommandState.COMPLETED, result={"path": "/s/7"}, checkpoint=2**70)
    buffer.add(CommandEnded(command.id, 1, result))
    reporter.flush(store)
    done = store.commands.get(asked.id)
    assert done.state is CommandState.FAILED
    assert done.error is not None
    assert "refuses its result" in done.error.message
