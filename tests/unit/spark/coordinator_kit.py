"""Coordinators on their real thread, behind the real inbox of a job: without Spark, the test plays the subtasks.

Nothing here waits for time to pass: a test continues when what it waits for has happened.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from pydantic import BaseModel

from coord_control.coordinators.contract import OperatorCoordinator, SnapshotResult, SubtaskGateway
from coord_control.coordinators.requests import Request
from coord_control.errors import CoordControlError, CoordinatorFailed, Fenced
from coord_control.ids import NO_EPOCH, Epoch, OperatorUid, QueryName, RunId
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import (
    Acknowledge,
    Answer,
    AttemptEnded,
    CheckpointFailed,
    EpochSettled,
    Hello,
    QueryCaptured,
    Refused,
    Welcome,
)
from coord_control.protocol.operator import OperatorSpec
from coord_control.protocol.records import EventBatch, Record
from coord_control.protocol.recovery import Facts
from coord_control.spark.job.news import News
from coord_control.spark.loop.bound_coordinator import BoundCoordinator, DeclaredCoordinator
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.loop.request_types import RequestTypes
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.worker.model_codec import EventTypes
from tests.core_kit import FIRST_GENERATION, FIRST_RUN, OP, QUERY, QUERY_ID, attempt
from tests.patience import SECONDS

PARALLELISM = 2


class Number(BaseModel):
    value: int


class Other(BaseModel):
    value: int


class Ask(Request[Number]):
    """Asks for the number, and for how much it is."""

    plus: int = 0


class Recorder(OperatorCoordinator):
    """Notes every call and the thread that it came on; ``then`` says what a callback does besides."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.threads: set[str] = set()
        self.then: dict[str, Callable[..., object]] = {}

    def called(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        self.threads.add(threading.current_thread().name)
        if name in self.then:
            self.then[name](*arguments)

    def start(self) -> None:
        self.called("start")

    def close(self) -> None:
        self.called("close")

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Number) -> None:
        self.called("handle_event_from_operator", subtask, attempt, event.value)

    def checkpoint_coordinator(self, checkpoint_id: int, result: SnapshotResult) -> None:
        self.calls.append(("checkpoint_coordinator", checkpoint_id))
        self.threads.add(threading.current_thread().name)
        answer = self.then.get("checkpoint_coordinator")
        if answer is None:
            result.complete(b"S")
        else:
            answer(result)

    def reset_to_checkpoint(self, checkpoint_id: int, data: bytes | None) -> None:
        self.called("reset_to_checkpoint", checkpoint_id, data)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.called("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.called("notify_checkpoint_aborted", checkpoint_id)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        self.called("subtask_reset", subtask, checkpoint_id)

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: SubtaskGateway) -> None:
        assert gateway.subtask == subtask
        self.called("execution_attempt_ready", subtask, attempt, gateway)

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str) -> None:
        self.called("execution_attempt_failed", subtask, attempt, reason)

    def handle_request(self, request: Ask) -> Number:
        self.called("handle_request", request.plus)
        return Number(value=request.plus + 1)

    @property
    def names(self) -> list[object]:
        return [call[0] for call in self.calls]


class Subtask:
    """The other end of a connection: keeps what it is answered."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def answer(self, answer: Answer) -> None:
        self._answers.put(answer)

    def answered(self) -> Answer:
        return self._answers.get(timeout=SECONDS)

    def inputs(self) -> list[int]:
        welcome = self.answered()
        assert isinstance(welcome, Welcome), welcome
        return numbers(welcome.inputs)


def numbers(batches: Sequence[EventBatch]) -> list[int]:
    return [event.value for event in DOWN.decode(batches) if isinstance(event, Number)]


DOWN = EventTypes(OP, "down", [Number, Other])


class CoordinatorRig:
    """A job with one query and one operator, without Spark: subtasks are played by the test."""

    def __init__(self, coordinator: Recorder) -> None:
        self.coordinator = coordinator
        self.records: list[Record] = []
        self.failures: queue.SimpleQueue[CoordControlError] = queue.SimpleQueue()
        self.news = News()
        self.thread = CoordinatorThread(slow_seconds=0.0)
        bound: dict[object, BoundCoordinator] = {}
        self.runtime = JobRuntime(
            JobCore(FIRST_GENERATION),
            bound,  # type: ignore[arg-type]
            self,
            tls=False,
        )
        up = EventTypes(OP, "up", [Number])
        declared = DeclaredCoordinator(OP, coordinator, PARALLELISM, DOWN, up, RequestTypes(OP, [Ask]))
        self.bound = BoundCoordinator(declared, self.thread, self.runtime.post, news=self.news)
        bound[OP] = self.bound
        self.runtime.endpoint.start("127.0.0.1")
        self.thread.start()
        self.runtime.start()
        spec = OperatorSpec(OP, PARALLELISM, observes_attempts=self.bound.observes_attempts)
        self.runtime.call(lambda core, now: core.add_query(QUERY, QUERY_ID, [spec]))

    # The owner of the runtime.

    def events_wait(self, operator: OperatorUid) -> None: ...

    def append(self, query: QueryName, records: Sequence[Record]) -> None:
        self.records.extend(records)

    def verify(self) -> None: ...

    def may_answer(self) -> bool:
        return True

    def query_failed(self, query: QueryName, error: CoordControlError) -> None:
        self.failures.put(error)

    def fenced(self, error: Fenced) -> None: ...

    def settled(self, epoch: EpochSettled) -> None: ...

    def captured(self, captured: QueryCaptured) -> None: ...

    def checkpoint_failed(self, failed: CheckpointFailed) -> None: ...

    def close(self) -> None:
        self.bound.close()
        self.thread.close(SECONDS)
        self.runtime.writer.close(SECONDS)
        self.runtime.endpoint.close()

    def start(self, committed: int = NO_EPOCH, planned: int = NO_EPOCH) -> None:
        facts = Facts(tuple(self.records), Epoch(committed), Epoch(planned))
        self.runtime.call(lambda core, now: core.start_run(QUERY, facts, now))
        self.bound.start()

    def restart(self, run: str = "run-1", planned: int = 0) -> None:
        self.runtime.call(lambda core, now: core.end_run(QUERY, RunId(run), now))
        self.start(planned=planned)

    def hello(self, subtask: int, epoch: int, task: int, run: str = "run-1") -> Subtask:
        token = Subtask()
        message = Hello(attempt(subtask, epoch, task, run=run))
        self.runtime.call(lambda core, now: core.hello(message, token, now))
        return token

    def ack(self, subtask: int, epoch: int, task: int, *values: int, run: str = "run-1") -> None:
        token = Subtask()
        outbox = tuple(DOWN.encode(Number(value=value)) for value in values)
        message = Acknowledge(attempt(subtask, epoch, task, run=run), None, outbox)
        self.runtime.call(lambda core, now: core.acknowledge(message, token, now))
        assert not isinstance(token.answered(), Refused)

    def ended(self, subtask: int, epoch: int, task: int) -> None:
        self.runtime.call(
            lambda core, now: core.attempt_ended(AttemptEnded(attempt(subtask, epoch, task), "it raised"))
        )

    def commit(self, epoch: int, *, run: str = FIRST_RUN) -> None:
        self.runtime.call(lambda core, now: core.committed(QUERY, Epoch(epoch), now, RunId(run)))

    def settle(self) -> None:
        """Everything that was posted, and everything that follows from it, has happened."""
        for _ in range(3):  # a callback posts, what it posted notifies, and that is a callback again
            assert self.thread.drain(SECONDS)
            self.runtime.call(lambda core, now: None)

    @contextlib.contextmanager
    def busy_loop(self) -> Iterator[None]:
        """While this is open the loop does nothing; what is posted is drained at once when it closes."""
        is_over = threading.Event()
        self.runtime.post(lambda core, now: assert_set(is_over))
        yield
        is_over.set()

    def failure(self) -> CoordinatorFailed:
        error = self.failures.get(timeout=SECONDS)
        assert isinstance(error, CoordinatorFailed)
        return error

    def assert_no_failure(self) -> None:
        self.settle()
        assert self.failures.empty()


def on_another_thread(function: Callable[[], None]) -> None:
    """Run ``function`` on a thread of its own, and wait for it."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive()


def boom(*arguments: object) -> None:
    raise RuntimeError("boom")


def assert_set(event: threading.Event) -> None:
    assert event.wait(SECONDS)


def assert_met(barrier: threading.Barrier) -> None:
    barrier.wait(SECONDS)
