"""Coordinators on their real thread, behind the real inbox of a job: rules C1, C2, C16 and C17 of the contract.

Nothing here waits for time to pass: a test continues when what it waits for has happened.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from pydantic import BaseModel

from coord_control.coordinators.contract import OperatorCoordinator, SnapshotResult, SubtaskGateway
from coord_control.errors import (
    CoordControlError,
    CoordinatorFailed,
    CoordinatorNotStarted,
    NoSuchSubtask,
    UndeclaredEvent,
)
from coord_control.ids import NO_CHECKPOINT, NO_EPOCH, BarrierId, Epoch, RunId
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import Acknowledge, Answer, AttemptEnded, Hello, Refused, Welcome
from coord_control.protocol.operator import OperatorSpec
from coord_control.protocol.records import EventBatch, Record
from coord_control.protocol.recovery import Facts
from coord_control.spark.bound_coordinator import BoundCoordinator
from coord_control.spark.coordinator_thread import CoordinatorThread
from coord_control.spark.endpoint import THREAD_NAME
from coord_control.spark.models import EventTypes
from coord_control.spark.news import News
from coord_control.spark.runtime import JobRuntime
from tests.core_kit import FIRST_GENERATION, OP, QUERY, QUERY_ID, attempt

PARALLELISM = 2
PATIENCE_SECONDS = 30.0  # how long a test waits for what must happen; only a failing test takes as long


class Number(BaseModel):
    value: int


class Other(BaseModel):
    value: int


class Undeclared(BaseModel):
    value: int


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
        return self._answers.get(timeout=PATIENCE_SECONDS)

    def inputs(self) -> list[int]:
        welcome = self.answered()
        assert isinstance(welcome, Welcome), welcome
        return numbers(welcome.inputs)


def numbers(batches: Sequence[EventBatch]) -> list[int]:
    return [event.value for event in DOWN.decode(batches) if isinstance(event, Number)]


DOWN = EventTypes(OP, "down", [Number, Other])


class Rig:
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
            tls=False,
            append=lambda query, records: self.records.extend(records),
            verify=lambda: None,
            query_failed=lambda query, error: self.failures.put(error),
            fenced=lambda error: None,
            settled=lambda settled: None,
            captured=lambda captured: None,
            checkpoint_failed=lambda failed: None,
        )
        up = EventTypes(OP, "up", [Number])
        self.bound = BoundCoordinator(
            OP, coordinator, PARALLELISM, DOWN, up, self.thread, self.runtime.post, news=self.news
        )
        bound[OP] = self.bound
        self.runtime.endpoint.start("127.0.0.1")
        self.thread.start()
        self.runtime.start()
        spec = OperatorSpec(OP, PARALLELISM, observes_attempts=self.bound.observes_attempts)
        self.runtime.call(lambda core, now: core.add_query(QUERY, QUERY_ID, [spec]))

    def close(self) -> None:
        self.bound.close()
        self.thread.close(PATIENCE_SECONDS)
        self.runtime.writer.close(PATIENCE_SECONDS)
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

    def commit(self, epoch: int) -> None:
        self.runtime.call(lambda core, now: core.committed(QUERY, Epoch(epoch), now))

    def settle(self) -> None:
        """Everything that was posted, and everything that follows from it, has happened."""
        for _ in range(3):  # a callback posts, what it posted notifies, and that is a callback again
            assert self.thread.drain(PATIENCE_SECONDS)
            self.runtime.call(lambda core, now: None)

    @contextlib.contextmanager
    def busy_loop(self) -> Iterator[None]:
        """While this is open the loop does nothing; what is posted is drained at once when it closes."""
        is_over = threading.Event()
        self.runtime.post(lambda core, now: assert_set(is_over))
        yield
        is_over.set()

    def failure(self) -> CoordinatorFailed:
        error = self.failures.get(timeout=PATIENCE_SECONDS)
        assert isinstance(error, CoordinatorFailed)
        return error

    def assert_no_failure(self) -> None:
        self.settle()
        assert self.failures.empty()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(Recorder())
    yield rig
    rig.close()


def on_another_thread(function: Callable[[], None]) -> None:
    """Run ``function`` on a thread of its own, and wait for it."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


# C1: one thread for all callbacks; the context from any thread.


def test_every_callback_runs_on_the_one_coordinator_thread(rig: Rig) -> None:
    rig.start()
    rig.hello(0, 0, task=1).answered()
    rig.ended(0, 0, task=1)
    rig.hello(0, 0, task=2).answered()
    rig.ack(0, 0, 2, 7)
    rig.commit(0)
    rig.bound.aborted(BarrierId(1))
    rig.settle()
    rig.restart()
    rig.settle()
    rig.bound.close()
    rig.settle()
    assert set(rig.coordinator.names) == {
        "start",
        "checkpoint_coordinator",
        "execution_attempt_ready",
        "execution_attempt_failed",
        "subtask_reset",
        "handle_event_from_operator",
        "notify_checkpoint_complete",
        "notify_checkpoint_aborted",
        "reset_to_checkpoint",
        "close",
    }
    assert rig.coordinator.threads == {"coord-coordinators"}
    assert THREAD_NAME not in rig.coordinator.threads


def test_callbacks_of_two_operators_never_run_at_once() -> None:
    thread = CoordinatorThread()
    thread.start()
    inside, first_may_go, order = threading.Event(), threading.Event(), []

    def first() -> None:
        inside.set()
        assert first_may_go.wait(PATIENCE_SECONDS)
        order.append("first")

    thread.submit("a", "start", first)
    thread.submit("b", "start", lambda: order.append("second"))
    assert inside.wait(PATIENCE_SECONDS)
    assert order == []
    first_may_go.set()
    assert thread.drain(PATIENCE_SECONDS)
    assert order == ["first", "second"]
    thread.close(PATIENCE_SECONDS)


def test_events_can_be_sent_from_any_thread_and_keep_the_order_of_each(rig: Rig) -> None:
    rig.start()
    rig.settle()
    context = rig.coordinator.context

    def burst(first: int) -> None:
        for value in range(first, first + 50):
            context.send(0, Number(value=value))

    threads = [threading.Thread(target=burst, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    seen = rig.hello(0, 0, task=1).inputs()
    assert len(seen) == 150
    for first in (0, 100, 200):
        assert [value for value in seen if first <= value < first + 50] == list(range(first, first + 50))


def test_a_gateway_and_a_broadcast_reach_the_right_subtasks(rig: Rig) -> None:
    def ready(subtask: int, attempt: int, gateway: SubtaskGateway) -> None:
        gateway.send(Number(value=10 + subtask))

    rig.coordinator.then["execution_attempt_ready"] = ready
    rig.start()
    rig.settle()
    rig.coordinator.context.broadcast(Number(value=1))
    assert rig.coordinator.context.parallelism == PARALLELISM
    assert rig.coordinator.context.operator == OP
    rig.hello(0, 0, task=1).answered()
    rig.hello(1, 0, task=2).answered()
    rig.settle()
    rig.ack(0, 0, task=1)
    rig.ack(1, 0, task=2)
    inputs = [rig.hello(subtask, 1, task=3 + subtask).inputs() for subtask in (0, 1)]
    assert [values[-1] for values in inputs] == [10, 11]


@pytest.mark.parametrize("subtask", [-1, PARALLELISM])
def test_an_event_to_no_subtask_is_an_error_of_the_caller(rig: Rig, subtask: int) -> None:
    rig.start()
    with pytest.raises(NoSuchSubtask):
        rig.coordinator.context.send(subtask, Number(value=1))


def test_nothing_is_sent_before_the_query_is_started(rig: Rig) -> None:
    # It would be lost, while the state of the coordinator that sent it is kept.
    with pytest.raises(CoordinatorNotStarted, match=r"operator 'op': its query has not been started"):
        rig.coordinator.context.send(0, Number(value=1))
    with pytest.raises(CoordinatorNotStarted):
        rig.coordinator.context.broadcast(Number(value=1))
    rig.start()
    rig.coordinator.context.send(0, Number(value=2))
    rig.settle()
    assert rig.runtime.call(lambda core, now: numbers(core.operators()[0].channel.gateways[0].mailbox)) == [2]


def test_an_undeclared_event_is_an_error_of_the_caller(rig: Rig) -> None:
    rig.start()
    with pytest.raises(UndeclaredEvent, match="Undeclared"):
        rig.coordinator.context.send(0, Undeclared(value=1))


# C2: the snapshot point.


def test_a_thread_that_completes_and_instantly_sends_while_the_call_still_blocks(rig: Rig) -> None:
    """Scenario 45: exactly the events counted in the snapshot are delivered, none after."""

    def checkpoint(result: SnapshotResult) -> None:
        def complete_and_send() -> None:
            context = rig.coordinator.context
            context.send(0, Number(value=1))
            result.complete(b"1")
            context.send(0, Number(value=2))

        on_another_thread(complete_and_send)

    rig.coordinator.then["checkpoint_coordinator"] = checkpoint
    rig.start()
    assert rig.hello(0, 0, task=1).inputs() == [1]
    [begin] = rig.records
    assert begin.state == b"1"  # type: ignore[union-attr]
    rig.ack(0, 0, task=1)
    assert rig.hello(0, 1, task=2).inputs() == [2, 1], "2 waited; 1 was sent at the next snapshot"


def test_a_burst_before_a_late_completion_is_delivered_as_snapshotted_and_in_order(rig: Rig) -> None:
    """Scenario 46: the coordinator answers long after it was asked, from a thread of its own."""
    asked: queue.SimpleQueue[SnapshotResult] = queue.SimpleQueue()
    rig.coordinator.then["checkpoint_coordinator"] = asked.put
    rig.start()
    waiting = rig.hello(0, 0, task=1)
    result = asked.get(timeout=PATIENCE_SECONDS)

    def burst() -> None:
        for value in range(100):
            rig.coordinator.context.send(0, Number(value=value))
        result.complete(b"100")
        for value in range(100, 150):
            rig.coordinator.context.send(0, Number(value=value))

    on_another_thread(burst)
    assert waiting.inputs() == list(range(100))
    rig.ack(0, 0, task=1)
    following = rig.hello(0, 1, task=2)
    asked.get(timeout=PATIENCE_SECONDS).complete(b"150")
    assert following.inputs() == list(range(100, 150))


def test_sends_and_the_snapshot_of_one_callback_keep_their_order(rig: Rig) -> None:
    def checkpoint(result: SnapshotResult) -> None:
        rig.coordinator.context.send(0, Number(value=1))
        result.complete(b"S")
        rig.coordinator.context.send(0, Number(value=2))

    rig.coordinator.then["checkpoint_coordinator"] = checkpoint
    rig.start()
    assert rig.hello(0, 0, task=1).inputs() == [1]


def test_what_waits_for_a_busy_loop_keeps_its_order_around_the_snapshot_and_broadcasts(rig: Rig) -> None:
    def checkpoint(result: SnapshotResult) -> None:
        context = rig.coordinator.context
        with rig.busy_loop():
            for value in (1, 2):
                context.send(0, Number(value=value))
            context.broadcast(Number(value=3))
            context.send(1, Number(value=10))
            context.send(0, Number(value=4))
            result.complete(b"S")
            context.send(0, Number(value=5))
            context.broadcast(Number(value=6))
            context.send(0, Number(value=7))

    rig.coordinator.then["checkpoint_coordinator"] = checkpoint
    rig.start()
    assert rig.hello(0, 0, task=1).inputs() == [1, 2, 3, 4]
    assert rig.hello(1, 0, task=2).inputs() == [3, 10]
    rig.coordinator.then.clear()
    rig.ack(0, 0, task=1)
    rig.ack(1, 0, task=2)
    rig.commit(0)
    assert rig.hello(0, 1, task=3).inputs() == [5, 6, 7]
    assert rig.hello(1, 1, task=4).inputs() == [6]


def test_events_of_different_types_keep_their_order(rig: Rig) -> None:
    sent = [Number(value=1), Other(value=2), Other(value=3), Number(value=4)]
    rig.start()
    with rig.busy_loop():
        for event in sent:
            rig.coordinator.context.send(0, event)
    welcome = rig.hello(0, 0, task=1).answered()
    assert isinstance(welcome, Welcome)
    assert DOWN.decode(welcome.inputs) == sent


def test_an_event_is_what_it_was_when_it_was_sent(rig: Rig) -> None:
    rig.start()
    rig.settle()
    event = Number(value=1)
    rig.coordinator.context.send(0, event)
    event.value = 2
    assert rig.hello(0, 0, task=1).inputs() == [1]


def test_only_the_first_completion_of_a_result_counts(rig: Rig) -> None:
    def checkpoint(result: SnapshotResult) -> None:
        result.complete(b"first")
        result.complete(b"second")

    rig.coordinator.then["checkpoint_coordinator"] = checkpoint
    rig.start()
    rig.hello(0, 0, task=1).answered()
    rig.settle()
    assert [record.state for record in rig.records] == [b"first"]  # type: ignore[union-attr]


# Delivery and notification.


def test_upstream_events_arrive_once_the_epoch_is_committed_and_before_the_notification(rig: Rig) -> None:
    rig.start()
    rig.hello(0, 0, task=1).answered()
    rig.ack(0, 0, 1, 7, 8)
    rig.settle()
    assert "handle_event_from_operator" not in rig.coordinator.names
    rig.commit(0)
    rig.settle()
    assert [call[:4] for call in rig.coordinator.calls[-3:]] == [
        ("handle_event_from_operator", 0, 1, 7),
        ("handle_event_from_operator", 0, 1, 8),
        ("notify_checkpoint_complete", (1 << 32) + 1),
    ]


def test_the_coordinator_is_restored_before_it_starts() -> None:
    first = Rig(Recorder())
    first.start()
    first.hello(0, 0, task=1).answered()
    first.close()
    second = Rig(Recorder())
    second.records += first.records
    second.start(planned=0)
    second.settle()
    assert second.coordinator.calls == [("reset_to_checkpoint", (1 << 32) + 1, b"S"), ("start",)]
    second.close()


def test_an_attempt_is_ready_failed_reset_and_ready_again(rig: Rig) -> None:
    rig.start()
    rig.hello(0, 0, task=1).answered()
    rig.ended(0, 0, task=1)
    rig.hello(0, 0, task=2).answered()
    rig.settle()
    assert [call[:3] for call in rig.coordinator.calls if call[0] not in ("start", "checkpoint_coordinator")] == [
        ("execution_attempt_ready", 0, 1),
        ("execution_attempt_failed", 0, 1),
        ("subtask_reset", 0, NO_CHECKPOINT),
        ("execution_attempt_ready", 0, 2),
    ]


# C16 and C17: failing.


def boom(*arguments: object) -> None:
    raise RuntimeError("boom")


def reach(rig: Rig, callback: str) -> None:
    """Let everything happen that leads to ``callback``."""
    if callback == "reset_to_checkpoint":
        rig.restart(planned=NO_EPOCH)
        return
    if callback == "notify_checkpoint_aborted":
        rig.bound.aborted(BarrierId(1))
        return
    hello = rig.hello(0, 0, task=1)
    if callback in ("checkpoint_coordinator", "execution_attempt_ready"):
        return
    hello.answered()
    if callback in ("execution_attempt_failed", "subtask_reset"):
        rig.ended(0, 0, task=1)
        return
    rig.ack(0, 0, 1, 7)
    rig.commit(0)


@pytest.mark.parametrize(
    "callback",
    [
        "handle_event_from_operator",
        "checkpoint_coordinator",
        "execution_attempt_ready",
        "execution_attempt_failed",
        "subtask_reset",
        "reset_to_checkpoint",
        "notify_checkpoint_complete",
        "notify_checkpoint_aborted",
    ],
)
def test_an_exception_in_a_callback_fails_the_query_and_names_the_callback(rig: Rig, callback: str) -> None:
    rig.coordinator.then[callback] = boom
    rig.start()
    reach(rig, callback)
    error = rig.failure()
    assert (error.operator, error.callback) == (OP, callback)
    assert "RuntimeError: boom" in error.traceback
    assert isinstance(error.__cause__, RuntimeError)


def test_an_exception_in_start_fails_the_query(rig: Rig) -> None:
    rig.coordinator.then["start"] = boom
    rig.start()
    assert rig.failure().callback == "start"


def test_a_start_that_failed_is_tried_again_with_the_query_and_not_after_it_succeeded(rig: Rig) -> None:
    """Scenarios 3 and 4: it surfaces, and whatever it had begun is closed."""
    rig.coordinator.then["start"] = boom
    rig.start()
    rig.failure()
    rig.coordinator.then.clear()
    rig.restart(planned=NO_EPOCH)
    rig.settle()
    rig.restart(run="run-2", planned=NO_EPOCH)
    rig.settle()
    assert rig.coordinator.names == ["start", "reset_to_checkpoint", "start", "reset_to_checkpoint"]


def test_a_coordinator_whose_start_failed_is_closed(rig: Rig) -> None:
    rig.coordinator.then["start"] = boom
    rig.start()
    rig.bound.close()
    rig.settle()
    assert rig.coordinator.names == ["start", "close"]


def test_a_start_that_a_reset_overtakes_is_made_up_for(rig: Rig) -> None:
    inside, may_go = threading.Event(), threading.Event()

    def block() -> None:
        inside.set()
        assert may_go.wait(PATIENCE_SECONDS)

    rig.thread.submit("another operator", "start", block)
    assert inside.wait(PATIENCE_SECONDS)
    rig.start()
    rig.restart(planned=NO_EPOCH)
    may_go.set()
    rig.settle()
    assert rig.coordinator.names == ["reset_to_checkpoint", "start"]


def test_an_exit_in_a_callback_does_not_end_the_thread(rig: Rig) -> None:
    def leave() -> None:
        raise SystemExit(1)

    rig.coordinator.then["start"] = leave
    rig.start()
    assert rig.failure().callback == "start"
    assert rig.thread.drain(PATIENCE_SECONDS)


def test_an_exception_in_close_is_logged_and_fails_nobody(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.coordinator.then["close"] = boom
    rig.start()
    rig.bound.close()
    rig.assert_no_failure()
    assert "failed in close" in caplog.text


def test_a_coordinator_that_was_never_started_is_not_closed(rig: Rig) -> None:
    rig.bound.close()
    rig.settle()
    assert rig.coordinator.calls == []


def test_a_snapshot_that_fails_fails_the_epoch(rig: Rig) -> None:
    rig.coordinator.then["checkpoint_coordinator"] = lambda result: result.fail(ValueError("no state"))
    rig.start()
    rig.hello(0, 0, task=1)
    error = rig.failure()
    assert error.callback == "checkpoint_coordinator"
    assert isinstance(error.__cause__, ValueError)


def test_failing_is_counted_once_until_the_next_reset(rig: Rig) -> None:
    """Scenario 43: the second failure is ignored; after a reset a new one is accepted."""
    rig.start()
    rig.settle()
    for number in (1, 2):
        rig.coordinator.context.fail_job(ValueError(str(number)))
    assert str(rig.failure().__cause__) == "1"
    rig.assert_no_failure()
    rig.restart(planned=NO_EPOCH)
    rig.settle()
    rig.coordinator.context.fail_job(ValueError("3"))
    assert str(rig.failure().__cause__) == "3"


def test_a_failed_coordinator_is_not_called_until_its_reset(rig: Rig) -> None:
    rig.start()
    rig.settle()
    rig.coordinator.context.fail_job(ValueError("enough"))
    rig.failure()
    rig.bound.complete(BarrierId(1))
    rig.settle()
    assert rig.coordinator.names == ["start"]


# A reset begins a new incarnation.


def test_the_context_of_an_earlier_incarnation_can_neither_send_nor_fail(rig: Rig) -> None:
    """Scenarios 64 and 65, without a second instance: it is the context that is silenced."""
    rig.start()
    rig.settle()
    old = rig.coordinator.context
    rig.restart(planned=NO_EPOCH)
    rig.settle()
    assert rig.coordinator.context is not old
    old.send(0, Number(value=1))
    old.fail_job(ValueError("late"))
    assert rig.hello(0, 0, task=2, run="run-2").inputs() == []
    rig.assert_no_failure()


def test_calls_that_wait_when_a_reset_comes_do_not_reach_the_coordinator_any_more(rig: Rig) -> None:
    """Scenario 67: what was decided before the reset has not happened; what is decided after it comes after it."""
    inside, may_go = threading.Event(), threading.Event()

    def block() -> None:
        inside.set()
        assert may_go.wait(PATIENCE_SECONDS)

    rig.start()
    rig.settle()
    rig.coordinator.context.call_soon(block)
    assert inside.wait(PATIENCE_SECONDS)
    rig.bound.complete(BarrierId(1))
    rig.restart(planned=NO_EPOCH)
    rig.bound.complete(BarrierId(2))
    may_go.set()
    rig.settle()
    assert rig.coordinator.calls == [
        ("start",),
        ("reset_to_checkpoint", NO_CHECKPOINT, None),
        ("notify_checkpoint_complete", 2),
    ]


def test_a_result_of_an_earlier_incarnation_closes_nothing(rig: Rig) -> None:
    asked: queue.SimpleQueue[SnapshotResult] = queue.SimpleQueue()
    rig.coordinator.then["checkpoint_coordinator"] = asked.put
    rig.start()
    rig.hello(0, 0, task=1)
    late = asked.get(timeout=PATIENCE_SECONDS)
    rig.restart(planned=NO_EPOCH)
    waiting = rig.hello(0, 0, task=2, run="run-2")
    current = asked.get(timeout=PATIENCE_SECONDS)
    late.complete(b"late")
    rig.coordinator.context.send(0, Number(value=1))
    current.complete(b"current")
    assert waiting.inputs() == [1]
    assert [record.state for record in rig.records] == [b"current"]  # type: ignore[union-attr]


def test_many_resets_between_calls_leave_every_call_to_its_own_incarnation(rig: Rig) -> None:
    """Scenario 68: a call that was decided in one incarnation is run in that one, or not at all."""
    rig.start()
    rig.settle()
    for number in range(1, 200):
        rig.bound.complete(BarrierId(number))
        rig.bound.reset(number + 1, BarrierId(number), b"%d" % number)
    rig.settle()
    seen = 0
    for name, barrier, *_ in rig.coordinator.calls[1:]:
        if name == "reset_to_checkpoint":
            seen = int(str(barrier))
        else:
            assert int(str(barrier)) == seen + 1


# Work elsewhere.


def test_background_work_comes_back_to_the_coordinator_thread(rig: Rig) -> None:
    rig.start()
    rig.settle()
    done = threading.Event()
    threads: list[str] = []

    def work() -> int:
        threads.append(threading.current_thread().name)
        return 42

    def back(result: int) -> None:
        threads.append(threading.current_thread().name)
        assert result == 42
        done.set()

    rig.coordinator.context.run_in_background(work, back)
    assert done.wait(PATIENCE_SECONDS)
    assert threads[0].startswith("coord-background")
    assert threads[1] == "coord-coordinators"


def test_background_work_without_a_continuation_just_ends(rig: Rig) -> None:
    rig.start()
    rig.settle()
    done = threading.Event()
    rig.coordinator.context.run_in_background(done.set)
    assert done.wait(PATIENCE_SECONDS)
    rig.assert_no_failure()


def test_an_exception_of_background_work_fails_the_query(rig: Rig) -> None:
    rig.start()
    rig.settle()
    rig.coordinator.context.run_in_background(boom)
    assert rig.failure().callback == "run_in_background"


def test_background_work_that_ends_after_a_reset_does_not_come_back(rig: Rig) -> None:
    rig.start()
    rig.settle()
    may_end = threading.Event()
    came_back: list[bool] = []
    rig.coordinator.context.run_in_background(lambda: may_end.wait(PATIENCE_SECONDS), came_back.append)
    rig.restart(planned=NO_EPOCH)
    may_end.set()
    all_are_here = threading.Barrier(5)  # a background thread that comes here has ended what it did before
    for _ in range(4):
        rig.thread.submit_background(lambda: assert_met(all_are_here))
    assert_met(all_are_here)
    rig.settle()
    assert came_back == []


def test_background_work_that_still_waits_at_the_end_is_not_begun(rig: Rig) -> None:
    rig.start()
    rig.settle()
    all_are_here, may_end = threading.Barrier(5), threading.Event()
    begun: list[bool] = []

    def block() -> None:
        assert_met(all_are_here)
        assert_set(may_end)

    for _ in range(4):
        rig.coordinator.context.run_in_background(block)
    rig.coordinator.context.run_in_background(lambda: begun.append(True))
    assert_met(all_are_here)
    rig.thread.close(PATIENCE_SECONDS)
    may_end.set()
    for thread in threading.enumerate():
        if thread.name.startswith("coord-background"):
            thread.join(PATIENCE_SECONDS)
    assert begun == []


def test_background_work_that_hangs_does_not_keep_the_driver_alive() -> None:
    driver = """
import threading
from coord_control.spark.coordinator_thread import CoordinatorThread
from coord_control.spark.news import News

thread, is_stuck = CoordinatorThread(), threading.Event()
thread.start()
thread.submit_background(lambda: (is_stuck.set(), threading.Event().wait()))
is_stuck.wait()
thread.close(1.0)
print("the last line")
"""
    ended = subprocess.run(
        [sys.executable, "-c", driver], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert ended.stdout == "the last line\n"


# Slow callbacks.


def test_a_callback_that_takes_long_is_reported_once_with_its_name() -> None:
    thread = CoordinatorThread(slow_seconds=0.0)
    assert thread.slow() is None
    thread.start()
    inside, may_go = threading.Event(), threading.Event()

    def block() -> None:
        inside.set()
        assert may_go.wait(PATIENCE_SECONDS)

    thread.submit(OP, "start", block)
    assert inside.wait(PATIENCE_SECONDS)
    slow = thread.slow()
    assert slow is not None
    assert (slow.operator, slow.callback) == (OP, "start")
    assert thread.slow() is None
    assert thread.slow_callbacks == 1
    may_go.set()
    thread.close(PATIENCE_SECONDS)


def test_a_fast_callback_is_not_reported() -> None:
    thread = CoordinatorThread(slow_seconds=3600.0)
    thread.start()
    inside, may_go = threading.Event(), threading.Event()

    def block() -> None:
        inside.set()
        assert may_go.wait(PATIENCE_SECONDS)

    thread.submit(OP, "start", block)
    assert inside.wait(PATIENCE_SECONDS)
    assert thread.slow() is None
    may_go.set()
    thread.close(PATIENCE_SECONDS)


def test_waiting_for_callbacks_ends_when_one_hangs() -> None:
    thread = CoordinatorThread()
    thread.start()
    may_go = threading.Event()
    thread.submit(OP, "start", lambda: assert_set(may_go))
    assert not thread.drain(0.0)
    may_go.set()
    thread.close(PATIENCE_SECONDS)


def assert_set(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)


def assert_met(barrier: threading.Barrier) -> None:
    barrier.wait(PATIENCE_SECONDS)


# Which coordinators watch attempts.


def test_only_coordinators_that_override_a_callback_about_attempts_watch_them() -> None:
    class Plain(OperatorCoordinator):
        def checkpoint_coordinator(self, checkpoint_id: int, result: SnapshotResult) -> None:
            result.complete(b"")

        def reset_to_checkpoint(self, checkpoint_id: int, data: bytes | None) -> None:
            pass

    class Watching(Plain):
        def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
            pass

    types = EventTypes(OP, "down", [])
    for coordinator, watches in ((Plain(), False), (Watching(), True)):
        bound = BoundCoordinator(OP, coordinator, 1, types, types, CoordinatorThread(), lambda call: None, news=News())
        assert bound.observes_attempts is watches
