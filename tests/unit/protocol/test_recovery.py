"""Recovery: facts in, a decision out. One test per sentence of protocol section 6."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord_control.ids import NO_CHECKPOINT, NO_EPOCH, BarrierId, Epoch, Generation, OperatorUid, SubtaskIndex
from coord_control.protocol.records import Begin, Record
from coord_control.protocol.recovery import (
    Facts,
    History,
    Inputs,
    Outbox,
    Replay,
    in_sequence,
    recover,
    recovery_marker,
    rerun_marker,
)
from tests.core_kit import OP, ack, begin, events, run_started

S0, S1 = SubtaskIndex(0), SubtaskIndex(1)
OTHER = OperatorUid("other")


def facts(*records: Record, committed: int, planned: int | None = None) -> Facts:
    return Facts(records, Epoch(committed), Epoch(committed if planned is None else planned))


# The first start.


def test_without_any_fact_everything_starts_empty() -> None:
    recovered = recover(facts(committed=NO_EPOCH), OP)
    assert recovered.states == {}
    assert recovered.coordinator_state is None
    assert recovered.barrier == NO_CHECKPOINT
    assert (recovered.undelivered, recovered.mailboxes, recovered.replay) == ((), {}, None)


def test_a_first_epoch_without_a_begin_record_is_run_again_with_empty_inputs() -> None:
    recovered = recover(facts(committed=-1, planned=0), OP)
    assert recovered.replay == Replay(Epoch(0), None, {})
    assert recovered.coordinator_state is None


# Subtasks.


def test_a_subtask_has_the_state_of_its_newest_committed_ack() -> None:
    recovered = recover(facts(ack(0, state=b"old"), ack(1, state=b"new"), ack(2, state=b"ahead"), committed=1), OP)
    assert recovered.states == {S0: b"new"}


def test_the_last_of_two_acks_of_one_epoch_counts() -> None:
    recovered = recover(facts(ack(0, state=b"first"), ack(0, state=b"second", task=1), committed=0), OP)
    assert recovered.states == {S0: b"second"}


def test_a_subtask_that_only_acknowledged_an_uncommitted_epoch_has_no_state() -> None:
    assert recover(facts(begin(0), ack(0), committed=-1, planned=0), OP).states == {}


def test_a_subtask_that_acknowledged_its_default_state_keeps_it() -> None:
    assert recover(facts(ack(0, state=None), committed=0), OP).states == {S0: None}


def test_records_of_other_operators_do_not_count() -> None:
    records: list[Record] = [
        begin(1, b"theirs", {0: "x"}, operator=OTHER),
        ack(0, state=b"theirs", outbox="x", operator=OTHER),
        begin(0, b"ours"),
        ack(0, state=b"ours"),
    ]
    recovered = recover(facts(*records, committed=0, planned=1), OP)
    assert recovered.states == {S0: b"ours"}
    assert recovered.coordinator_state == b"ours"
    assert recovered.undelivered == ()
    assert recovered.replay == Replay(Epoch(1), None, {})


# The coordinator.


def test_with_a_begin_record_of_the_planned_epoch_it_is_run_again_from_there() -> None:
    records: list[Record] = [
        begin(0, b"S0"),
        ack(0, outbox="x"),
        begin(1, b"S1", {0: "a", 1: "b"}),
    ]
    recovered = recover(facts(*records, committed=0, planned=1), OP)
    assert recovered.coordinator_state == b"S1"
    assert recovered.barrier == 101
    assert recovered.replay == Replay(Epoch(1), BarrierId(101), {S0: events("a"), S1: events("b")})
    assert recovered.undelivered == (), "S1 has seen x"
    assert recovered.mailboxes == {}


def test_without_one_the_newest_older_snapshot_counts_and_the_outboxes_since_are_delivered_again() -> None:
    records: list[Record] = [
        begin(0, b"S0"),
        ack(0, outbox="old"),
        begin(1, b"S1"),
        ack(1, 1, outbox="y", task=5),
        ack(1, 0, outbox="x", task=4),
        ack(2, 1, outbox="z", task=6),
    ]
    recovered = recover(facts(*records, committed=2), OP)
    assert recovered.coordinator_state == b"S1"
    assert recovered.undelivered == (Outbox(S0, 4, events("x")), Outbox(S1, 5, events("y")), Outbox(S1, 6, events("z")))
    assert recovered.replay is None


def test_outboxes_that_spark_has_not_committed_are_not_delivered() -> None:
    assert recover(facts(begin(0), ack(0, outbox="x"), committed=-1, planned=0), OP).undelivered == ()


def test_without_any_snapshot_all_committed_outboxes_are_delivered() -> None:
    recovered = recover(facts(ack(0, outbox="x"), ack(1, outbox="y"), committed=1), OP)
    assert recovered.coordinator_state is None
    assert [outbox.events for outbox in recovered.undelivered] == [events("x"), events("y")]


def test_inputs_of_subtasks_that_did_not_run_return_to_their_mailboxes() -> None:
    recovered = recover(facts(begin(0, b"S", {0: "a", 1: "b"}), ack(0, 0), committed=0), OP)
    assert recovered.mailboxes == {S1: events("b")}


def test_an_ack_of_a_later_epoch_does_not_consume_the_inputs_of_the_snapshot() -> None:
    """The inputs were returned and would have been frozen again, and recorded, by the next epoch."""
    recovered = recover(facts(begin(0, b"S", {0: "a"}), ack(1, 0), committed=1), OP)
    assert recovered.mailboxes == {S0: events("a")}


def test_a_planned_epoch_without_a_begin_record_is_run_again_with_empty_inputs() -> None:
    recovered = recover(facts(begin(0, b"S", {0: "a"}), committed=0, planned=1), OP)
    assert recovered.replay == Replay(Epoch(1), None, {})
    assert recovered.mailboxes == {S0: events("a")}, "they wait for the epoch after"
    assert recovered.coordinator_state == b"S"


def test_a_begin_record_of_an_epoch_that_spark_has_not_planned_does_not_count() -> None:
    recovered = recover(facts(begin(0, b"S0"), begin(1, b"S1", {0: "a"}), committed=0, planned=0), OP)
    assert recovered.coordinator_state == b"S0"
    assert (recovered.replay, recovered.mailboxes) == (None, {})


def test_a_begin_record_of_the_first_planned_epoch_is_enough() -> None:
    recovered = recover(facts(begin(0, b"S0", {1: "a"}), committed=-1, planned=0), OP)
    assert recovered.coordinator_state == b"S0"
    assert recovered.replay == Replay(Epoch(0), BarrierId(100), {S1: events("a")})


# What a restart voids.


def test_nothing_to_void_needs_no_marker() -> None:
    assert recovery_marker(facts(begin(0), ack(0), committed=0), Generation(2)) is None
    assert recovery_marker(facts(begin(0), committed=-1, planned=0), Generation(2)) is None


def test_an_ack_of_the_planned_epoch_is_voided_when_spark_runs_it_again_and_not_before() -> None:
    """Spark may commit it without running it: its sink may have it already."""
    before = facts(begin(0), ack(0), committed=-1, planned=0)
    assert recovery_marker(before, Generation(2)) is None
    assert rerun_marker(before, Generation(2)) == run_started(-1, 0)


def test_an_ack_of_an_epoch_that_spark_has_not_planned_is_voided() -> None:
    assert recovery_marker(facts(ack(1), committed=0, planned=0), Generation(2)) == run_started(0, 0)


def test_a_planned_epoch_without_acks_needs_no_marker_when_it_is_run_again() -> None:
    assert rerun_marker(facts(begin(0), committed=-1, planned=0), Generation(2)) is None


@pytest.mark.parametrize("is_recorded", [True, False])
def test_acks_of_the_planned_epoch_are_kept_with_it(is_recorded: bool) -> None:
    last = ack(1, state=b"last", outbox="x", task=8)
    records: list[Record] = [begin(0), ack(0, state=b"s0"), ack(1, state=b"first"), last]
    if is_recorded:
        records.insert(2, begin(1))
    recovered = recover(facts(*records, committed=0, planned=1), OP)
    assert recovered.states == {S0: b"s0"}
    assert recovered.undelivered == ()
    assert recovered.replay is not None
    assert recovered.replay.acks == {S0: last}


def test_a_voided_ack_is_not_kept_with_its_epoch() -> None:
    recovered = recover(facts(begin(0), ack(0), run_started(-1, 0), committed=-1, planned=0), OP)
    assert recovered.replay == Replay(Epoch(0), BarrierId(100), {})


def test_a_begin_record_that_spark_did_not_plan_is_voided() -> None:
    assert recovery_marker(facts(begin(1), committed=0, planned=0), Generation(3)) == run_started(0, 0, generation=3)


def test_what_was_voided_before_needs_no_second_marker() -> None:
    assert recovery_marker(facts(begin(0), ack(0), run_started(-1, 0), committed=-1, planned=0), Generation(3)) is None


def test_a_voided_ack_does_not_shadow_a_later_one_that_had_nothing_to_write() -> None:
    """Epoch 1 ran twice: the first run changed the state, the second did not and wrote nothing."""
    records: list[Record] = [
        begin(0),
        ack(0, state=b"s0"),
        begin(1),
        ack(1, state=b"lost", outbox="lost"),
        run_started(0, 1),
    ]
    recovered = recover(facts(*records, committed=1), OP)
    assert recovered.states == {S0: b"s0"}
    assert recovered.undelivered == ()


def test_an_ack_after_the_marker_counts() -> None:
    records: list[Record] = [begin(0), ack(0, state=b"lost"), run_started(-1, 0), ack(0, state=b"kept", task=9)]
    assert recover(facts(*records, committed=0), OP).states == {S0: b"kept"}


def test_a_voided_begin_does_not_come_back_when_its_epoch_is_planned_later() -> None:
    records: list[Record] = [begin(0, b"S0"), begin(1, b"void", {0: "a"}), run_started(0, 0)]
    recovered = recover(facts(*records, committed=0, planned=1), OP)
    assert recovered.coordinator_state == b"S0"
    assert recovered.replay == Replay(Epoch(1), None, {})


def test_a_restart_keeps_the_begin_record_of_the_epoch_that_is_run_again() -> None:
    recovered = recover(facts(begin(0, b"S0", {0: "a"}), run_started(-1, 0), committed=-1, planned=0), OP)
    assert recovered.replay == Replay(Epoch(0), BarrierId(100), {S0: events("a")})


records_strategy = st.lists(
    st.one_of(
        st.builds(begin, st.integers(0, 4), st.sampled_from([b"S", b"T"])),
        st.builds(ack, st.integers(0, 4), st.integers(0, 1), st.sampled_from([b"s", None])),
        st.integers(-1, 3).flatmap(lambda k: st.builds(run_started, st.just(k), st.integers(k, k + 1))),
    ),
    max_size=12,
)


@given(records_strategy, st.integers(-1, 4), st.booleans())
def test_recovering_twice_in_a_row_decides_the_same(records: list[Record], committed: int, planned: bool) -> None:
    """A driver that dies right after its own recovery leaves nothing that the next recovery would see differently."""
    found = facts(*records, committed=committed, planned=committed + planned)
    marker = recovery_marker(found, Generation(2))
    before = found if marker is None else facts(*records, marker, committed=committed, planned=committed + planned)
    after = facts(*before.records, run_started(committed, committed), committed=committed)
    assert recovery_marker(before, Generation(3)) is None
    assert rerun_marker(after, Generation(3)) is None
    if not planned:
        assert all(recover(before, operator) == recover(after, operator) for operator in (OP, OTHER))


@given(records_strategy, st.integers(-1, 4))
def test_a_history_holds_one_record_per_key(records: list[Record], committed: int) -> None:
    history = History.of(records)
    for operator, begins in history.begins.items():
        for epoch, record in begins.items():
            assert (record.operator, record.epoch) == (operator, epoch)
            last = [r for r in records if isinstance(r, Begin) and r.epoch == epoch][-1]
            assert record is last


@pytest.mark.parametrize(("committed", "planned", "expected"), [(1, 1, False), (0, 1, True), (0, 0, True)])
def test_what_a_restart_would_leave_behind(committed: int, planned: int, expected: bool) -> None:
    history = History.of([begin(1), ack(1)])
    assert history.is_void_after(Epoch(committed), Epoch(planned)) is expected


def test_what_is_not_planned_any_more_is_voided_without_the_acks_of_the_planned_epoch() -> None:
    before = facts(begin(0), ack(0), begin(1), committed=-1, planned=0)
    marker = recovery_marker(before, Generation(2))
    assert marker == run_started(0, 0)
    after = facts(begin(0), ack(0), begin(1), run_started(0, 0), committed=-1, planned=0)
    replay = recover(after, OP).replay
    assert replay is not None
    assert list(replay.acks) == [0]


# What a checkpoint held back when an epoch began.


def held_back(epoch: int, inputs: dict[int, str], held: dict[int, str]) -> Begin:
    kept = {SubtaskIndex(subtask): events(words) for subtask, words in held.items()}
    return dataclasses.replace(begin(epoch, b"S", inputs), held=kept)


def test_what_was_held_back_waits_behind_the_inputs_that_are_run_again() -> None:
    recovered = recover(facts(held_back(0, {0: "a"}, {0: "b", 1: "c"}), committed=-1, planned=0), OP)
    assert recovered.replay == Replay(Epoch(0), BarrierId(100), {S0: events("a")})
    assert recovered.mailboxes == {S0: events("b"), S1: events("c")}


def test_what_was_held_back_waits_behind_the_inputs_of_subtasks_that_did_not_run() -> None:
    record = held_back(0, {0: "a", 1: "b"}, {0: "c", 1: "d"})
    recovered = recover(facts(record, ack(0, 0), committed=0), OP)
    assert recovered.mailboxes == {S0: events("c"), S1: events("b d")}


def test_what_was_held_back_does_not_come_again_after_a_later_begin() -> None:
    record = held_back(0, {}, {0: "a"})
    recovered = recover(facts(record, begin(1, b"S1", {0: "a"}), ack(1, 0), committed=1), OP)
    assert recovered.mailboxes == {}


words = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(" ".join)
inputs_strategy = st.dictionaries(st.sampled_from([S0, S1]), words.map(events))


@given(inputs_strategy, inputs_strategy)
def test_in_sequence_keeps_every_event_of_both_the_earlier_first(earlier: Inputs, later: Inputs) -> None:
    both = in_sequence(earlier, later)
    assert both.keys() == earlier.keys() | later.keys()
    for subtask, batches in both.items():
        assert batches == earlier.get(subtask, ()) + later.get(subtask, ())
