"""The runtime when something breaks: a write, a call, a coordinator, a connection, the core, or the job's end."""

from __future__ import annotations

import threading

import pytest

from coord_control.coordinators import SnapshotResult
from coord_control.errors import (
    AttemptRefused,
    CoordControlError,
    CoordinatorFailed,
    EndpointError,
    Fenced,
    JobClosed,
    StoreUnavailable,
)
from coord_control.ids import NO_EPOCH, CheckpointId, Epoch, QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import Acknowledge, Hello, Welcome
from coord_control.protocol.records import Ack, Begin
from coord_control.protocol.recovery import Facts
from tests.core_kit import FIRST_RUN, QUERY, attempt
from tests.patience import SECONDS
from tests.unit.spark.runtime_kit import (
    Counting,
    RuntimeDriver,
    refused,
)


def test_a_lost_connection_is_a_failed_attempt(driver: RuntimeDriver, coordinator: Counting) -> None:
    connection = driver.connect()
    connection.hello(Hello(attempt(0, 0, 7)))
    connection.close()
    assert coordinator.heard.acquire(timeout=SECONDS)
    assert coordinator.calls[-1] == "failed 7: the connection to its Python worker was lost"


def test_a_lost_write_refuses_who_waits_and_fails_the_query(driver: RuntimeDriver) -> None:
    lost = driver.broken = StoreUnavailable("folder", "create", "disk full")
    driver.hold_writes()
    hello = driver.in_thread(driver.connect().hello, Hello(attempt(0, 0, 1)))
    driver.wait_for_write()
    late = driver.in_thread(driver.connect().hello, Hello(attempt(1, 0, 2)))
    driver.await_frames(2)
    driver.open_for_writes.set()
    assert "could not" in refused(hello)
    assert refused(late)
    assert driver.failures.get(timeout=SECONDS) == (QUERY, lost)
    assert driver.log == []
    with pytest.raises(AttemptRefused, match="the query is being restarted"):
        driver.connect().hello(Hello(attempt(0, 0, 3)))
    # The storage is back and the query starts again: nothing of the failure is left.
    driver.broken = None
    driver.start_run()
    driver.run_epoch(driver.connect(), 0, 4, b"a")
    assert [type(record) for record in driver.log] == [Begin, Ack]
    assert driver.failures.empty()


def test_an_aborted_checkpoint_is_told_although_the_records_before_it_are_lost(driver: RuntimeDriver) -> None:
    driver.broken = StoreUnavailable("folder", "create", "disk full")
    driver.hold_writes()
    hello = driver.in_thread(driver.connect().hello, Hello(attempt(0, 0, 1)))
    driver.wait_for_write()
    driver.runtime.post(lambda core, now: core.end_run(QUERY, FIRST_RUN, now))
    driver.runtime.post(lambda core, now: core.trigger_checkpoint(CheckpointId(7), [QUERY], now))
    driver.settle_loop()
    assert driver.aborted.empty()
    driver.open_for_writes.set()
    assert refused(hello)
    failed = driver.aborted.get(timeout=SECONDS)
    assert (failed.checkpoint, failed.reason) == (7, FailureReason.QUERY_RESTARTING)
    assert driver.aborted.empty()


def test_a_call_whose_records_are_lost_says_so(driver: RuntimeDriver) -> None:
    connection = driver.connect()
    connection.hello(Hello(attempt(0, 0, 1)))
    connection.acknowledge(Acknowledge(attempt(0, 0, 1), b"a"))
    driver.broken = OSError(28, "No space left on device")
    facts = Facts(tuple(driver.log), NO_EPOCH, NO_EPOCH)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        driver.start_run(facts)


def test_a_call_that_raises_hurts_nobody_else(driver: RuntimeDriver) -> None:
    with pytest.raises(KeyError):
        driver.runtime.call(lambda core, now: core.committed(QueryName("nobody"), Epoch(0), now, FIRST_RUN))
    assert driver.runtime.call(lambda core, now: core.generation) == 1
    assert driver.connect().hello(Hello(attempt())) == Welcome(None, ())
    assert driver.failures.empty()


def test_a_newer_generation_ends_everything(driver: RuntimeDriver) -> None:
    driver.fenced_by = Fenced("job", 1)
    assert "a newer generation" in refused(driver.in_thread(driver.connect().hello, Hello(attempt())))
    assert driver.fencings.get(timeout=SECONDS) is driver.fenced_by
    assert driver.failures.get(timeout=SECONDS) == (QUERY, driver.fenced_by)


def test_a_defect_in_the_core_ends_the_queries_and_is_named(driver: RuntimeDriver) -> None:
    def defect(core: JobCore, now: float) -> None:
        raise ZeroDivisionError("a defect")

    driver.runtime.post(defect)
    query, error = driver.failures.get(timeout=SECONDS)
    assert query == QUERY
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "the protocol core failed: ZeroDivisionError('a defect'); please report this" in str(error)
    assert not error.retry


def test_a_defect_in_the_middle_of_a_group_leaves_nobody_waiting(driver: RuntimeDriver) -> None:
    first, second = driver.connect(), driver.connect()
    first.hello(Hello(attempt(0, 0, 1)))
    second.hello(Hello(attempt(1, 0, 2)))
    first.acknowledge(Acknowledge(attempt(0, 0, 1), b"a"))
    driver.defect = ZeroDivisionError("a defect")
    driver.hold_writes()
    ack = driver.in_thread(second.acknowledge, Acknowledge(attempt(1, 0, 2), b"b"))
    driver.wait_for_write()
    # The next group: an epoch is settled, on which the defect shows, and behind it two that wait for an answer.
    driver.runtime.post(lambda core, now: core.committed(QUERY, Epoch(0), now, FIRST_RUN))
    driver.settle_loop()
    behind = driver.in_thread(first.hello, Hello(attempt(generation=2)))
    driver.await_frames(5)
    reached = threading.Event()
    call = driver.in_thread(driver.runtime.call, lambda core, now: reached.set())
    assert reached.wait(SECONDS)
    driver.settle_loop()
    driver.open_for_writes.set()
    ack.result(SECONDS)
    assert "ZeroDivisionError('a defect')" in refused(behind)
    with pytest.raises(CoordControlError, match="a defect"):
        call.result(2 * SECONDS)
    query, error = driver.failures.get(timeout=SECONDS)
    assert query == QUERY
    assert error.__cause__ is driver.defect
    assert driver.runtime.call(lambda core, now: core.generation) == 1


def test_a_defect_in_what_follows_from_a_call_reaches_its_caller(driver: RuntimeDriver) -> None:
    connection = driver.connect()
    connection.hello(Hello(attempt()))
    connection.acknowledge(Acknowledge(attempt(), b"a"))
    driver.defect = ZeroDivisionError("a defect")
    with pytest.raises(CoordControlError, match="a defect"):
        driver.runtime.call(lambda core, now: core.committed(QUERY, Epoch(0), now, FIRST_RUN))
    assert driver.failures.get(timeout=SECONDS)[0] == QUERY


def test_after_the_end_posts_do_nothing_and_calls_say_why(coordinator: Counting) -> None:
    driver = RuntimeDriver(coordinator)
    driver.close()
    for _ in range(2):
        driver.runtime.post(lambda core, now: None)
        with pytest.raises(JobClosed):
            driver.runtime.call(lambda core, now: None)


def test_who_waits_for_a_write_when_the_job_ends_is_told(driver: RuntimeDriver) -> None:
    driver.hold_writes()
    hello = driver.in_thread(driver.connect().hello, Hello(attempt()))
    driver.wait_for_write()
    reached = threading.Event()
    call = driver.in_thread(driver.runtime.call, lambda core, now: reached.set())
    assert reached.wait(SECONDS)
    driver.runtime.close(JobClosed("job"))
    assert isinstance(call.exception(2 * SECONDS), JobClosed)
    assert isinstance(hello.exception(SECONDS), EndpointError)
    # The storage answers after all: the writer finds nobody to tell, and ends as always.
    driver.open_for_writes.set()
    driver.runtime.writer.close(SECONDS)
    assert [type(record) for record in driver.log] == [Begin]


def test_a_coordinator_that_raises_fails_its_query(coordinator: Counting) -> None:
    class Failing(Counting):
        def checkpoint_coordinator(self, checkpoint_id: int, result: SnapshotResult) -> None:
            raise ValueError("no state today")

    driver = RuntimeDriver(Failing())
    try:
        hello = driver.in_thread(driver.connect().hello, Hello(attempt()))
        query, error = driver.failures.get(timeout=SECONDS)
        assert query == QUERY
        assert isinstance(error, CoordinatorFailed)
        assert "ValueError: no state today" in error.traceback
        driver.runtime.call(lambda core, now: core.end_run(QUERY, None, now))
        assert refused(hello) == "the query is being restarted"
    finally:
        driver.close()


def test_what_reading_raises_is_raised_to_the_reader_and_nobody_else(driver: RuntimeDriver) -> None:
    with pytest.raises(ZeroDivisionError):
        driver.runtime.read(lambda core, now: 1 // 0, SECONDS)
    assert driver.failures.empty()


def test_a_loop_that_does_not_answer_and_one_that_has_ended(driver: RuntimeDriver) -> None:
    held = threading.Event()

    def hold(core: JobCore, now: float) -> None:
        held.wait(SECONDS)

    driver.runtime.post(hold)
    with pytest.raises(TimeoutError, match="has not answered within"):
        driver.runtime.read(lambda core, now: None, 0.01)
    held.set()
    driver.runtime.close(JobClosed("job"))
    with pytest.raises(JobClosed):
        driver.runtime.read(lambda core, now: None, SECONDS)
