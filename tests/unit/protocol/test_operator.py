"""One operator in one run, without the door of the job before it: hello, begin and ack."""

from __future__ import annotations

import pytest

from coord_control.errors import NoSuchSubtask
from coord_control.ids import BarrierId, CheckpointId, Epoch, SubtaskIndex
from coord_control.protocol.cut import PendingCut
from coord_control.protocol.messages import Accepted, AskSnapshot, Batch, EpochSettled, Welcome
from coord_control.protocol.records import Ack, Begin, EventBatch
from tests.core_kit import OP, answer_to, event, events, names, of_type
from tests.unit.protocol.checkpoint_kit import S0, S1
from tests.unit.protocol.operator_kit import Runner, records

# Hello and begin.


def test_the_first_hello_asks_the_coordinator_and_waits(operator: Runner) -> None:
    batch = operator.hello(0, 0, task=1)
    assert batch == Batch(notices=[AskSnapshot(OP, 1, BarrierId(1))])


def test_more_hellos_before_the_answer_wait_without_asking_again(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    assert not operator.hello(1, 0, task=2)


def test_the_answer_is_recorded_and_then_all_who_wait_are_welcomed(operator: Runner) -> None:
    operator.send(0, "a b")
    operator.hello(0, 0, task=1)
    operator.hello(1, 0, task=2)
    batch = operator.snapshot(b"S0")
    joined = (EventBatch(0, 2, b"a,b"),)
    assert records(batch) == [Begin(OP, Epoch(0), BarrierId(1), b"S0", {S0: joined})]
    assert answer_to(batch, 1) == Welcome(None, joined)
    assert answer_to(batch, 2) == Welcome(None, ())


def test_events_sent_before_the_answer_are_inputs_and_later_ones_are_not(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.send(0, "before")
    batch = operator.snapshot()
    operator.send(0, "after")
    assert answer_to(batch, 1) == Welcome(None, events("before"))
    assert answer_to(operator.hello(0, 0, task=2), 2) == Welcome(None, events("before"))


def test_a_hello_while_the_epoch_runs_is_answered_at_once_and_writes_nothing(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.snapshot()
    batch = operator.hello(1, 0, task=2)
    assert answer_to(batch, 2) == Welcome(None, ())
    assert records(batch) == []


def test_an_answer_for_another_barrier_is_late_news(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    batch = Batch()
    operator.run.snapshot_completed(BarrierId(99), b"S", 0.0, batch)
    assert not batch
    assert answer_to(operator.snapshot(), 1) is not None


def test_the_answer_for_a_barrier_of_no_epoch_begins_nothing_and_asks_for_the_next(operator: Runner) -> None:
    """A triggered checkpoint shares the channel with the epochs."""
    operator.run.channel.trigger(BarrierId(0), 0.0)
    assert operator.hello(0, 0, task=1).notices == [], "one triggering phase at a time"
    batch = operator.snapshot()
    assert batch == Batch(notices=[AskSnapshot(OP, 1, BarrierId(1))])
    operator.asked = BarrierId(1)
    assert answer_to(operator.snapshot(), 1) == Welcome(None, ())


def test_an_answer_without_any_epoch_is_only_that_of_its_barrier(operator: Runner) -> None:
    operator.run.channel.trigger(BarrierId(1), 0.0)
    operator.asked = BarrierId(1)
    assert not operator.snapshot()
    assert not operator.run.channel.gateways[S0].is_open


def test_an_event_to_no_subtask_is_not_counted(operator: Runner) -> None:
    with pytest.raises(NoSuchSubtask):
        operator.run.send(SubtaskIndex(2), event("a"), 0.0)
    assert operator.totals.events_down == 0
    operator.send(1, "a b")
    assert operator.totals.events_down == 2


def test_the_question_that_is_open_is_known(operator: Runner) -> None:
    assert not operator.run.is_asked_for(BarrierId(1))
    operator.hello(0, 0, task=1)
    assert operator.run.is_asked_for(BarrierId(1))
    assert not operator.run.is_asked_for(BarrierId(2))
    operator.snapshot()
    assert not operator.run.is_asked_for(BarrierId(1))


# Acknowledge.


def test_an_ack_is_recorded_then_answered_and_opens_only_its_own_gateway(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.snapshot()
    operator.send(0, "a")
    operator.send(1, "b")
    refusal, batch = operator.ack(0, 0, task=1, state=b"s1", outbox="x")
    assert refusal is None
    assert records(batch) == [Ack(OP, S0, Epoch(0), 1, b"s1", events("x"))]
    assert answer_to(batch, 1) == Accepted()
    assert names(operator.run.channel.gateways[S0].mailbox) == "a"
    assert names(operator.run.channel.gateways[S1].mailbox) == ""


def test_the_outbox_is_packed_before_it_is_recorded(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.snapshot()
    _, batch = operator.ack(0, 0, task=1, outbox="x y")
    assert records(batch) == [Ack(OP, S0, Epoch(0), 1, None, (EventBatch(0, 2, b"x,y"),))]


@pytest.mark.parametrize("prepare", ["nothing", "asked", "another epoch"])
def test_an_ack_of_an_epoch_that_does_not_run_is_refused(operator: Runner, prepare: str) -> None:
    if prepare != "nothing":
        operator.hello(0, 0, task=1)
    if prepare == "another epoch":
        operator.snapshot()
    epoch = 1 if prepare == "another epoch" else 0
    refusal, batch = operator.ack(0, epoch, task=1)
    assert refusal == f"epoch {epoch} is not running"
    assert not batch


def test_an_ack_without_a_hello_is_refused(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.snapshot()
    refusal, batch = operator.ack(1, 0, task=2)
    assert refusal == "an ack without a hello"
    assert not batch


def test_a_duplicate_ack_is_accepted_again_and_counted_once(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.snapshot()
    operator.ack(0, 0, task=1, state=b"s")
    refusal, batch = operator.ack(0, 0, task=1, state=b"s")
    assert refusal is None
    assert batch.persist == []
    assert answer_to(batch, 1) == Accepted()
    assert operator.totals.acks == 1


def test_the_ack_of_an_attempt_that_was_given_up_is_refused(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.snapshot()
    operator.ended(0, 0, task=1)
    refusal, batch = operator.ack(0, 0, task=1)
    assert refusal is not None
    assert "abandoned" in refusal
    assert not batch


def test_an_attempt_after_the_ack_starts_from_the_same_state_and_inputs(operator: Runner) -> None:
    operator.epoch(0)
    operator.send(0, "a")
    operator.hello(0, 1, task=1)
    first = answer_to(operator.snapshot(), 1)
    operator.ack(0, 1, task=1, state=b"new")
    operator.send(0, "later")
    assert answer_to(operator.hello(0, 1, task=2), 2) == first == Welcome(None, events("a"))


def test_a_second_ack_with_another_result_replaces_the_first_and_is_reported(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.snapshot()
    operator.ack(0, 0, task=1, state=b"first")
    operator.hello(0, 0, task=2)
    _, batch = operator.ack(0, 0, task=2, state=b"second")
    assert records(batch) == [Ack(OP, S0, Epoch(0), 2, b"second")]
    [settled] = of_type(EpochSettled, operator.settle(0))
    assert settled.nondeterministic_subtasks == operator.totals.nondeterministic == 1
    assert operator.run.states == {S0: b"second"}


def test_a_second_ack_that_takes_the_change_back_is_recorded_too(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.snapshot()
    operator.ack(0, 0, task=1, state=b"changed")
    operator.hello(0, 0, task=2)
    _, batch = operator.ack(0, 0, task=2)
    assert records(batch) == [Ack(OP, S0, Epoch(0), 2, None)]


def test_the_ack_of_an_epoch_before_the_boundary_does_not_pass_it(operator: Runner) -> None:
    operator.hello(0, 0, task=0)
    operator.snapshot()
    cut = PendingCut(CheckpointId(1), BarrierId(99), Epoch(1), triggered_at=0.0)
    batch = Batch()
    operator.run.trigger(cut, 0.0, batch)
    operator.run.snapshot_completed(BarrierId(99), b"C", 0.0, batch)
    assert operator.ack(0, 0, task=0)[0] is None
    assert cut.is_answered
    assert cut.passed == 0
