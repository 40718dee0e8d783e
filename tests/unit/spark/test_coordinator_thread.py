"""All callbacks come from one thread, and the context may be used from any: rule C1 of the contract."""

from __future__ import annotations

import threading

import pytest
from pydantic import BaseModel

from coord_control.coordinators.contract import SubtaskGateway
from coord_control.errors import CoordinatorNotStarted, NoSuchSubtask, UndeclaredEvent
from coord_control.ids import BarrierId
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.wire.endpoint import THREAD_NAME
from tests.core_kit import OP
from tests.patience import SECONDS
from tests.unit.spark.coordinator_kit import (
    PARALLELISM,
    CoordinatorRig,
    Number,
    assert_set,
    numbers,
)


class Undeclared(BaseModel):
    value: int


# C1: one thread for all callbacks; the context from any thread.


def test_every_callback_runs_on_the_one_coordinator_thread(rig: CoordinatorRig) -> None:
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
        assert first_may_go.wait(SECONDS)
        order.append("first")

    thread.submit("a", "start", first)
    thread.submit("b", "start", lambda: order.append("second"))
    assert inside.wait(SECONDS)
    assert order == []
    first_may_go.set()
    assert thread.drain(SECONDS)
    assert order == ["first", "second"]
    thread.close(SECONDS)


def test_events_can_be_sent_from_any_thread_and_keep_the_order_of_each(rig: CoordinatorRig) -> None:
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
        thread.join(SECONDS)
    seen = rig.hello(0, 0, task=1).inputs()
    assert len(seen) == 150
    for first in (0, 100, 200):
        assert [value for value in seen if first <= value < first + 50] == list(range(first, first + 50))


def test_a_gateway_and_a_broadcast_reach_the_right_subtasks(rig: CoordinatorRig) -> None:
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
def test_an_event_to_no_subtask_is_an_error_of_the_caller(rig: CoordinatorRig, subtask: int) -> None:
    rig.start()
    with pytest.raises(NoSuchSubtask):
        rig.coordinator.context.send(subtask, Number(value=1))


def test_nothing_is_sent_before_the_query_is_started(rig: CoordinatorRig) -> None:
    # It would be lost, while the state of the coordinator that sent it is kept.
    with pytest.raises(CoordinatorNotStarted, match=r"operator 'op': its query has not been started"):
        rig.coordinator.context.send(0, Number(value=1))
    with pytest.raises(CoordinatorNotStarted):
        rig.coordinator.context.broadcast(Number(value=1))
    rig.start()
    rig.coordinator.context.send(0, Number(value=2))
    rig.settle()
    assert rig.runtime.call(lambda core, now: numbers(core.operators()[0].channel.gateways[0].mailbox)) == [2]


def test_an_undeclared_event_is_an_error_of_the_caller(rig: CoordinatorRig) -> None:
    rig.start()
    with pytest.raises(UndeclaredEvent, match="Undeclared"):
        rig.coordinator.context.send(0, Undeclared(value=1))


# Slow callbacks.


def test_a_callback_that_takes_long_is_reported_once_with_its_name() -> None:
    thread = CoordinatorThread(slow_seconds=0.0)
    assert thread.slow() is None
    thread.start()
    inside, may_go = threading.Event(), threading.Event()

    def block() -> None:
        inside.set()
        assert may_go.wait(SECONDS)

    thread.submit(OP, "start", block)
    assert inside.wait(SECONDS)
    slow = thread.slow()
    assert slow is not None
    assert (slow.operator, slow.callback) == (OP, "start")
    assert thread.slow() is None
    assert thread.slow_callbacks == 1
    may_go.set()
    thread.close(SECONDS)


def test_a_fast_callback_is_not_reported() -> None:
    thread = CoordinatorThread(slow_seconds=3600.0)
    thread.start()
    inside, may_go = threading.Event(), threading.Event()

    def block() -> None:
        inside.set()
        assert may_go.wait(SECONDS)

    thread.submit(OP, "start", block)
    assert inside.wait(SECONDS)
    assert thread.slow() is None
    may_go.set()
    thread.close(SECONDS)


def test_waiting_for_callbacks_ends_when_one_hangs() -> None:
    thread = CoordinatorThread()
    thread.start()
    may_go = threading.Event()
    thread.submit(OP, "start", lambda: assert_set(may_go))
    assert not thread.drain(0.0)
    may_go.set()
    thread.close(SECONDS)
