"""A driver's runtime behind real sockets, over a storage that a test can hold or break."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from pydantic import BaseModel

from coord_control.coordinators import OperatorCoordinator, SnapshotResult, StatefulCoordinator
from coord_control.errors import AttemptRefused, CoordControlError, Fenced, JobClosed, StoreUnavailable
from coord_control.ids import NO_EPOCH, Epoch, Generation, OperatorUid, QueryName
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import Acknowledge, CheckpointFailed, EpochSettled, Hello, QueryCaptured
from coord_control.protocol.records import EventBatch, Record
from coord_control.protocol.recovery import Facts
from coord_control.spark.job.news import News
from coord_control.spark.loop.bound_coordinator import BoundCoordinator, DeclaredCoordinator
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.loop.request_types import RequestTypes
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.wire.connection import Connection, connect
from coord_control.spark.worker.model_codec import EventTypes
from tests.core_kit import FIRST_RUN, OP, QUERY, QUERY_ID, attempt, spec
from tests.patience import SECONDS

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


class RuntimeDriver:
    """A runtime with one query of one operator; the storage is a list that a test can hold or break."""

    def __init__(self, coordinator: OperatorCoordinator, gather_seconds: float = 0.0) -> None:
        self.log: list[Record] = []
        self.open_for_writes = threading.Event()
        self.open_for_writes.set()
        self.writing = threading.Semaphore(0)  # one for each write that has begun
        self.broken: Exception | None = None
        self.fenced_by: Fenced | None = None
        self.unreachable: StoreUnavailable | None = None  # what the check of the generation meets
        self.is_fresh = True  # the generation was checked a moment ago
        self.verified = threading.Semaphore(0)  # one for each check that has begun
        self.open_for_checks = threading.Event()
        self.open_for_checks.set()
        self.failures: queue.SimpleQueue[tuple[QueryName, CoordControlError]] = queue.SimpleQueue()
        self.fencings: queue.SimpleQueue[Fenced] = queue.SimpleQueue()
        self.aborted: queue.SimpleQueue[CheckpointFailed] = queue.SimpleQueue()
        self.epochs: queue.SimpleQueue[EpochSettled] = queue.SimpleQueue()
        self.waiting: queue.SimpleQueue[OperatorUid] = queue.SimpleQueue()  # operators whose events wait
        self.defect: Exception | None = None  # of the one who is told of settled epochs
        coordinators: dict[OperatorUid, BoundCoordinator] = {}
        self.runtime = JobRuntime(
            JobCore(Generation(1)),
            coordinators,
            self,
            tls=False,
            gather_seconds=gather_seconds,
        )
        self.runtime.endpoint.start("127.0.0.1")
        self.news = News()
        self.thread = CoordinatorThread()
        down, up = EventTypes(OP, "down", [Ping]), EventTypes(OP, "up", [Ping])
        declared = DeclaredCoordinator(OP, coordinator, 2, down, up, RequestTypes(OP))
        coordinators[OP] = BoundCoordinator(declared, self.thread, self.runtime.post, news=self.news)
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
        self.open_for_checks.set()
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
        self.runtime.call(lambda core, now: core.committed(QUERY, Epoch(epoch), now, FIRST_RUN))

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

    def await_frames(self, number: int) -> None:
        """Wait until the loop has taken this many messages of subtasks, and has handed on what follows from them."""
        while self.runtime.endpoint.stats().frames_in < number:
            self.settle_loop()
        for _ in range(2):  # it counts a message before it takes it, and answers in its next turn
            self.settle_loop()

    def run_epoch(self, connection: Connection, epoch: int, task: int, state: bytes | None = None) -> None:
        connection.hello(Hello(attempt(0, epoch, task)))
        connection.acknowledge(Acknowledge(attempt(0, epoch, task), state))
        self.commit(epoch)

    # The owner of the runtime.

    def append(self, query: QueryName, records: Sequence[Record]) -> None:
        assert query == QUERY
        self.writing.release()
        assert self.open_for_writes.wait(SECONDS)
        if self.broken is not None:
            raise self.broken
        self.log += records

    def may_answer(self) -> bool:
        return self.is_fresh

    def query_failed(self, query: QueryName, error: CoordControlError) -> None:
        self.failures.put((query, error))

    def fenced(self, error: Fenced) -> None:
        self.fencings.put(error)

    def settled(self, epoch: EpochSettled) -> None:
        if self.defect is not None:
            raise self.defect
        self.epochs.put(epoch)

    def captured(self, captured: QueryCaptured) -> None: ...

    def checkpoint_failed(self, failed: CheckpointFailed) -> None:
        self.aborted.put(failed)

    def events_wait(self, operator: OperatorUid) -> None:
        self.waiting.put(operator)

    def verify(self) -> None:
        self.verified.release()
        assert self.open_for_checks.wait(SECONDS)
        if self.unreachable is not None:
            raise self.unreachable
        if self.fenced_by is not None:
            raise self.fenced_by


def ping(number: int) -> EventBatch:
    return EventBatch(0, 1, b'{"number":%d}' % number)


def refused(future: Future[Any]) -> str:
    error = future.exception(SECONDS)
    assert isinstance(error, AttemptRefused)
    return error.reason
