"""Becoming the job's driver: whom a new driver waits for, and how long."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Aliveness, Holder
from coord_control.durable.job_folder.restore_log import newest_restore, next_number
from coord_control.durable.offline.offline_savepoint import own_job
from coord_control.ids import Generation
from coord_control.protocol.job_facts import RecoveryCause
from coord_control.spark.job import driver_takeover
from coord_control.spark.job.driver_takeover import cause_of, take_over
from tests.simulation.memory_files import MemoryFiles

FOLDER = "/jobs/job"
CLAIMS = join(FOLDER, "generations")


class Session:
    """As much of a Spark session as tells the process id of its JVM; here this process stands for it."""

    def __init__(self) -> None:
        process = SimpleNamespace(pid=os.getpid)
        handle = SimpleNamespace(current=lambda: process)
        jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(ProcessHandle=handle)))
        self.sparkContext = SimpleNamespace(_jvm=jvm)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def session() -> Any:
    return Session()


def ended_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_the_first_driver_waits_for_nobody(files: MemoryFiles, session: Any) -> None:
    claim = take_over(files, FOLDER, session)
    assert claim.generation == 1
    assert claim.is_current()
    record = generations.ClaimRecord.model_validate_json(files.read(join(CLAIMS, "1.json")))
    assert [process.pid for process in record.holder.processes] == [os.getpid(), os.getpid()]


def test_nobody_waits_for_a_driver_that_said_that_it_has_ended(
    files: MemoryFiles, session: Any, caplog: pytest.LogCaptureFixture
) -> None:
    take_over(files, FOLDER, session).release()
    assert take_over(files, FOLDER, session).generation == 2
    assert caplog.text == ""


@pytest.mark.parametrize("has_ended", [True, False], ids=["ended", "died"])
def test_a_command_on_the_storage_does_not_hide_how_the_driver_before_it_has_ended(
    files: MemoryFiles, session: Any, has_ended: bool
) -> None:
    holder = Holder.of([os.getpid()])
    gone = holder.processes[0].model_copy(update={"pid": ended_process()})
    driver = generations.claim(files, CLAIMS, holder.model_copy(update={"processes": (gone,)}))
    if has_ended:
        driver.release()
    for above in (Generation(0), Generation(5)):
        with own_job(files, FOLDER, above=above):
            pass
    cause = RecoveryCause.DRIVER_START if has_ended else RecoveryCause.DRIVER_DIED
    assert cause_of(take_over(files, FOLDER, session)) is cause


def test_a_first_driver_after_a_command_on_the_storage_just_starts(files: MemoryFiles, session: Any) -> None:
    with own_job(files, FOLDER):
        pass
    assert cause_of(take_over(files, FOLDER, session)) is RecoveryCause.DRIVER_START


def test_nobody_waits_for_a_driver_whose_processes_are_gone(files: MemoryFiles, session: Any) -> None:
    holder = Holder.of([os.getpid()])
    gone = holder.processes[0].model_copy(update={"pid": ended_process()})
    generations.claim(files, CLAIMS, holder.model_copy(update={"processes": (gone,)}))
    assert take_over(files, FOLDER, session).generation == 2


def test_a_jvm_that_outlives_its_python_for_a_moment_is_no_driver_that_somebody_lost(
    files: MemoryFiles, session: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_takeover, "_ALIVE_SECONDS", 0.0)
    holder = Holder.of([os.getpid()])
    gone = holder.processes[0].model_copy(update={"pid": ended_process()})
    generations.claim(files, CLAIMS, holder.model_copy(update={"processes": (gone, *holder.processes)}))
    assert take_over(files, FOLDER, session).found is Aliveness.ALIVE
    assert "has a driver that" not in caplog.text


def test_a_driver_that_can_be_seen_is_fenced_first_and_then_waited_for(
    files: MemoryFiles, session: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first = take_over(files, FOLDER, session)
    claims: list[Generation] = []

    def second() -> None:
        claims.append(take_over(files, FOLDER, session).generation)

    waiting = threading.Thread(target=second)
    waiting.start()
    while first.is_current() or not caplog.messages:
        assert waiting.is_alive()
    assert claims == []  # it has claimed, and does nothing before we have said that we have ended
    first.release()
    waiting.join(30.0)
    assert claims == [2]
    [said] = caplog.messages
    assert f"job job has a driver that runs: generation 1, process {os.getpid()} on {socket.gethostname()}" in said
    assert "coordctl generations job" in said


@pytest.mark.parametrize(
    ("changes", "limit"),
    [({"host": "elsewhere"}, "_UNKNOWN_SECONDS"), ({}, "_ALIVE_SECONDS")],
    ids=["unknown", "alive"],
)
def test_a_driver_that_does_not_end_is_not_waited_for_for_ever(
    files: MemoryFiles,
    session: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, str],
    limit: str,
) -> None:
    # Only the limit that counts is short: with the other one this test would not end.
    monkeypatch.setattr(driver_takeover, "_UNKNOWN_SECONDS", 1e9)
    monkeypatch.setattr(driver_takeover, "_ALIVE_SECONDS", 1e9)
    monkeypatch.setattr(driver_takeover, limit, 0.0)
    generations.claim(files, CLAIMS, Holder.of([os.getpid()]).model_copy(update=changes))
    with caplog.at_level(logging.WARNING):
        assert take_over(files, FOLDER, session).generation == 2
    assert "it is fenced off, continuing without it" in caplog.text
    assert f"a driver that {'may still run' if changes else 'runs'}: generation 1" in caplog.text


def test_a_driver_that_follows_another_process_seals_the_restores_of_the_job(files: MemoryFiles, session: Any) -> None:
    """Fault: a restore that was stopped for a while took place after the driver had run further epochs."""
    take_over(files, FOLDER, session).release()
    assert next_number(files, FOLDER) == 1, "nobody can have begun one before the first driver"
    take_over(files, FOLDER, session).release()
    assert next_number(files, FOLDER) == 2
    assert newest_restore(files, FOLDER) is None


def test_a_command_on_the_storage_is_not_taken_for_a_driver(
    files: MemoryFiles, session: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_takeover, "_ALIVE_SECONDS", 0.1)
    with own_job(files, FOLDER), caplog.at_level(logging.WARNING):
        take_over(files, FOLDER, session)
    assert "is a command that works on the storage of the job" in caplog.text
    assert "has a driver that" not in caplog.text
