"""The runtime between real sockets and a storage that can wait: what becomes visible when (invariant I4)."""

from __future__ import annotations

import pytest

from coord_control.errors import AttemptRefused
from coord_control.ids import NO_EPOCH, AttemptId
from coord_control.protocol.messages import Acknowledge, Hello, Welcome
from coord_control.protocol.records import Ack, Begin, EventBatch
from coord_control.protocol.recovery import Facts
from coord_control.spark.loop import runtime
from tests.core_kit import QUERY, attempt
from tests.patience import SECONDS
from tests.unit.spark.runtime_kit import (
    Counting,
    Ping,
    RuntimeDriver,
    ping,
)


def test_a_hello_is_answered_when_its_begin_record_is_durable(driver: RuntimeDriver) -> None:
    driver.hold_writes()
    answer = driver.in_thread(driver.connect().hello, Hello(attempt()))
    driver.wait_for_write()
    driver.settle_loop()
    assert not answer.done()
    driver.open_for_writes.set()
    assert answer.result(SECONDS) == Welcome(None, ())
    assert [type(record) for record in driver.log] == [Begin]


def test_an_ack_is_answered_when_it_is_durable(driver: RuntimeDriver) -> None:
    connection = driver.connect()
    connection.hello(Hello(attempt()))
    driver.hold_writes()
    answer = driver.in_thread(connection.acknowledge, Acknowledge(attempt(), b"state"))
    driver.wait_for_write()
    driver.settle_loop()
    assert not answer.done()
    driver.open_for_writes.set()
    answer.result(SECONDS)
    (_, ack) = driver.log
    assert isinstance(ack, Ack)
    assert ack.state == b"state"


def test_acks_that_come_during_a_write_share_the_next_one(driver: RuntimeDriver) -> None:
    first, second, third = (driver.connect() for _ in range(3))
    first.hello(Hello(attempt(0, 0, 1)))
    second.hello(Hello(attempt(1, 0, 2)))
    third.hello(Hello(attempt(1, 0, 3)))
    writes = driver.runtime.writer.writes
    driver.hold_writes()
    answers = [driver.in_thread(first.acknowledge, Acknowledge(attempt(0, 0, 1), b"a"))]
    driver.wait_for_write()
    answers.append(driver.in_thread(second.acknowledge, Acknowledge(attempt(1, 0, 2), b"b")))
    answers.append(driver.in_thread(third.acknowledge, Acknowledge(attempt(1, 0, 3), b"b")))
    driver.await_frames(6)
    driver.open_for_writes.set()
    for answer in answers:
        answer.result(SECONDS)
    assert driver.runtime.writer.writes == writes + 2
    assert len(driver.log) == 4


def test_on_a_remote_storage_acks_of_subtasks_that_run_at_once_are_one_write(
    coordinator: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_TICK_SECONDS", 3600.0)  # each tick ends the wait
    driver = RuntimeDriver(coordinator, gather_seconds=3600.0)
    try:
        first, second = driver.connect(), driver.connect()
        first.hello(Hello(attempt(0, 0, 1)))
        second.hello(Hello(attempt(1, 0, 2)))
        writes = driver.runtime.writer.writes
        waiting = driver.in_thread(first.acknowledge, Acknowledge(attempt(0, 0, 1), b"a"))
        driver.await_frames(3)
        assert not waiting.done()
        second.acknowledge(Acknowledge(attempt(1, 0, 2), b"b"))
        waiting.result(SECONDS)
        assert driver.runtime.writer.writes == writes + 1
        # Nothing is gathered for an ack without a record, and none is waited for where no other subtask runs.
        driver.commit(0)
        first.hello(Hello(attempt(0, 1, 3)))
        second.hello(Hello(attempt(1, 1, 4)))
        first.acknowledge(Acknowledge(attempt(0, 1, 3), None))
        second.acknowledge(Acknowledge(attempt(1, 1, 4), b"c"))
    finally:
        driver.close()


def test_an_ack_waits_no_longer_than_that_for_a_subtask_that_runs_on(coordinator: Counting) -> None:
    driver = RuntimeDriver(coordinator, gather_seconds=0.01)
    try:
        first, second = driver.connect(), driver.connect()
        first.hello(Hello(attempt(0, 0, 1)))
        second.hello(Hello(attempt(1, 0, 2)))
        first.acknowledge(Acknowledge(attempt(0, 0, 1), b"a"))
        assert [type(record) for record in driver.log] == [Begin, Ack]
    finally:
        driver.close()


def test_what_writes_nothing_waits_for_the_writes_before_it(driver: RuntimeDriver) -> None:
    first, second = driver.connect(), driver.connect()
    first.hello(Hello(attempt(0, 0, 1)))
    driver.hold_writes()
    ack = driver.in_thread(first.acknowledge, Acknowledge(attempt(0, 0, 1), b"a"))
    driver.wait_for_write()
    # The epoch runs and has its begin record: this answer needs no write of its own, and yet must not overtake.
    hello = driver.in_thread(second.hello, Hello(attempt(1, 0, 2)))
    driver.await_frames(3)
    assert not hello.done()
    driver.open_for_writes.set()
    assert hello.result(SECONDS) == Welcome(None, ())
    ack.result(SECONDS)


def test_an_idle_epoch_writes_nothing(driver: RuntimeDriver) -> None:
    connection = driver.connect()
    driver.run_epoch(connection, 0, 1, b"a")
    log, writes = list(driver.log), driver.runtime.writer.writes
    for epoch in range(1, 11):
        driver.run_epoch(connection, epoch, 1 + epoch)
    assert driver.log == log
    assert driver.runtime.writer.writes == writes


def test_events_arrive_after_the_commit_and_before_the_next_snapshot(
    driver: RuntimeDriver, coordinator: Counting
) -> None:
    connection = driver.connect()
    for epoch in range(2):
        connection.hello(Hello(attempt(0, epoch, epoch)))
        connection.acknowledge(Acknowledge(attempt(0, epoch, epoch), None, (ping(epoch), ping(10 + epoch))))
    driver.commit(1)
    assert driver.thread.drain(SECONDS)
    assert coordinator.calls == [
        *("snapshot", "event 0 of 0", "event 10 of 0", "complete"),
        *("snapshot", "event 1 of 0", "event 11 of 0", "complete"),
    ]
    assert [(e.epoch, e.events_up, e.ran) for e in (driver.epochs.get(timeout=SECONDS) for _ in range(2))] == [
        (0, 2, 1),
        (1, 2, 1),
    ]


def test_events_down_are_served_to_the_next_epoch(driver: RuntimeDriver, coordinator: Counting) -> None:
    for number in range(3):
        coordinator.context.send(0, Ping(number=number))
    answer = driver.connect().hello(Hello(attempt()))
    assert answer.inputs == (EventBatch(0, 3, b'{"number":0},{"number":1},{"number":2}'),)


def test_a_call_returns_when_what_follows_from_it_is_durable(driver: RuntimeDriver) -> None:
    connection = driver.connect()
    connection.hello(Hello(attempt(0, 0, 1)))
    connection.acknowledge(Acknowledge(attempt(0, 0, 1), b"a"))
    driver.runtime.call(lambda core, now: core.end_run(QUERY, None, now))
    # A run that begins before the recorded ack has to void it first.
    facts = Facts(tuple(driver.log), NO_EPOCH, NO_EPOCH)
    driver.hold_writes()
    started = driver.in_thread(driver.start_run, facts)
    driver.wait_for_write()
    driver.settle_loop()
    assert not started.done()
    driver.open_for_writes.set()
    started.result(SECONDS)
    assert len(driver.log) == 3


def test_what_threads_post_runs_in_their_order(driver: RuntimeDriver) -> None:
    seen: list[tuple[int, int]] = []

    def post(thread: int) -> None:
        for number in range(500):
            driver.runtime.post(lambda core, now, number=number: seen.append((thread, number)))  # type: ignore[misc]

    posting = [driver.in_thread(post, thread) for thread in range(4)]
    for one in posting:
        one.result(SECONDS)
    driver.runtime.call(lambda core, now: None)
    assert len(seen) == 2000
    for thread in range(4):
        assert [number for who, number in seen if who == thread] == list(range(500))


@pytest.mark.parametrize(
    ("stale", "reason"),
    [
        (attempt(generation=2), "generation 2"),
        (attempt(query_id="another"), "start the query with job.start"),
        (attempt(operator="stray"), "belongs to no query"),
        (attempt(subtask=9), "has no subtask 9"),
    ],
    ids=["generation", "query", "operator", "subtask"],
)
def test_attempts_that_do_not_belong_here_are_refused_over_the_wire(
    driver: RuntimeDriver, stale: AttemptId, reason: str
) -> None:
    connection = driver.connect()
    with pytest.raises(AttemptRefused, match=reason):
        connection.hello(Hello(stale))
    assert connection.hello(Hello(attempt())) == Welcome(None, ())


def test_to_read_the_core_does_not_wait_for_the_storage(driver: RuntimeDriver) -> None:
    driver.hold_writes()
    answer = driver.in_thread(driver.connect().hello, Hello(attempt()))
    driver.wait_for_write()
    [operator] = driver.runtime.read(lambda core, now: core.operators(), SECONDS)
    assert operator.epoch is not None
    assert not answer.done()
    driver.open_for_writes.set()
    assert answer.result(SECONDS) == Welcome(None, ())
