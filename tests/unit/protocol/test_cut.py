"""One operator's cut while it is made, that of a query that does not run, and what a restored lineage begins with."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord_control.ids import NO_CHECKPOINT, BarrierId, CheckpointId, Epoch, SubtaskIndex
from coord_control.protocol.cut import OperatorCut, PendingCut, cut_of, seed
from coord_control.protocol.gateway import Gateway, State
from coord_control.protocol.records import Ack, Begin, EventBatch, Record, pack
from coord_control.protocol.recovery import Facts, Outbox, RecoveredOperator, Replay, in_sequence, recover
from tests.core_kit import OP, ack, begin, event, events, names, run_started

S0, S1 = SubtaskIndex(0), SubtaskIndex(1)
EARLIER, BARRIER = BarrierId(4), BarrierId(5)


def pending(boundary: int = 3) -> PendingCut:
    return PendingCut(CheckpointId(1), BARRIER, Epoch(boundary), triggered_at=10.0)


def answered(boundary: int = 3) -> PendingCut:
    cut = pending(boundary)
    cut.asked_at = 12.0
    cut.answered(b"S", now=15.0)
    return cut


def closed_gateway(before: str = "", after: str = "") -> Gateway:
    """Closed for the checkpoint: what was sent before its snapshot point, and after it."""
    gateway = Gateway()
    for batch in events(before):
        gateway.send(batch, 0.0)
    gateway.mark(BARRIER)
    gateway.close(BARRIER)
    for batch in events(after):
        gateway.send(batch, 16.0)
    return gateway


def facts(*records: Record, committed: int, planned: int | None = None) -> Facts:
    return Facts(records, Epoch(committed), Epoch(committed if planned is None else planned))


# A subtask passes the boundary.


def test_only_acks_of_the_boundary_are_noted_and_of_these_the_first() -> None:
    cut = answered(boundary=3)
    cut.acknowledged(S0, Epoch(2), 16.0)
    cut.passes(S0, closed_gateway(), 20.0)
    cut.acknowledged(S1, Epoch(3), 17.0)
    cut.acknowledged(S1, Epoch(3), 18.0)
    cut.passes(S1, closed_gateway(), 20.0)
    cut.capture(OP, {})
    assert cut.captured is not None
    assert [each.ack_seconds for each in cut.captured.subtasks] == [None, 7.0]


def test_what_waits_in_the_mailbox_is_channel_state_and_what_was_sent_later_follows_it() -> None:
    cut, gateway = answered(), closed_gateway(before="a b", after="c")
    cut.passes(S1, gateway, now=17.0)
    cut.capture(OP, {})
    assert cut.captured is not None
    assert {subtask: names(batches) for subtask, batches in cut.captured.down.items()} == {S1: "a b"}
    assert names(gateway.mailbox) == "a b c"
    assert gateway.state(BARRIER) is State.OPENED


def test_channel_state_is_joined() -> None:
    cut = answered()
    cut.passes(S0, closed_gateway(before="a b"), now=17.0)
    cut.capture(OP, {})
    assert cut.captured is not None
    assert cut.captured.down == {S0: (EventBatch(0, 2, b"a,b"),)}


def test_nobody_passes_before_the_coordinator_has_answered() -> None:
    cut, gateway = pending(), closed_gateway(before="a", after="b")
    cut.passes(S0, gateway, now=17.0)
    assert cut.passed == 0
    assert not gateway.is_open


def test_a_subtask_passes_once() -> None:
    cut, gateway = answered(), closed_gateway(before="a")
    cut.passes(S0, gateway, now=17.0)
    gateway.send(event("later"), 18.0)
    cut.passes(S0, gateway, now=19.0)
    assert cut.passed == 1
    cut.capture(OP, {})
    assert cut.captured is not None
    assert names(cut.captured.down[S0]) == "a"
    assert cut.captured.subtasks[0].passed_seconds == 7.0


def test_a_subtask_without_events_is_left_out_of_the_channel_state() -> None:
    cut = answered()
    cut.passes(S0, closed_gateway(after="b"), now=17.0)
    cut.capture(OP, {})
    assert cut.captured is not None
    assert cut.captured.down == {}


def test_what_an_older_barrier_holds_is_not_on_its_way_yet() -> None:
    """A gateway opens for older barriers first; its owner passes the checkpoint after that."""
    gateway = Gateway()
    gateway.mark(EARLIER)
    gateway.close(EARLIER)
    gateway.send(event("a"), 0.0)
    gateway.mark(BARRIER)
    gateway.close(BARRIER)
    gateway.send(event("b"), 0.0)
    gateway.open(EARLIER, 0.0)
    cut = answered()
    cut.passes(S0, gateway, now=17.0)
    cut.capture(OP, {})
    assert cut.captured is not None
    assert names(cut.captured.down[S0]) == "a"


# What the subtasks have sent.


@pytest.mark.parametrize(
    ("asked_at", "boundary", "epoch", "is_kept"),
    [
        pytest.param(12.0, 3, 3, True, id="the boundary's"),
        pytest.param(12.0, 3, 2, True, id="an earlier epoch's, settled late"),
        pytest.param(12.0, 3, 4, False, id="a later epoch's"),
        pytest.param(None, 3, 3, False, id="delivered before the coordinator is asked"),
    ],
)
def test_what_a_coordinator_had_not_seen_when_it_was_asked_is_channel_state(
    asked_at: float | None, boundary: int, epoch: int, is_kept: bool
) -> None:
    cut = pending(boundary)
    cut.asked_at = asked_at
    outbox = Outbox(S0, 7, events("x"))
    cut.settled(Epoch(epoch), [outbox])
    assert cut.up == ([outbox] if is_kept else [])


# Capture.


def test_a_captured_cut_says_everything_with_its_times() -> None:
    cut = answered()
    cut.settled(Epoch(3), [Outbox(S1, 9, events("x"))])
    cut.passes(S1, closed_gateway(before="a", after="b c"), now=20.0)
    cut.passes(S0, closed_gateway(), now=21.0)
    states = {S0: b"s0", S1: None}
    cut.capture(OP, states)
    states[S0] = b"later"
    captured = cut.captured
    assert captured is not None
    assert (captured.operator, captured.coordinator_state) == (OP, b"S")
    assert captured.states == {S0: b"s0", S1: None}, "they do not change any more"
    assert captured.up == (Outbox(S1, 9, events("x")),)
    assert (captured.asked_seconds, captured.snapshot_seconds) == (2.0, 3.0)
    assert [part.subtask for part in captured.subtasks] == [S0, S1]
    assert [part.passed_seconds for part in captured.subtasks] == [11.0, 10.0]
    assert [part.blocked_events for part in captured.subtasks] == [0, 2]
    assert [part.blocked_seconds for part in captured.subtasks] == [6.0, 5.0]


def test_a_cut_that_nobody_answered_cannot_be_captured() -> None:
    cut = pending()
    with pytest.raises(AssertionError, match="asked"):
        cut.capture(OP, {})
    cut.asked_at = 12.0
    with pytest.raises(AssertionError, match="answered"):
        cut.capture(OP, {})


# Of a query that does not run.


def test_without_any_fact_there_is_nothing_to_keep() -> None:
    cut = cut_of(recover(facts(committed=-1), OP), OP)
    assert cut == OperatorCut(OP, None, {}, {}, ())
    assert list(seed(cut, Epoch(-1), BARRIER)) == []


def test_at_the_last_commit_outboxes_since_the_snapshot_and_waiting_events_are_channel_state() -> None:
    records: list[Record] = [
        begin(0, b"S0", {1: "a"}),
        ack(0, 0, b"s0", outbox="x", task=4),
        ack(1, 0, b"s1", outbox="y", task=5),
    ]
    cut = cut_of(recover(facts(*records, committed=1), OP), OP)
    assert cut.coordinator_state == b"S0"
    assert cut.states == {S0: b"s1"}
    assert cut.down == {S1: events("a")}
    assert cut.up == (Outbox(S0, 4, events("x")), Outbox(S0, 5, events("y")))


def test_an_epoch_that_will_run_again_keeps_its_inputs_apart_from_what_waits_behind_them() -> None:
    held = {S0: events("b"), S1: events("c")}
    record = dataclasses.replace(begin(1, b"S1", {0: "a"}), held=held)
    cut = cut_of(recover(facts(begin(0), ack(0, outbox="x"), record, committed=0, planned=1), OP), OP)
    assert cut.coordinator_state == b"S1"
    assert cut.replay is not None
    assert (cut.replay.epoch, cut.replay.inputs, cut.replay.acks) == (1, {S0: events("a")}, {})
    assert cut.down == {S0: events("b"), S1: events("c")}
    assert cut.up == (), "S1 has seen x"


def test_what_was_acknowledged_in_an_epoch_that_spark_has_not_committed_is_no_state() -> None:
    records: list[Record] = [begin(0, b"S0"), ack(0, 0, b"s0"), begin(1, b"S1", {0: "a"}), ack(1, 0, b"s1", outbox="x")]
    cut = cut_of(recover(facts(*records, committed=0, planned=1), OP), OP)
    assert cut.states == {S0: b"s0"}
    assert cut.down == {}
    assert cut.up == ()
    assert cut.replay is not None
    assert cut.replay.inputs == {S0: events("a")}
    assert cut.replay.acks == {S0: ack(1, 0, b"s1", outbox="x")}, "they count if Spark commits it without running it"


# A restored lineage.


def test_a_restored_lineage_begins_as_if_its_boundary_were_an_epoch_of_its_own() -> None:
    up = (Outbox(S0, 4, events("x")), Outbox(S1, 5, events("z")), Outbox(S0, 6, events("y")))
    cut = OperatorCut(OP, b"S", {S0: b"s0", S1: None}, {S1: events("a b")}, up)
    joined = (EventBatch(0, 2, b"x,y"),)
    begun, first, second = seed(cut, Epoch(7), BARRIER)
    assert begun == Begin(OP, Epoch(7), BARRIER, b"S", {}, {S1: (EventBatch(0, 2, b"a,b"),)})
    assert first == Ack(OP, S0, Epoch(7), 6, b"s0", joined)
    assert second == Ack(OP, S1, Epoch(7), 5, None, events("z"))


def test_a_subtask_that_has_sent_nothing_keeps_its_state_all_the_same() -> None:
    [record] = seed(OperatorCut(OP, None, {S0: b"s"}, {}, ()), Epoch(7), BARRIER)
    assert record == ack(7, 0, b"s", task=-1)


words = st.lists(st.sampled_from("abc"), max_size=3).map(" ".join)
subtask_states = st.dictionaries(st.sampled_from([S0, S1]), st.sampled_from([None, b"s", b"t"]))


@st.composite
def cuts(draw: st.DrawFn) -> OperatorCut:
    """Of a coordinator that has given its state: without one, nothing is known to have been sent by it."""
    states = draw(subtask_states)
    outboxes = draw(st.lists(st.tuples(st.sampled_from(sorted(states)), words), max_size=4)) if states else []
    up = tuple(Outbox(subtask, number, events(sent)) for number, (subtask, sent) in enumerate(outboxes) if sent)
    down = {subtask: events(sent) for subtask in (S0, S1) if (sent := draw(words))}
    return OperatorCut(OP, draw(st.sampled_from([b"S", b""])), states, down, up)


@st.composite
def planned_cuts(draw: st.DrawFn) -> OperatorCut:
    """With a planned epoch behind boundary 7, begun or not: a begun one has seen what came up."""
    cut = draw(cuts())
    acks = {
        subtask: ack(8, subtask, state, outbox=draw(words), task=9) for subtask, state in draw(subtask_states).items()
    }
    if draw(st.booleans()):
        return dataclasses.replace(cut, replay=Replay(Epoch(8), None, {}, acks))
    inputs = {subtask: events(given) for subtask in (S0, S1) if (given := draw(words))}
    return dataclasses.replace(cut, up=(), replay=Replay(Epoch(8), BARRIER, inputs, acks))


@given(planned_cuts())
def test_what_recovers_from_a_seed_with_a_planned_epoch_is_what_recovers_in_place(cut: OperatorCut) -> None:
    records = list(seed(cut, Epoch(7), BARRIER))
    recovered = recover(facts(*records, committed=7, planned=8), OP)
    assert recovered.replay == cut.replay
    assert (recovered.coordinator_state, recovered.states) == (cut.coordinator_state, cut.states)
    assert recovered.mailboxes == {subtask: pack(batches) for subtask, batches in cut.down.items()}
    assert sent(recovered.undelivered) == sent(cut.up)
    assert list(seed(cut_of(recovered, OP), Epoch(7), BARRIER)) == records


@given(planned_cuts())
def test_when_a_power_cut_takes_the_planned_epoch_its_inputs_wait_again(cut: OperatorCut) -> None:
    assert cut.replay is not None
    lost = facts(*seed(cut, Epoch(7), BARRIER), run_started(7, 7), committed=7)
    recovered = recover(lost, OP)
    assert recovered.replay is None
    assert (recovered.coordinator_state, recovered.states) == (cut.coordinator_state, cut.states)
    waiting = in_sequence(cut.replay.inputs, cut.down)
    assert {subtask: names(batches) for subtask, batches in recovered.mailboxes.items()} == {
        subtask: names(batches) for subtask, batches in waiting.items()
    }
    assert sent(recovered.undelivered) == sent(cut.up)


@given(cuts(), st.integers(-1, 5))
def test_what_recovers_from_a_seed_is_the_cut(cut: OperatorCut, boundary: int) -> None:
    records = list(seed(cut, Epoch(boundary), BARRIER))
    recovered = recover(facts(*records, committed=boundary), OP)
    assert recovered.coordinator_state == cut.coordinator_state
    assert recovered.barrier == BARRIER
    assert recovered.states == cut.states
    assert recovered.mailboxes == {subtask: pack(batches) for subtask, batches in cut.down.items()}
    assert sent(recovered.undelivered) == sent(cut.up)
    assert recovered.replay is None
    # And it goes on being the cut: its own offline savepoint, and an epoch that was planned and never begun.
    again = cut_of(recovered, OP)
    assert list(seed(again, Epoch(boundary), BARRIER)) == records
    planned = recover(facts(*records, committed=boundary, planned=boundary + 1), OP)
    assert planned.replay is not None
    assert (planned.replay.inputs, planned.mailboxes) == ({}, recovered.mailboxes)


def sent(outboxes: tuple[Outbox, ...]) -> dict[SubtaskIndex, str]:
    """By subtask, in order: the order between subtasks means nothing."""
    return {
        subtask: names(batch for outbox in outboxes if outbox.subtask == subtask for batch in outbox.events)
        for subtask in {outbox.subtask for outbox in outboxes}
    }


def test_a_seed_survives_the_markers_of_restarts() -> None:
    cut = OperatorCut(OP, b"S", {S0: b"s"}, {S0: events("a")}, (Outbox(S0, 4, events("x")),))
    before = recover(facts(*seed(cut, Epoch(7), BARRIER), committed=7), OP)
    after = recover(facts(*seed(cut, Epoch(7), BARRIER), run_started(7, 7), run_started(7, 8), committed=7), OP)
    assert before == after
    assert before.undelivered == cut.up


def test_without_a_snapshot_there_is_no_barrier_to_go_back_to() -> None:
    cut = cut_of(RecoveredOperator({S0: b"s"}, None, NO_CHECKPOINT, (), {}, None), OP)
    recovered = recover(facts(*seed(cut, Epoch(2), BARRIER), committed=2), OP)
    assert (recovered.coordinator_state, recovered.barrier) == (None, NO_CHECKPOINT)
    assert recovered.states == {S0: b"s"}
