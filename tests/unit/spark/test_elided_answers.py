"""Answers that need no durable write rest on a check of the generation, and never on an old one (rule 4).

An idle control plane writes nothing, so nothing but the check keeps a fenced driver's Spark from committing.
"""

from __future__ import annotations

import pytest

from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.generations import LEASE_SECONDS, UNSEEN_SECONDS, WATCH_SECONDS
from coord_control.durable.job_folder.holder import Holder
from coord_control.errors import Fenced, StoreUnavailable
from coord_control.protocol.messages import Acknowledge, Hello
from tests.core_kit import attempt
from tests.patience import SECONDS
from tests.simulation.memory_files import MemoryFiles
from tests.unit.spark.runtime_kit import (
    RuntimeDriver,
    refused,
)


@pytest.fixture
def idle(driver: RuntimeDriver) -> RuntimeDriver:
    """A driver whose next epochs write nothing."""
    driver.run_epoch(driver.connect(), 0, 1)
    while driver.verified.acquire(blocking=False):
        pass
    return driver


def test_answers_that_write_nothing_are_given_on_a_check_of_a_moment_ago(idle: RuntimeDriver) -> None:
    records = len(idle.log)
    idle.run_epoch(idle.connect(), 1, 2)
    assert len(idle.log) == records
    assert not idle.verified.acquire(blocking=False)


def test_an_idle_control_plane_does_not_let_a_fenced_driver_commit(idle: RuntimeDriver) -> None:
    idle.is_fresh = False
    idle.fenced_by = Fenced("job", 1, 2)
    assert "claimed generation 2" in refused(idle.in_thread(idle.connect().hello, Hello(attempt(0, 1, 2))))
    assert idle.fencings.get(timeout=SECONDS) is idle.fenced_by


def test_an_ack_that_writes_nothing_is_not_answered_on_an_old_check(idle: RuntimeDriver) -> None:
    connection = idle.connect()
    connection.hello(Hello(attempt(0, 1, 2)))
    idle.is_fresh = False
    idle.fenced_by = Fenced("job", 1, 2)
    assert refused(idle.in_thread(connection.acknowledge, Acknowledge(attempt(0, 1, 2), None)))


def test_answers_wait_for_a_storage_that_hangs(idle: RuntimeDriver) -> None:
    idle.is_fresh = False
    idle.open_for_checks.clear()
    hello = idle.in_thread(idle.connect().hello, Hello(attempt(0, 1, 2)))
    assert idle.verified.acquire(timeout=SECONDS)
    idle.settle_loop()
    assert not hello.done()
    idle.open_for_checks.set()
    hello.result(SECONDS)


def test_answers_are_refused_when_the_check_fails(idle: RuntimeDriver) -> None:
    idle.is_fresh = False
    idle.unreachable = StoreUnavailable("generations/1.json", "read", "down")
    assert "cannot" in refused(idle.in_thread(idle.connect().hello, Hello(attempt(0, 1, 2))))


class TestLease:
    """How old a check may be; the claim's own clock."""

    def test_a_check_counts_from_its_beginning_and_for_so_long(self) -> None:
        disk, now = MemoryFiles(), [100.0]

        class Slow(MemoryFiles):
            def read(self, path: str) -> bytes:
                now[0] += 0.25
                return super().read(path)

        slow = Slow()
        slow._disk = disk._disk
        mine = generations.claim(slow, "/job/generations", Holder.of([]), clock=lambda: now[0])
        assert not mine.is_fresh()
        now[0] = 200.0
        assert mine.is_current()
        now[0] = 200.0 + LEASE_SECONDS
        assert mine.is_fresh()
        now[0] += 0.01
        assert not mine.is_fresh()

    def test_what_was_checked_a_moment_ago_is_not_read_again(self) -> None:
        disk, now, reads = MemoryFiles(), [128.0], list[str]()

        class Counting(MemoryFiles):
            def read(self, path: str) -> bytes:
                reads.append(path)
                return super().read(path)

        counting = Counting()
        counting._disk = disk._disk
        mine = generations.claim(counting, "/job/generations", Holder.of([]), clock=lambda: now[0])
        mine.verify_recent("job")
        reads.clear()
        for _ in range(8):
            now[0] += LEASE_SECONDS / 8
            mine.verify_recent("job")
        assert not reads
        generations.claim(disk, "/job/generations", Holder.of([]))
        mine.verify_recent("job")  # the successor waits for longer than this
        now[0] += 0.01
        with pytest.raises(Fenced):
            mine.verify_recent("job")

    def test_a_check_that_finds_a_newer_driver_ends_it_at_once(self) -> None:
        disk = MemoryFiles()
        mine = generations.claim(disk, "/job/generations", Holder.of([]))
        assert mine.is_current()
        assert mine.is_fresh()
        generations.claim(disk, "/job/generations", Holder.of([]))
        assert not mine.is_current()
        assert not mine.is_fresh()

    def test_a_successor_waits_longer_than_answers_are_given(self) -> None:
        assert WATCH_SECONDS < LEASE_SECONDS < UNSEEN_SECONDS
