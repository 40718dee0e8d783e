"""What the driver says is written in order, survives a database that fails, and poison does not stop it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coord_control.control.agent.buffer import Buffer
from coord_control.control.agent.reporter import Reporter
from coord_control.errors import DatabaseError
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.protocol.statistics import CheckpointStatus
from coord_control.storage.records import CheckpointState
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
