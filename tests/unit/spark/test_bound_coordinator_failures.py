"""A callback that raises fails the query, never silently and only once: rules C16 and C17 of the contract."""

from __future__ import annotations

import threading

import pytest

from coord_control.ids import NO_EPOCH, BarrierId
from tests.core_kit import OP
from tests.patience import SECONDS
from tests.unit.spark.coordinator_kit import (
    CoordinatorRig,
    boom,
)


def reach(rig: CoordinatorRig, callback: str) -> None:
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
def test_an_exception_in_a_callback_fails_the_query_and_names_the_callback(rig: CoordinatorRig, callback: str) -> None:
    rig.coordinator.then[callback] = boom
    rig.start()
    reach(rig, callback)
    error = rig.failure()
    assert (error.operator, error.callback) == (OP, callback)
    assert "RuntimeError: boom" in error.traceback
    assert isinstance(error.__cause__, RuntimeError)


def test_an_exception_in_start_fails_the_query(rig: CoordinatorRig) -> None:
    rig.coordinator.then["start"] = boom
    rig.start()
    assert rig.failure().callback == "start"


def test_a_start_that_failed_is_tried_again_with_the_query_and_not_after_it_succeeded(rig: CoordinatorRig) -> None:
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


def test_a_coordinator_whose_start_failed_is_closed(rig: CoordinatorRig) -> None:
    rig.coordinator.then["start"] = boom
    rig.start()
    rig.bound.close()
    rig.settle()
    assert rig.coordinator.names == ["start", "close"]


def test_a_start_that_a_reset_overtakes_is_made_up_for(rig: CoordinatorRig) -> None:
    inside, may_go = threading.Event(), threading.Event()

    def block() -> None:
        inside.set()
        assert may_go.wait(SECONDS)

    rig.thread.submit("another operator", "start", block)
    assert inside.wait(SECONDS)
    rig.start()
    rig.restart(planned=NO_EPOCH)
    may_go.set()
    rig.settle()
    assert rig.coordinator.names == ["reset_to_checkpoint", "start"]


def test_an_exit_in_a_callback_does_not_end_the_thread(rig: CoordinatorRig) -> None:
    def leave() -> None:
        raise SystemExit(1)

    rig.coordinator.then["start"] = leave
    rig.start()
    assert rig.failure().callback == "start"
    assert rig.thread.drain(SECONDS)


def test_an_exception_in_close_is_logged_and_fails_nobody(
    rig: CoordinatorRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.coordinator.then["close"] = boom
    rig.start()
    rig.bound.close()
    rig.assert_no_failure()
    assert "failed in close" in caplog.text


def test_a_coordinator_that_was_never_started_is_not_closed(rig: CoordinatorRig) -> None:
    rig.bound.close()
    rig.settle()
    assert rig.coordinator.calls == []


def test_a_snapshot_that_fails_fails_the_epoch(rig: CoordinatorRig) -> None:
    rig.coordinator.then["checkpoint_coordinator"] = lambda result: result.fail(ValueError("no state"))
    rig.start()
    rig.hello(0, 0, task=1)
    error = rig.failure()
    assert error.callback == "checkpoint_coordinator"
    assert isinstance(error.__cause__, ValueError)


def test_failing_is_counted_once_until_the_next_reset(rig: CoordinatorRig) -> None:
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


def test_a_failed_coordinator_is_not_called_until_its_reset(rig: CoordinatorRig) -> None:
    rig.start()
    rig.settle()
    rig.coordinator.context.fail_job(ValueError("enough"))
    rig.failure()
    rig.bound.complete(BarrierId(1))
    rig.settle()
    assert rig.coordinator.names == ["start"]
