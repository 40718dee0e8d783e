"""The snapshot point is the moment in which a coordinator completes its result: rule C2 of the contract."""

from __future__ import annotations

import queue

from coord_control.coordinators.contract import SnapshotResult
from coord_control.protocol.messages import Welcome
from tests.patience import SECONDS
from tests.unit.spark.coordinator_kit import (
    DOWN,
    CoordinatorRig,
    Number,
    Other,
    on_another_thread,
)


def test_a_thread_that_completes_and_instantly_sends_while_the_call_still_blocks(rig: CoordinatorRig) -> None:
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


def test_a_burst_before_a_late_completion_is_delivered_as_snapshotted_and_in_order(rig: CoordinatorRig) -> None:
    """Scenario 46: the coordinator answers long after it was asked, from a thread of its own."""
    asked: queue.SimpleQueue[SnapshotResult] = queue.SimpleQueue()
    rig.coordinator.then["checkpoint_coordinator"] = asked.put
    rig.start()
    waiting = rig.hello(0, 0, task=1)
    result = asked.get(timeout=SECONDS)

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
    asked.get(timeout=SECONDS).complete(b"150")
    assert following.inputs() == list(range(100, 150))


def test_sends_and_the_snapshot_of_one_callback_keep_their_order(rig: CoordinatorRig) -> None:
    def checkpoint(result: SnapshotResult) -> None:
        rig.coordinator.context.send(0, Number(value=1))
        result.complete(b"S")
        rig.coordinator.context.send(0, Number(value=2))

    rig.coordinator.then["checkpoint_coordinator"] = checkpoint
    rig.start()
    assert rig.hello(0, 0, task=1).inputs() == [1]


def test_what_waits_for_a_busy_loop_keeps_its_order_around_the_snapshot_and_broadcasts(rig: CoordinatorRig) -> None:
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


def test_events_of_different_types_keep_their_order(rig: CoordinatorRig) -> None:
    sent = [Number(value=1), Other(value=2), Other(value=3), Number(value=4)]
    rig.start()
    with rig.busy_loop():
        for event in sent:
            rig.coordinator.context.send(0, event)
    welcome = rig.hello(0, 0, task=1).answered()
    assert isinstance(welcome, Welcome)
    assert DOWN.decode(welcome.inputs) == sent


def test_an_event_is_what_it_was_when_it_was_sent(rig: CoordinatorRig) -> None:
    rig.start()
    rig.settle()
    event = Number(value=1)
    rig.coordinator.context.send(0, event)
    event.value = 2
    assert rig.hello(0, 0, task=1).inputs() == [1]


def test_only_the_first_completion_of_a_result_counts(rig: CoordinatorRig) -> None:
    def checkpoint(result: SnapshotResult) -> None:
        result.complete(b"first")
        result.complete(b"second")

    rig.coordinator.then["checkpoint_coordinator"] = checkpoint
    rig.start()
    rig.hello(0, 0, task=1).answered()
    rig.settle()
    assert [record.state for record in rig.records] == [b"first"]  # type: ignore[union-attr]
