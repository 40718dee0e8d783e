"""An operator after a recovery: an epoch that is run again is served what was recorded for it."""

from __future__ import annotations

from coord_control.ids import BarrierId, Epoch
from coord_control.protocol.messages import Batch, CheckpointComplete, Welcome
from coord_control.protocol.recovery import Outbox, RecoveredOperator, Replay
from tests.core_kit import OP, answer_to, events, names, of_type
from tests.unit.protocol.checkpoint_kit import S0
from tests.unit.protocol.operator_kit import Runner


def test_an_epoch_that_is_run_again_serves_its_recorded_inputs_and_asks_nobody() -> None:
    replay = Replay(Epoch(3), BarrierId(0), {S0: events("a")})
    operator = Runner(RecoveredOperator({S0: b"s"}, b"S", BarrierId(0), (), {}, replay))
    batch = operator.hello(0, 3, task=9)
    assert batch == Batch(answers=batch.answers)
    assert answer_to(batch, 9) == Welcome(b"s", events("a"))


def test_events_sent_during_a_re_run_wait_for_the_ack_and_the_barrier_completes() -> None:
    replay = Replay(Epoch(3), BarrierId(7), {})
    operator = Runner(RecoveredOperator({}, b"S", BarrierId(7), (), {}, replay))
    operator.send(0, "a")
    assert names(operator.run.channel.gateways[S0].mailbox) == ""
    operator.hello(0, 3, task=9)
    operator.ack(0, 3, task=9)
    assert names(operator.run.channel.gateways[S0].mailbox) == "a"
    assert of_type(CheckpointComplete, operator.settle(3)) == [CheckpointComplete(OP, BarrierId(7))]


def test_a_re_run_without_a_begin_record_has_no_inputs_and_no_barrier() -> None:
    mailboxes = {S0: events("a")}
    operator = Runner(RecoveredOperator({}, b"S", BarrierId(7), (), mailboxes, Replay(Epoch(3), None, {})))
    assert answer_to(operator.hello(0, 3, task=9), 9) == Welcome(None, ())
    operator.ack(0, 3, task=9)
    batch = operator.settle(3)
    assert of_type(CheckpointComplete, batch) == []
    operator.hello(0, 4, task=10)
    assert answer_to(operator.snapshot(), 10) == Welcome(None, events("a")), "they waited for the epoch after"


def test_the_re_run_of_an_epoch_in_which_nobody_has_rows_returns_its_inputs() -> None:
    replay = Replay(Epoch(3), BarrierId(7), {S0: events("a")})
    operator = Runner(RecoveredOperator({}, b"S", BarrierId(7), (), {}, replay))
    operator.send(0, "b")
    operator.settle(3)
    assert names(operator.run.channel.gateways[S0].mailbox) == "a b"


def test_after_redelivered_outboxes_the_next_begin_is_recorded() -> None:
    recovered = RecoveredOperator({}, b"S", BarrierId(0), (Outbox(S0, 1, events("x")),), {}, None)
    operator = Runner(recovered)
    operator.hello(0, 1, task=2)
    assert len(operator.snapshot(b"S").persist) == 1
