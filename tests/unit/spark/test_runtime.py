"""The runtime between real sockets and a storage that can wait or fail: what becomes visible when (invariant I4)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from coord_control.coordinators import OperatorCoordinator, SnapshotResult, StatefulCoordinator
from coord_control.errors import (
    AttemptRefused,
    CoordControlError,
    CoordinatorFailed,
    EndpointError,
    Fenced,
    JobClosed,
    StoreUnavailable,
)
from coord_control.ids import NO_EPOCH, AttemptId, Epoch, Generation, OperatorUid, QueryName
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import Acknowledge, EpochSettled, Hello, Welcome
from coord_control.protocol.records import Ack, Begin, EventBatch, Record
from coord_control.protocol.recovery import Facts
from coord_control.spark.bound_coordinator import BoundCoordinator
from coord_control.spark.connection import Connection, connect
from coord_control.spark.coordinator_thread import CoordinatorThread
from coord_control.spark.models import EventTypes
from coord_control.spark.news import News
from coord_control.spark.runtime import JobRuntime
from tests.core_kit import OP, QUERY, QUERY_ID, attempt, spec

SECONDS = 30.0
EMPTY = Facts((), NO_EPOCH, NO_EPOCH)

T = TypeVar("T")


class Ping(BaseModel):
    number: int = 0


class Counter(BaseModel):
    heard: int = 0


class Counting(StatefulCoordinator[Counter]):
    """Counts what it hears, and notes every call."""

    def __init__(self) -> None:
        super().__init__(Counter())
        self.calls: list[str] = []
        self.heard = threading.Semaphore(0)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
        self.calls.append(f"event {event.number} of {subtask}")
        self.state.heard += 1
        self.heard.release()

    def checkpoint_coordinator(self, checkpoint_id: int, result: SnapshotResult) -> None:
        self.calls.append("snapshot")
        super().checkpoint_coordinator(checkpoint_id, result)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append("complete")

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str) -> None:
        self.calls.append(f"failed {attempt}: {reason}")
        self.heard.release()


class Rig:
    """A runtime with one query of one operator; the storage is a list that a test can hold or break."""

    def __init__(self, coordinator: OperatorCoordinator) -> None:
        self.log: list[Record] = []
        self.open_for_writes = threading.Event()
        self.open_for_writes.set()
        self.writing = threading.Semaphore(0)  # one for each write that has begun
        self.broken: Exception | None = None
        self.fenced_by: Fenced | None = None
        self.failures: queue.SimpleQueue[tuple[QueryName, CoordControlError]] = queue.SimpleQueue()
        self.fenced: queue.SimpleQueue[Fenced] = queue.SimpleQueue()
        self.settled: queue.SimpleQueue[EpochSettled] = queue.SimpleQueue()
        self.defect: Exception | None = None  # of the one who is told of settled epochs
        coordinators: dict[OperatorUid, BoundCoordinator] = {}
        self.runtime = JobRuntime(
            JobCore(Generation(1)),
            coordinators,
            tls=False,
            append=self._append,
            verify=self._verify,
            query_failed=lambda query, error: self.failures.put((query, error)),
            fenced=self.fenced.put,
            settled=self._settled,
            captured=lambda captured: None,
            checkpoint_failed=lambda failed: None,
        )
        self.runtime.endpoint.start("127.0.0.1")
        self.news = News()
        self.thread = CoordinatorThread()
        down, up = EventTypes(OP, "down", [Ping]), EventTypes(OP, "up", [Ping])
        coordinators[OP] = BoundCoordinator(
            OP, coordinator, 2, down, up, self.thread, self.runtime.post, news=self.news
        )
        self.bound = coordinators[OP]
        self.thread.start()
        self.runtime.start()
        self.workers = ThreadPoolExecutor(8)
        self.connections: list[Connection] = []
        observes = self.bound.observes_attempts
        self.runtime.call(lambda core, now: core.add_query(QUERY, QUERY_ID, [spec(observes_attempts=observes)]))
        self.start_run()

    def start_run(self, facts: Facts = EMPTY) -> None:
        self.runtime.call(lambda core, now: core.start_run(QUERY, facts, now))
        self.bound.start()

    def close(self) -> None:
        self.open_for_writes.set()
        for connection in self.connections:
            connection.close()
        self.workers.shutdown()
        self.thread.close(SECONDS)
        self.runtime.writer.close(SECONDS)
        self.runtime.close(JobClosed("job"))

    def connect(self) -> Connection:
        self.connections.append(connect(self.runtime.endpoint.address))
        return self.connections[-1]

    def commit(self, epoch: int) -> None:
        self.runtime.call(lambda core, now: core.committed(QUERY, Epoch(epoch), now))

    def hold_writes(self) -> None:
        self.open_for_writes.clear()
        while self.writing.acquire(blocking=False):
            pass

    def wait_for_write(self) -> None:
        assert self.writing.acquire(timeout=SECONDS)

    def in_thread(self, function: Callable[..., T], *args: object) -> Future[T]:
        return self.workers.submit(function, *args)

    def settle_loop(self) -> None:
        """Wait until the loop has done everything that has reached it so far."""
        done = threading.Event()
        self.runtime.endpoint.call_soon_threadsafe(done.set)
        assert done.wait(SECONDS)

    def run_epoch(self, connection: Connection, epoch: int, task: int, state: bytes | None = None) -> None:
        connection.hello(Hello(attempt(0, epoch, task)))
        connection.acknowledge(Acknowledge(attempt(0, epoch, task), state))
        self.commit(epoch)

    def _append(self, query: QueryName, records: Sequence[Record]) -> None:
        assert query == QUERY
        self.writing.release()
        assert self.open_for_writes.wait(SECONDS)
        if self.broken is not None:
            raise self.broken
        self.log += records

    def _settled(self, epoch: EpochSettled) -> None:
        if self.defect is not None:
            raise self.defect
        self.settled.put(epoch)

    def _verify(self) -> None:
        if self.fenced_by is not None:
            raise self.fenced_by


@pytest.fixture
def coordinator() -> Counting:
    return Counting()


@pytest.fixture
def rig(coordinator: Counting) -> Iterator[Rig]:
    rig = Rig(coordinator)
    yield rig
    rig.close()


def ping(number: int) -> EventBatch:
    return EventBatch(0, 1, b'{"number":%d}' % number)


def refused(future: Future[Any]) -> str:
    error = future.exception(SECONDS)
    assert isinstance(error, AttemptRefused)
    return error.reason


def test_a_hello_is_answered_when_its_begin_record_is_durable(rig: Rig) -> None:
    rig.hold_writes()
    answer = rig.in_thread(rig.connect().hello, Hello(attempt()))
    rig.wait_for_write()
    rig.settle_loop()
    assert not answer.done()
    rig.open_for_writes.set()
    assert answer.result(SECONDS) == Welcome(None, ())
    assert [type(record) for record in rig.log] == [Begin]


def test_an_ack_is_answered_when_it_is_durable(rig: Rig) -> None:
    connection = rig.connect()
    connection.hello(Hello(attempt()))
    rig.hold_writes()
    answer = rig.in_thread(connection.acknowledge, Acknowledge(attempt(), b"state"))
    rig.wait_for_write()
    rig.settle_loop()
    assert not answer.done()
    rig.open_for_writes.set()
    answer.result(SECONDS)
    (_, ack) = rig.log
    assert isinstance(ack, Ack)
    assert ack.state == b"state"


def test_acks_that_come_during_a_write_share_the_next_one(rig: Rig) -> None:
    first, second, third = (rig.connect() for _ in range(3))
    first.hello(Hello(attempt(0, 0, 1)))
    second.hello(Hello(attempt(1, 0, 2)))
    third.hello(Hello(attempt(1, 0, 3)))
    writes = rig.runtime.writer.writes
    rig.hold_writes()
    answers = [rig.in_thread(first.acknowledge, Acknowledge(attempt(0, 0, 1), b"a"))]
    rig.wait_for_write()
    answers.append(rig.in_thread(second.acknowledge, Acknowledge(attempt(1, 0, 2), b"b")))
    answers.append(rig.in_thread(third.acknowledge, Acknowledge(attempt(1, 0, 3), b"b")))
    while rig.runtime.endpoint.stats().frames_in < 6:
        rig.settle_loop()
    rig.open_for_writes.set()
    for answer in answers:
        answer.result(SECONDS)
    assert rig.runtime.writer.writes == writes + 2
    assert len(rig.log) == 4


def test_what_writes_nothing_waits_for_the_writes_before_it(rig: Rig) -> None:
    first, second = rig.connect(), rig.connect()
    first.hello(Hello(attempt(0, 0, 1)))
    rig.hold_writes()
    ack = rig.in_thread(first.acknowledge, Acknowledge(attempt(0, 0, 1), b"a"))
    rig.wait_for_write()
    # The epoch runs and has its begin record: this answer needs no write of its own, and yet must not overtake.
    hello = rig.in_thread(second.hello, Hello(attempt(1, 0, 2)))
    while rig.runtime.endpoint.stats().frames_in < 3:
        rig.settle_loop()
    assert not hello.done()
    rig.open_for_writes.set()
    assert hello.result(SECONDS) == Welcome(None, ())
    ack.result(SECONDS)


def test_an_idle_epoch_writes_nothing(rig: Rig) -> None:
    connection = rig.connect()
    rig.run_epoch(connection, 0, 1, b"a")
    log, writes = list(rig.log), rig.runtime.writer.writes
    for epoch in range(1, 11):
        rig.run_epoch(connection, epoch, 1 + epoch)
    assert rig.log == log
    assert rig.runtime.writer.writes == writes


def test_events_arrive_after_the_commit_and_before_the_next_snapshot(rig: Rig, coordinator: Counting) -> None:
    connection = rig.connect()
    for epoch in range(2):
        connection.hello(Hello(attempt(0, epoch, epoch)))
        connection.acknowledge(Acknowledge(attempt(0, epoch, epoch), None, (ping(epoch), ping(10 + epoch))))
    rig.commit(1)
    assert rig.thread.drain(SECONDS)
    assert coordinator.calls == [
        *("snapshot", "event 0 of 0", "event 10 of 0", "complete"),
        *("snapshot", "event 1 of 0", "event 11 of 0", "complete"),
    ]
    assert [(e.epoch, e.events_up, e.ran) for e in (rig.settled.get(timeout=SECONDS) for _ in range(2))] == [
        (0, 2, 1),
        (1, 2, 1),
    ]


def test_events_down_are_served_to_the_next_epoch(rig: Rig, coordinator: Counting) -> None:
    for number in range(3):
        coordinator.context.send(0, Ping(number=number))
    answer = rig.connect().hello(Hello(attempt()))
    assert answer.inputs == (EventBatch(0, 3, b'{"number":0},{"number":1},{"number":2}'),)


def test_a_lost_connection_is_a_failed_attempt(rig: Rig, coordinator: Counting) -> None:
    connection = rig.connect()
    connection.hello(Hello(attempt(0, 0, 7)))
    connection.close()
    assert coordinator.heard.acquire(timeout=SECONDS)
    assert coordinator.calls[-1] == "failed 7: the connection to its Python worker was lost"


def test_a_lost_write_refuses_who_waits_and_fails_the_query(rig: Rig) -> None:
    lost = rig.broken = StoreUnavailable("folder", "create", "disk full")
    rig.hold_writes()
    hello = rig.in_thread(rig.connect().hello, Hello(attempt(0, 0, 1)))
    rig.wait_for_write()
    late = rig.in_thread(rig.connect().hello, Hello(attempt(1, 0, 2)))
    while rig.runtime.endpoint.stats().frames_in < 2:
        rig.settle_loop()
    rig.open_for_writes.set()
    assert "could not" in refused(hello)
    assert refused(late)
    assert rig.failures.get(timeout=SECONDS) == (QUERY, lost)
    assert rig.log == []
    with pytest.raises(AttemptRefused, match="the query is being restarted"):
        rig.connect().hello(Hello(attempt(0, 0, 3)))
    # The storage is back and the query starts again: nothing of the failure is left.
    rig.broken = None
    rig.start_run()
    rig.run_epoch(rig.connect(), 0, 4, b"a")
    assert [type(record) for record in rig.log] == [Begin, Ack]
    assert rig.failures.empty()


def test_a_call_returns_when_what_follows_from_it_is_durable(rig: Rig) -> None:
    connection = rig.connect()
    connection.hello(Hello(attempt(0, 0, 1)))
    connection.acknowledge(Acknowledge(attempt(0, 0, 1), b"a"))
    rig.runtime.call(lambda core, now: core.end_run(QUERY, None, now))
    # A run that begins before the recorded ack has to void it first.
    facts = Facts(tuple(rig.log), NO_EPOCH, NO_EPOCH)
    rig.hold_writes()
    started = rig.in_thread(rig.start_run, facts)
    rig.wait_for_write()
    rig.settle_loop()
    assert not started.done()
    rig.open_for_writes.set()
    started.result(SECONDS)
    assert len(rig.log) == 3


def test_a_call_whose_records_are_lost_says_so(rig: Rig) -> None:
    connection = rig.connect()
    connection.hello(Hello(attempt(0, 0, 1)))
    connection.acknowledge(Acknowledge(attempt(0, 0, 1), b"a"))
    rig.broken = OSError(28, "No space left on device")
    facts = Facts(tuple(rig.log), NO_EPOCH, NO_EPOCH)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        rig.start_run(facts)


def test_a_call_that_raises_hurts_nobody_else(rig: Rig) -> None:
    with pytest.raises(KeyError):
        rig.runtime.call(lambda core, now: core.hold(QueryName("nobody")))
    assert rig.runtime.call(lambda core, now: core.generation) == 1
    assert rig.connect().hello(Hello(attempt())) == Welcome(None, ())
    assert rig.failures.empty()


def test_what_threads_post_runs_in_their_order(rig: Rig) -> None:
    seen: list[tuple[int, int]] = []

    def post(thread: int) -> None:
        for number in range(500):
            rig.runtime.post(lambda core, now, number=number: seen.append((thread, number)))  # type: ignore[misc]

    posting = [rig.in_thread(post, thread) for thread in range(4)]
    for one in posting:
        one.result(SECONDS)
    rig.runtime.call(lambda core, now: None)
    assert len(seen) == 2000
    for thread in range(4):
        assert [number for who, number in seen if who == thread] == list(range(500))


def test_a_newer_generation_ends_everything(rig: Rig) -> None:
    rig.fenced_by = Fenced("job", 1)
    assert "a newer generation" in refused(rig.in_thread(rig.connect().hello, Hello(attempt())))
    assert rig.fenced.get(timeout=SECONDS) is rig.fenced_by
    assert rig.failures.get(timeout=SECONDS) == (QUERY, rig.fenced_by)


def test_a_defect_in_the_core_ends_the_queries_and_is_named(rig: Rig) -> None:
    def defect(core: JobCore, now: float) -> None:
        raise ZeroDivisionError("a defect")

    rig.runtime.post(defect)
    query, error = rig.failures.get(timeout=SECONDS)
    assert query == QUERY
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "the protocol core failed: ZeroDivisionError('a defect'); please report this" in str(error)
    assert not error.retry


def test_a_defect_in_the_middle_of_a_group_leaves_nobody_waiting(rig: Rig) -> None:
    first, second = rig.connect(), rig.connect()
    first.hello(Hello(attempt(0, 0, 1)))
    second.hello(Hello(attempt(1, 0, 2)))
    first.acknowledge(Acknowledge(attempt(0, 0, 1), b"a"))
    rig.defect = ZeroDivisionError("a defect")
    rig.hold_writes()
    ack = rig.in_thread(second.acknowledge, Acknowledge(attempt(1, 0, 2), b"b"))
    rig.wait_for_write()
    # The next group: an epoch is settled, on which the defect shows, and behind it two that wait for an answer.
    rig.runtime.post(lambda core, now: core.committed(QUERY, Epoch(0), now))
    rig.settle_loop()
    behind = rig.in_thread(first.hello, Hello(attempt(generation=2)))
    while rig.runtime.endpoint.stats().frames_in < 5:
        rig.settle_loop()
    reached = threading.Event()
    call = rig.in_thread(rig.runtime.call, lambda core, now: reached.set(), SECONDS)
    assert reached.wait(SECONDS)
    rig.settle_loop()
    rig.open_for_writes.set()
    ack.result(SECONDS)
    assert "ZeroDivisionError('a defect')" in refused(behind)
    with pytest.raises(CoordControlError, match="a defect"):
        call.result(2 * SECONDS)
    query, error = rig.failures.get(timeout=SECONDS)
    assert query == QUERY
    assert error.__cause__ is rig.defect
    assert rig.runtime.call(lambda core, now: core.generation) == 1


def test_a_defect_in_what_follows_from_a_call_reaches_its_caller(rig: Rig) -> None:
    connection = rig.connect()
    connection.hello(Hello(attempt()))
    connection.acknowledge(Acknowledge(attempt(), b"a"))
    rig.defect = ZeroDivisionError("a defect")
    with pytest.raises(CoordControlError, match="a defect"):
        rig.runtime.call(lambda core, now: core.committed(QUERY, Epoch(0), now), SECONDS)
    assert rig.failures.get(timeout=SECONDS)[0] == QUERY


def test_after_the_end_posts_do_nothing_and_calls_say_why(coordinator: Counting) -> None:
    rig = Rig(coordinator)
    rig.close()
    for _ in range(2):
        rig.runtime.post(lambda core, now: None)
        with pytest.raises(JobClosed):
            rig.runtime.call(lambda core, now: None, SECONDS)


def test_who_waits_for_a_write_when_the_job_ends_is_told(rig: Rig) -> None:
    rig.hold_writes()
    hello = rig.in_thread(rig.connect().hello, Hello(attempt()))
    rig.wait_for_write()
    reached = threading.Event()
    call = rig.in_thread(rig.runtime.call, lambda core, now: reached.set(), SECONDS)
    assert reached.wait(SECONDS)
    rig.runtime.close(JobClosed("job"))
    assert isinstance(call.exception(2 * SECONDS), JobClosed)
    assert isinstance(hello.exception(SECONDS), EndpointError)
    # The storage answers after all: the writer finds nobody to tell, and ends as always.
    rig.open_for_writes.set()
    rig.runtime.writer.close(SECONDS)
    assert [type(record) for record in rig.log] == [Begin]


def test_a_coordinator_that_raises_fails_its_query(coordinator: Counting) -> None:
    class Failing(Counting):
        def checkpoint_coordinator(self, checkpoint_id: int, result: SnapshotResult) -> None:
            raise ValueError("no state today")

    rig = Rig(Failing())
    try:
        hello = rig.in_thread(rig.connect().hello, Hello(attempt()))
        query, error = rig.failures.get(timeout=SECONDS)
        assert query == QUERY
        assert isinstance(error, CoordinatorFailed)
        assert "ValueError: no state today" in error.traceback
        rig.runtime.call(lambda core, now: core.end_run(QUERY, None, now))
        assert refused(hello) == "the query is being restarted"
    finally:
        rig.close()


def test_hellos_of_a_held_query_wait_until_its_run_ends(rig: Rig) -> None:
    connection = rig.connect()
    rig.run_epoch(connection, 0, 1)
    rig.runtime.call(lambda core, now: core.hold(QUERY))
    waiting = rig.in_thread(connection.hello, Hello(attempt(0, 1, 2)))
    while not rig.runtime.call(lambda core, now: core.is_quiet(QUERY)):
        rig.settle_loop()
    assert not waiting.done()
    rig.runtime.call(lambda core, now: core.end_run(QUERY, None, now))
    assert refused(waiting) == "the query is being stopped"


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
def test_attempts_that_do_not_belong_here_are_refused_over_the_wire(rig: Rig, stale: AttemptId, reason: str) -> None:
    connection = rig.connect()
    with pytest.raises(AttemptRefused, match=reason):
        connection.hello(Hello(stale))
    assert connection.hello(Hello(attempt())) == Welcome(None, ())


def test_to_read_the_core_does_not_wait_for_the_storage(rig: Rig) -> None:
    rig.hold_writes()
    answer = rig.in_thread(rig.connect().hello, Hello(attempt()))
    rig.wait_for_write()
    [operator] = rig.runtime.read(lambda core, now: core.operators(), SECONDS)
    assert operator.epoch is not None
    assert not answer.done()
    rig.open_for_writes.set()
    assert answer.result(SECONDS) == Welcome(None, ())


def test_what_reading_raises_is_raised_to_the_reader_and_nobody_else(rig: Rig) -> None:
    with pytest.raises(ZeroDivisionError):
        rig.runtime.read(lambda core, now: 1 // 0, SECONDS)
    assert rig.failures.empty()


def test_a_loop_that_does_not_answer_and_one_that_has_ended(rig: Rig) -> None:
    held = threading.Event()

    def hold(core: JobCore, now: float) -> None:
        held.wait(SECONDS)

    rig.runtime.post(hold)
    with pytest.raises(TimeoutError, match="has not answered within"):
        rig.runtime.read(lambda core, now: None, 0.01)
    held.set()
    rig.runtime.close(JobClosed("job"))
    with pytest.raises(JobClosed):
        rig.runtime.read(lambda core, now: None, SECONDS)
