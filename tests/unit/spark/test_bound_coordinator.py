"""What a coordinator is told and when, and that a reset begins a new incarnation."""

from __future__ import annotations

import queue
import threading

from coord_control.coordinators.contract import OperatorCoordinator, SnapshotResult
from coord_control.ids import NO_CHECKPOINT, NO_EPOCH, BarrierId
from coord_control.spark.job.news import News
from coord_control.spark.loop.bound_coordinator import BoundCoordinator, DeclaredCoordinator
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.loop.request_types import RequestTypes
from coord_control.spark.worker.model_codec import EventTypes
from tests.core_kit import OP
from tests.patience import SECONDS
from tests.unit.spark.coordinator_kit import (
    CoordinatorRig,
    Number,
    Recorder,
)

# Delivery and notification.


def test_upstream_events_arrive_once_the_epoch_is_committed_and_before_the_notification(rig: CoordinatorRig) -> None:
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
    first = CoordinatorRig(Recorder())
    first.start()
    first.hello(0, 0, task=1).answered()
    first.close()
    second = CoordinatorRig(Recorder())
    second.records += first.records
    second.start(planned=0)
    second.settle()
    assert second.coordinator.calls == [("reset_to_checkpoint", (1 << 32) + 1, b"S"), ("start",)]
    second.close()


def test_an_attempt_is_ready_failed_reset_and_ready_again(rig: CoordinatorRig) -> None:
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


# A reset begins a new incarnation.


def test_the_context_of_an_earlier_incarnation_can_neither_send_nor_fail(rig: CoordinatorRig) -> None:
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


def test_calls_that_wait_when_a_reset_comes_do_not_reach_the_coordinator_any_more(rig: CoordinatorRig) -> None:
    """Scenario 67: what was decided before the reset has not happened; what is decided after it comes after it."""
    inside, may_go = threading.Event(), threading.Event()

    def block() -> None:
        inside.set()
        assert may_go.wait(SECONDS)

    rig.start()
    rig.settle()
    rig.coordinator.context.call_soon(block)
    assert inside.wait(SECONDS)
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


def test_a_result_of_an_earlier_incarnation_closes_nothing(rig: CoordinatorRig) -> None:
    asked: queue.SimpleQueue[SnapshotResult] = queue.SimpleQueue()
    rig.coordinator.then["checkpoint_coordinator"] = asked.put
    rig.start()
    rig.hello(0, 0, task=1)
    late = asked.get(timeout=SECONDS)
    rig.restart(planned=NO_EPOCH)
    waiting = rig.hello(0, 0, task=2, run="run-2")
    current = asked.get(timeout=SECONDS)
    late.complete(b"late")
    rig.coordinator.context.send(0, Number(value=1))
    current.complete(b"current")
    assert waiting.inputs() == [1]
    assert [record.state for record in rig.records] == [b"current"]  # type: ignore[union-attr]


def test_many_resets_between_calls_leave_every_call_to_its_own_incarnation(rig: CoordinatorRig) -> None:
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
        bound = BoundCoordinator(
            DeclaredCoordinator(OP, coordinator, 1, types, types, RequestTypes(OP)),
            CoordinatorThread(),
            lambda call: None,
            news=News(),
        )
        assert bound.observes_attempts is watches
