"""One operator in one run: hello, begin, ack, settle and the cost rule, without the door of the job before it."""

from __future__ import annotations

import itertools

import pytest

from coord_control.errors import ChannelFull, NoSuchSubtask
from coord_control.ids import NO_CHECKPOINT, BarrierId, CheckpointId, Epoch, OperatorUid, SubtaskIndex
from coord_control.protocol.cut import PendingCut
from coord_control.protocol.messages import (
    Accepted,
    Acknowledge,
    AskSnapshot,
    AttemptFailed,
    AttemptReady,
    Batch,
    CheckpointComplete,
    DeliverEvents,
    EpochSettled,
    FailQuery,
    Measurements,
    Refused,
    SubtaskReset,
    Welcome,
)
from coord_control.protocol.operator import MAX_CHANNEL_BYTES, OperatorRun, OperatorSpec, Totals
from coord_control.protocol.records import Ack, Begin, EventBatch, Record
from coord_control.protocol.recovery import Outbox, RecoveredOperator, Replay
from tests.core_kit import OP, QUERY, Stage, answer_to, attempt, event, events, names, of_type, spec

S0, S1 = SubtaskIndex(0), SubtaskIndex(1)
EMPTY = RecoveredOperator({}, None, NO_CHECKPOINT, (), {}, None)


class Runner:
    """An operator whose batches are taken after every call; its coordinator answers what it was asked last."""

    def __init__(self, recovered: RecoveredOperator = EMPTY, operator_spec: OperatorSpec | None = None) -> None:
        self.totals = Totals()
        ids = itertools.count(1)
        self.run = OperatorRun(operator_spec or spec(), QUERY, recovered, 1, self.totals, lambda: BarrierId(next(ids)))
        self.asked = BarrierId(0)

    def hello(self, subtask: int, epoch: int, task: int, now: float = 0.0) -> Batch:
        batch = Batch()
        self.run.hello(attempt(subtask, epoch, task), task, now, batch)
        for ask in of_type(AskSnapshot, batch):
            self.asked = ask.barrier
        return batch

    def snapshot(self, state: bytes = b"S") -> Batch:
        batch = Batch()
        self.run.snapshot_completed(self.asked, state, 0.0, batch)
        return batch

    def ack(
        self,
        subtask: int,
        epoch: int,
        task: int,
        state: bytes | None = None,
        outbox: str = "",
        measured: Measurements | None = None,
    ) -> tuple[str | None, Batch]:
        batch = Batch()
        message = Acknowledge(attempt(subtask, epoch, task), state, events(outbox), measured or Measurements())
        return self.run.acknowledge(message, task, 0.0, batch), batch

    def ended(self, subtask: int, epoch: int, task: int, reason: str = "it raised") -> Batch:
        batch = Batch()
        self.run.attempt_ended(attempt(subtask, epoch, task), reason, batch)
        return batch

    def settle(self, epoch: int) -> Batch:
        batch = Batch()
        assert self.run.check_consumed(Epoch(epoch)) is None
        self.run.settle(Epoch(epoch), 0.0, batch)
        return batch

    def send(self, subtask: int, words: str) -> None:
        for sent in events(words):
            self.run.send(SubtaskIndex(subtask), sent, 0.0)

    def epoch(self, epoch: int, state: bytes = b"S", outbox: str = "") -> Batch:
        """One whole epoch of subtask 0; returns what settling put out."""
        self.hello(0, epoch, task=epoch)
        self.snapshot(state)
        assert self.ack(0, epoch, task=epoch, outbox=outbox)[0] is None
        return self.settle(epoch)


def records(batch: Batch) -> list[Record]:
    assert all(persist.query == QUERY for persist in batch.persist)
    return [persist.record for persist in batch.persist]


@pytest.fixture
def operator() -> Runner:
    return Runner()


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
    assert "given up" in refusal
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


# The cost rule.


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


# Attempts, for coordinators that watch them.


@pytest.fixture
def watched() -> Runner:
    return Runner(operator_spec=spec(observes_attempts=True))


def test_attempts_are_not_reported_unless_the_coordinator_watches_them(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.snapshot()
    assert not operator.ended(0, 0, task=1)
    assert operator.totals.attempts_failed == 1


def test_a_failed_attempt_is_ready_then_failed_then_reset_then_ready_again(watched: Runner) -> None:
    notices = watched.hello(0, 0, task=1).notices[-1:]
    watched.snapshot()
    notices += watched.ended(0, 0, task=1, reason="boom").notices
    notices += watched.hello(0, 0, task=2).notices
    assert notices == [
        AttemptReady(OP, S0, 1),
        AttemptFailed(OP, S0, 1, "boom"),
        SubtaskReset(OP, S0, NO_CHECKPOINT),
        AttemptReady(OP, S0, 2),
    ]


def test_the_subtask_is_reset_to_the_newest_complete_barrier(watched: Runner) -> None:
    watched.epoch(0)
    watched.hello(0, 1, task=1)
    watched.snapshot()
    [reset] = of_type(SubtaskReset, watched.ended(0, 1, task=1))
    assert reset.barrier == 1


def test_a_subtask_is_not_reset_while_another_attempt_of_it_is_alive(watched: Runner) -> None:
    watched.hello(0, 0, task=1)
    watched.hello(0, 0, task=2)
    watched.snapshot()
    assert watched.ended(0, 0, task=1).notices == [AttemptFailed(OP, S0, 1, "it raised")]
    assert len(of_type(SubtaskReset, watched.ended(0, 0, task=2))) == 1


def test_a_subtask_is_not_reset_when_a_copy_fails_after_another_one_has_acknowledged(watched: Runner) -> None:
    """Spark kills the slower one of two speculative copies: the subtask is through, and is not run again."""
    watched.hello(0, 0, task=1)
    watched.hello(0, 0, task=2)
    watched.snapshot()
    watched.ack(0, 0, task=1)
    assert watched.ended(0, 0, task=2).notices == [AttemptFailed(OP, S0, 2, "it raised")]


def test_attempts_that_end_with_the_run_are_reported_as_failed_without_a_subtask_reset(watched: Runner) -> None:
    for subtask in (1, 0):
        watched.hello(subtask, 0, task=subtask)
    watched.hello(0, 0, task=7)
    watched.snapshot()
    watched.ack(0, 0, task=0)
    batch = Batch()
    watched.run.fail(batch)
    assert batch.notices == [
        AttemptFailed(OP, S0, 7, "the query is being restarted"),
        AttemptFailed(OP, S1, 1, "the query is being restarted"),
    ]


@pytest.mark.parametrize(("subtask", "epoch", "task"), [(0, 0, 99), (1, 0, 1), (0, 1, 1)])
def test_the_end_of_an_attempt_that_is_not_alive_is_late_news(
    watched: Runner, subtask: int, epoch: int, task: int
) -> None:
    watched.hello(0, 0, task=1)
    watched.snapshot()
    assert not watched.ended(subtask, epoch, task)
    assert watched.totals.attempts_failed == 0


def test_the_end_of_an_attempt_without_any_epoch_is_late_news(watched: Runner) -> None:
    assert not watched.ended(0, 0, task=1)


def test_an_attempt_that_ends_while_it_waits_is_not_answered(operator: Runner) -> None:
    operator.hello(0, 0, task=1)
    operator.hello(0, 0, task=2)
    operator.ended(0, 0, task=1)
    batch = operator.snapshot()
    assert answer_to(batch, 1) is None
    assert answer_to(batch, 2) == Welcome(None, ())


# After a recovery.


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


def test_the_operator_of_every_record_is_its_uid() -> None:
    operator = Runner(operator_spec=spec("another"))
    operator.hello(0, 0, task=1)
    [record] = records(operator.snapshot())
    assert isinstance(record, Begin)
    assert record.operator == OperatorUid("another")


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


def test_an_operator_without_a_checkpoint_records_nothing_as_held(operator: Runner) -> None:
    operator.send(0, "a")
    operator.hello(0, 0, task=1)
    [record] = records(operator.snapshot())
    assert isinstance(record, Begin)
    assert record.held == {}


def test_the_question_that_is_open_is_known(operator: Runner) -> None:
    assert not operator.run.is_asked_for(BarrierId(1))
    operator.hello(0, 0, task=1)
    assert operator.run.is_asked_for(BarrierId(1))
    assert not operator.run.is_asked_for(BarrierId(2))
    operator.snapshot()
    assert not operator.run.is_asked_for(BarrierId(1))


def test_a_subtask_that_fails_is_reset_to_the_newest_stored_checkpoint() -> None:
    operator = Runner(operator_spec=spec(observes_attempts=True))
    operator.epoch(0)
    operator.run.stored(BarrierId(9), Batch())
    operator.run.stored(BarrierId(8), Batch())
    operator.hello(0, 1, task=1)
    operator.snapshot()
    assert operator.ended(0, 1, task=1).notices[-1] == SubtaskReset(OP, S0, BarrierId(9))


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
