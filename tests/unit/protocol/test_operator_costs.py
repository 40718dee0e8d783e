"""What an operator records: an epoch in which nothing changed costs no write."""

from __future__ import annotations

from coord_control.ids import BarrierId, Epoch, OperatorUid
from coord_control.protocol.records import Ack, Begin
from coord_control.protocol.recovery import RecoveredOperator
from tests.core_kit import OP, spec
from tests.unit.protocol.checkpoint_kit import S0
from tests.unit.protocol.operator_kit import Runner, records


def test_the_first_epoch_is_always_recorded(operator: Runner) -> None:
    operator.hello(0, 0, task=0)
    assert len(operator.snapshot(b"").persist) == 1


def test_an_epoch_in_which_nothing_changed_writes_nothing(operator: Runner) -> None:
    operator.epoch(0)
    operator.hello(0, 1, task=1)
    assert operator.snapshot().persist == []
    assert operator.ack(0, 1, task=1)[1].persist == []
    assert operator.settle(1).persist == []
    assert (operator.totals.epochs, operator.totals.begins_recorded, operator.totals.acks_recorded) == (2, 1, 0)


def test_a_changed_coordinator_state_is_recorded(operator: Runner) -> None:
    operator.epoch(0)
    operator.hello(0, 1, task=1)
    assert len(operator.snapshot(b"T").persist) == 1


def test_waiting_inputs_are_recorded(operator: Runner) -> None:
    operator.epoch(0)
    operator.send(1, "a")
    operator.hello(0, 1, task=1)
    assert len(operator.snapshot().persist) == 1


def test_a_begin_after_a_delivered_outbox_is_recorded_once(operator: Runner) -> None:
    operator.epoch(0, outbox="x")
    operator.hello(0, 1, task=1)
    assert len(operator.snapshot().persist) == 1
    operator.ack(0, 1, task=1)
    operator.settle(1)
    operator.hello(0, 2, task=2)
    assert operator.snapshot().persist == []


def test_an_ack_that_consumed_inputs_is_recorded_although_nothing_changed(operator: Runner) -> None:
    operator.send(0, "a")
    operator.hello(0, 0, task=0)
    operator.hello(1, 0, task=1)
    operator.snapshot()
    assert records(operator.ack(0, 0, task=0)[1]) == [Ack(OP, S0, Epoch(0), 0, None)]
    assert operator.ack(1, 0, task=1)[1].persist == [], "it had no inputs"


def test_a_state_equal_to_the_one_before_is_not_recorded() -> None:
    operator = Runner(RecoveredOperator({S0: b"s"}, b"S", BarrierId(0), (), {}, None))
    operator.hello(0, 1, task=1)
    operator.snapshot()
    assert operator.ack(0, 1, task=1, state=b"s")[1].persist == []


def test_after_a_recovery_the_recorded_state_is_known() -> None:
    operator = Runner(RecoveredOperator({}, b"S", BarrierId(0), (), {}, None))
    operator.hello(0, 1, task=1)
    assert operator.snapshot(b"S").persist == []


def test_the_operator_of_every_record_is_its_uid() -> None:
    operator = Runner(operator_spec=spec("another"))
    operator.hello(0, 0, task=1)
    [record] = records(operator.snapshot())
    assert isinstance(record, Begin)
    assert record.operator == OperatorUid("another")


def test_an_operator_without_a_checkpoint_records_nothing_as_held(operator: Runner) -> None:
    operator.send(0, "a")
    operator.hello(0, 0, task=1)
    [record] = records(operator.snapshot())
    assert isinstance(record, Begin)
    assert record.held == {}
