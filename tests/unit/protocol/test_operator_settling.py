"""How an epoch of one operator ends: settled with its commit, or failed with its run."""

from __future__ import annotations

from coord_control.errors import ChannelFull
from coord_control.ids import BarrierId, Epoch, SubtaskIndex
from coord_control.protocol.messages import (
    Batch,
    CheckpointComplete,
    DeliverEvents,
    EpochSettled,
    FailQuery,
    Measurements,
    Refused,
)
from coord_control.protocol.operator import MAX_CHANNEL_BYTES, OperatorSpec
from coord_control.protocol.records import EventBatch
from coord_control.protocol.recovery import RecoveredOperator
from tests.core_kit import OP, QUERY, Stage, answer_to, event, names, of_type
from tests.unit.protocol.checkpoint_kit import S0, S1
from tests.unit.protocol.operator_kit import Runner

# Settle.


def test_settling_delivers_outboxes_in_subtask_order_and_then_notifies(operator: Runner) -> None:
    for subtask in (1, 0):
        operator.hello(subtask, 0, task=subtask)
    operator.snapshot()
    for subtask in (1, 0):
        operator.ack(subtask, 0, task=subtask, outbox=f"x{subtask} y{subtask}", measured=Measurements(3, 2, 0.5))
    batch = operator.settle(0)
    assert batch.notices == [
        DeliverEvents(OP, S0, 0, (EventBatch(0, 2, b"x0,y0"),)),
        DeliverEvents(OP, S1, 1, (EventBatch(0, 2, b"x1,y1"),)),
        CheckpointComplete(OP, BarrierId(1)),
        EpochSettled(
            query=QUERY,
            operator=OP,
            epoch=Epoch(0),
            ran=2,
            events_down=0,
            events_up=4,
            rows_in=6,
            rows_out=4,
            nondeterministic_subtasks=0,
        ),
    ]
    assert (operator.totals.events_up, operator.totals.rows_in, operator.totals.rows_out) == (4, 6, 4)


def test_a_subtask_without_rows_keeps_its_state_its_inputs_return_and_its_gateway_opens() -> None:
    operator = Runner(RecoveredOperator({S1: b"s"}, b"S", BarrierId(0), (), {}, None))
    operator.send(1, "a")
    operator.hello(0, 1, task=1)
    operator.snapshot()
    operator.send(1, "b")
    operator.ack(0, 1, task=1)
    batch = operator.settle(1)
    assert operator.run.states[S1] == b"s"
    assert names(operator.run.channel.gateways[S1].mailbox) == "a b"
    [settled] = of_type(EpochSettled, batch)
    assert (settled.ran, settled.events_down) == (1, 0)


def test_states_advance_only_when_the_epoch_is_settled(operator: Runner) -> None:
    operator.hello(0, 0, task=0)
    operator.snapshot()
    operator.ack(0, 0, task=0, state=b"s")
    assert operator.run.states == {}
    operator.settle(0)
    assert operator.run.states == {S0: b"s"}


def test_settling_an_earlier_epoch_leaves_the_running_one_alone(operator: Runner) -> None:
    operator.hello(0, 3, task=0)
    operator.snapshot()
    assert operator.run.check_consumed(Epoch(2)) is None
    assert not operator.settle(2)
    assert operator.run.epoch is not None


def test_settling_without_an_epoch_does_nothing(operator: Runner) -> None:
    assert not operator.settle(0)


def test_output_that_was_begun_and_not_read_to_its_end_is_an_error_that_names_the_subtasks(operator: Runner) -> None:
    for subtask in (0, 1):
        operator.hello(subtask, 0, task=subtask)
    operator.snapshot()
    operator.ack(0, 0, task=0)
    error = operator.run.check_consumed(Epoch(0))
    assert error is not None
    assert (error.operator, error.subtasks, error.epoch) == (OP, [1], 0)


# Failing.


def test_failing_refuses_who_waits_and_forgets_the_epoch(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    batch = Batch()
    operator.run.fail(batch)
    assert answer_to(batch, 1) == Refused("the query is being restarted")
    assert operator.run.epoch is None


def test_failing_without_an_epoch_does_nothing(operator: Runner) -> None:
    batch = Batch()
    operator.run.fail(batch)
    assert not batch


def test_a_coordinator_that_owes_its_state_too_long_is_named(operator: Runner) -> None:
    operator.hello(0, 0, task=1, now=5.0)
    assert operator.run.overdue(65.0) is None
    assert operator.run.epoch is not None
    assert operator.run.overdue(65.5) == operator.run.epoch.barrier


def test_a_channel_in_which_too_much_waits_fails_the_query() -> None:
    stage = Stage()
    stage.start()
    large = EventBatch(0, 1, b"x" * (MAX_CHANNEL_BYTES // 2))
    for _ in range(2):
        stage.core.send(OP, 1, SubtaskIndex(0), large, 0.0)
    assert not stage.execute().notices
    stage.core.send(OP, 1, SubtaskIndex(0), event("a"), 0.0)
    (failed,) = stage.execute().notices
    assert isinstance(failed, FailQuery)
    assert isinstance(failed.error, ChannelFull)
    assert not failed.error.retry
    assert "events that wait for subtask 0 take 33554433 bytes, the limit is 33554432; a subtask takes" in str(
        failed.error
    )


def grown(stage: Stage, epochs: int) -> list[FailQuery]:
    """Let events of 10 bytes wait for subtask 1, which never has rows: frozen, returned, and more behind them."""
    for epoch in range(epochs):
        stage.hello(0, epoch, epoch)
        stage.snapshot()
        for _ in range(3):
            stage.core.send(OP, stage.incarnation(), SubtaskIndex(1), event("0123456789"), 0.0)
        if failed := [notice for notice in stage.execute().notices if isinstance(notice, FailQuery)]:
            return failed
        stage.ack(0, epoch, epoch)
        stage.commit(epoch)
    return []


def test_events_that_wait_for_a_subtask_without_rows_are_bounded_over_epochs() -> None:
    stage = Stage([OperatorSpec(OP, 2, channel_bytes=100)])
    stage.start()
    (failed,) = grown(stage, epochs=10)
    assert isinstance(failed.error, ChannelFull)
    assert (failed.error.size, failed.error.limit) == (108, 100)  # commas join what was frozen
    assert "coordctl mailbox drop JOB op 1" in str(failed.error)


def test_a_full_channel_does_not_grow_until_its_query_runs_again() -> None:
    stage = Stage([OperatorSpec(OP, 2, channel_bytes=100)])
    stage.start()
    assert grown(stage, epochs=10)
    (operator,) = stage.core.operators()
    before = operator.waiting_bytes(SubtaskIndex(1))
    stage.send(1, "0123456789")
    assert operator.waiting_bytes(SubtaskIndex(1)) == before


def test_inputs_that_a_subtask_has_asked_for_leave_room_for_others() -> None:
    stage = Stage([OperatorSpec(OP, 2, channel_bytes=100)])
    stage.start()
    stage.send(1, "x" * 100)
    stage.hello(1, 0, 1)
    stage.snapshot()
    assert not [notice for notice in stage.send(1, "y" * 100).notices if isinstance(notice, FailQuery)]


def test_inputs_of_an_epoch_that_runs_again_count_until_they_are_asked_for() -> None:
    stage = Stage([OperatorSpec(OP, 2, channel_bytes=100)])
    stage.start()
    stage.send(1, "x" * 100)
    stage.hello(0, 0, 1)
    stage.snapshot()
    stage.new_driver()
    stage.start()
    (operator,) = stage.core.operators()
    assert operator.waiting_bytes(SubtaskIndex(1)) == 100
    stage.hello(1, 0, 2)
    assert operator.waiting_bytes(SubtaskIndex(1)) == 0
