"""Waking subtasks without rows: what the core says, when it says it, and when that ends."""

from __future__ import annotations

from coord_control.errors import CoordinatorFailed
from coord_control.ids import Epoch, OperatorUid, RunId
from coord_control.protocol.messages import Batch, EventsWait, Welcome
from coord_control.protocol.operator import OperatorSpec
from tests.core_kit import OP, Stage, answer_to, names, of_type, spec

WAKING = OperatorSpec(OP, 2, wake=True)


def waking() -> Stage:
    stage = Stage([WAKING])
    stage.start()
    return stage


def asked(stage: Stage, run: str | None = None) -> list[int]:
    """Spark plans an epoch, and asks."""
    found = stage.core.to_wake(OP, RunId(run or stage.run))
    stage.execute()
    return [int(subtask) for subtask in found]


def is_said(batch: Batch) -> bool:
    return of_type(EventsWait, batch) == [EventsWait(OP)]


def run_epoch(stage: Stage, epoch: int, *subtasks: int) -> dict[int, str]:
    """Run an epoch of these subtasks, which are all that Spark has rows for; returns the events of each."""
    found = {}
    for subtask in subtasks:
        stage.hello(subtask, epoch, task=epoch * 10 + subtask)
    batch = stage.snapshot()
    for subtask in subtasks:
        welcome = answer_to(batch, epoch * 10 + subtask)
        assert isinstance(welcome, Welcome)
        found[subtask] = names(welcome.inputs)
        stage.ack(subtask, epoch, task=epoch * 10 + subtask)
    return found


def test_an_event_is_said_to_wait_once_until_spark_asks() -> None:
    stage = waking()
    assert asked(stage) == []
    assert is_said(stage.send(1, "a"))
    assert not is_said(stage.send(0, "b"))
    assert asked(stage) == [0, 1]
    assert is_said(stage.send(1, "c"))


def test_an_operator_that_is_not_to_be_woken_says_nothing() -> None:
    stage = Stage([spec()])
    stage.start()
    assert not is_said(stage.send(1, "a"))


def test_an_event_that_was_delivered_wakes_no_subtask_again_before_its_epoch_is_settled() -> None:
    stage = waking()
    stage.send(1, "a")
    assert asked(stage) == [1]
    assert run_epoch(stage, 0, 1) == {1: "a"}
    stage.spark_commits(0)
    assert asked(stage) == []
    assert not is_said(stage.commit(0))
    assert asked(stage) == []


def test_inputs_that_no_attempt_has_taken_wake_their_subtask_also_before_they_have_returned() -> None:
    stage = waking()
    stage.send(1, "a")
    assert run_epoch(stage, 0, 0) == {0: ""}
    stage.spark_commits(0)
    assert asked(stage) == [1]
    assert is_said(stage.commit(0))
    assert asked(stage) == [1]
    assert run_epoch(stage, 1, 1) == {1: "a"}


def test_what_is_blocked_is_said_to_wait_when_its_subtask_has_acknowledged() -> None:
    stage = waking()
    stage.hello(0, 0, task=1)
    stage.snapshot()
    assert not is_said(stage.send(0, "a"))
    assert is_said(stage.ack(0, 0, task=1))
    assert asked(stage) == [0]


def test_what_is_blocked_without_rows_is_said_to_wait_when_the_epoch_is_settled() -> None:
    stage = waking()
    run_epoch(stage, 0, 0)
    assert not is_said(stage.send(1, "a"))
    assert is_said(stage.commit(0))


def test_what_a_checkpoint_blocks_is_said_to_wait_when_its_subtask_has_passed() -> None:
    stage = waking()
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.trigger_checkpoint(1)
    stage.snapshot()
    assert not is_said(stage.send(0, "a"))
    assert asked(stage) == []
    assert is_said(stage.ack(0, 0, task=1))


def test_what_a_checkpoint_blocks_is_said_to_wait_when_it_is_aborted() -> None:
    other = OperatorSpec(OperatorUid("other"), 1)
    stage = Stage([WAKING, other])
    stage.start()
    stage.hello(0, 0, task=1, operator="other")  # so the checkpoint waits for the end of epoch 0
    stage.trigger_checkpoint(1)
    stage.snapshot()
    assert not is_said(stage.send(1, "a"))
    assert asked(stage) == []
    assert is_said(stage.abort_checkpoint(1))
    assert asked(stage) == [1]


def test_a_run_that_has_ended_or_failed_wakes_nothing_and_the_next_one_what_is_durable() -> None:
    stage = waking()
    stage.send(0, "a")
    stage.send(1, "b")
    first = stage.run
    assert run_epoch(stage, 0, 0) == {0: "a"}
    stage.commit(0)
    stage.end_run()
    assert asked(stage, first) == []
    batch = stage.start()
    assert is_said(batch), "inputs that no subtask took are durable"
    assert asked(stage, first) == []
    assert asked(stage) == [1]
    stage.core.coordinator_failed(OP, stage.incarnation(), CoordinatorFailed(OP, "start", "boom"))
    stage.execute()
    assert asked(stage) == []


def test_a_planned_epoch_without_a_record_wakes_again_without_events_and_they_come_in_the_next() -> None:
    stage = waking()
    stage.send(1, "a")
    run_epoch(stage, 0, 0)
    stage.commit(0)
    assert asked(stage) == [1]
    stage.planned = Epoch(1)  # Spark has planned epoch 1, which wakes 1, and the driver dies
    stage.new_driver()
    stage.start()
    batch = stage.hello(1, 1, task=12)
    welcome = answer_to(batch, 12)
    assert isinstance(welcome, Welcome)
    assert names(welcome.inputs) == ""
    stage.ack(1, 1, task=12)
    stage.commit(1)
    assert asked(stage) == [1]
    assert run_epoch(stage, 2, 1) == {1: "a"}


def applied(stage: Stage, number: int) -> Batch:
    """The coordinator applies a control event, and sends nothing because of it."""
    stage.core.control_event(OP, stage.incarnation(), number)
    return stage.execute()


def test_a_control_event_that_no_record_contains_wakes_one_subtask_until_one_does() -> None:
    stage = waking()
    run_epoch(stage, 0, 0)
    stage.commit(0)
    assert is_said(applied(stage, 1))
    assert asked(stage) == [0]
    assert run_epoch(stage, 1, 0) == {0: ""}
    assert not is_said(stage.commit(1))
    assert asked(stage) == []


def test_a_control_event_whose_recipients_are_woken_wakes_no_other_subtask() -> None:
    stage = waking()
    stage.send(1, "a")
    applied(stage, 1)
    assert asked(stage) == [1]


def test_a_control_event_during_an_epoch_waits_for_the_record_of_the_next() -> None:
    stage = waking()
    run_epoch(stage, 0, 0)
    assert is_said(applied(stage, 1))
    stage.spark_commits(0)
    assert asked(stage) == [0]
    assert is_said(stage.commit(0))
