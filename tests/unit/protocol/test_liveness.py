"""Dropping records must change no recovery: proved against the real recovery function."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coord_control.ids import NO_EPOCH, BarrierId, Epoch, Generation, OperatorUid, SubtaskIndex
from coord_control.protocol.liveness import complete_from, horizon, live
from coord_control.protocol.records import Ack, Begin, EventBatch, Record, RunStarted
from coord_control.protocol.recovery import Facts, recover

OPERATORS = (OperatorUid("a"), OperatorUid("b"))
EVENT = (EventBatch(0, 1, b"{}"),)


def begin(epoch: int, operator: str = "a", *, inputs: tuple[int, ...] = (), note: str = "") -> Begin:
    state = f"S{epoch}{note}".encode()
    frozen = {SubtaskIndex(subtask): EVENT for subtask in inputs}
    return Begin(OperatorUid(operator), Epoch(epoch), BarrierId(epoch + 1), state, frozen)


def ack(epoch: int, subtask: int = 0, operator: str = "a", *, sent: bool = False, note: str = "") -> Ack:
    state = f"s{epoch}{note}".encode()
    return Ack(OperatorUid(operator), SubtaskIndex(subtask), Epoch(epoch), 7, state, EVENT if sent else ())


def started(committed: int, planned: int | None = None) -> RunStarted:
    return RunStarted(Generation(1), Epoch(committed), Epoch(committed if planned is None else planned))


def recovered(records: list[Record], committed: int, planned: int) -> list[object]:
    facts = Facts(tuple(records), Epoch(committed), Epoch(planned))
    return [recover(facts, operator) for operator in OPERATORS]


class TestAboveTheHorizon:
    def test_everything_stays_in_order(self) -> None:
        records: list[Record] = [begin(0), ack(0, 1), ack(0, 0), begin(1), ack(1)]
        assert live(records, Epoch(5), 5) == records

    def test_nothing_was_committed_yet(self) -> None:
        assert live([begin(0), ack(0)], NO_EPOCH, 0) == [begin(0), ack(0)]

    def test_the_last_of_a_key_counts(self) -> None:
        records: list[Record] = [ack(1, note="old"), begin(1, note="old"), ack(1, 1), begin(1), ack(1)]
        assert live(records, NO_EPOCH, 1) == [ack(1, 1), begin(1), ack(1)]


class TestVoid:
    def test_a_run_voids_the_acks_after_its_commit_and_is_not_live_itself(self) -> None:
        assert live([ack(3), ack(4), started(3), ack(5)], NO_EPOCH, 1) == [ack(3), ack(5)]

    def test_a_run_voids_only_begins_that_spark_has_not_planned(self) -> None:
        assert live([begin(4), begin(5), started(3, 4)], NO_EPOCH, 1) == [begin(4)]

    def test_the_earliest_of_several_later_runs_decides(self) -> None:
        assert live([ack(3), started(2), ack(4), started(6)], NO_EPOCH, 1) == [ack(4)]

    def test_a_void_ack_replaces_nothing(self) -> None:
        assert live([ack(2), ack(3, note="void"), started(2), ack(3)], NO_EPOCH, 1) == [ack(2), ack(3)]


class TestBelowTheHorizon:
    """committed 10, retain 3: everything from epoch 7 on stays."""

    def live(self, *records: Record) -> list[Record]:
        return live(records, Epoch(10), 3)

    def test_the_newest_begin_stays(self) -> None:
        assert self.live(begin(2), begin(5), begin(8)) == [begin(5), begin(8)]

    def test_per_subtask_the_newest_state_stays(self) -> None:
        assert self.live(begin(6), ack(1), ack(1, 1), ack(4)) == [begin(6), ack(1, 1), ack(4)]

    def test_events_that_the_newest_begin_does_not_know_stay(self) -> None:
        records: list[Record] = [begin(3), ack(4, sent=True), ack(5, sent=True), ack(6)]
        assert self.live(*records) == records

    def test_events_that_it_knows_go(self) -> None:
        assert self.live(ack(2, sent=True), begin(3), ack(6)) == [begin(3), ack(6)]

    def test_acks_of_its_own_epoch_stay_because_they_tell_who_consumed_its_inputs(self) -> None:
        records: list[Record] = [begin(3, inputs=(0, 1)), ack(3), ack(5)]
        assert self.live(*records) == records

    def test_states_do_not_pile_up_below_a_coordinator_that_never_changes(self) -> None:
        acks: list[Record] = [ack(epoch) for epoch in range(11)]
        assert self.live(begin(0), *acks) == [begin(0), ack(0), ack(6), *acks[7:]]

    def test_without_any_begin_there_all_events_stay(self) -> None:
        records: list[Record] = [ack(2, sent=True), ack(4, sent=True), ack(5), begin(9)]
        assert self.live(*records) == records

    def test_operators_do_not_touch_each_other(self) -> None:
        records: list[Record] = [begin(5), begin(3, "b"), ack(4, operator="b", sent=True), ack(5, operator="b")]
        assert self.live(*records) == records


@pytest.mark.parametrize(
    ("committed", "retain", "first"), [(-1, 100, -1), (100, 100, -1), (101, 100, 0), (500, 100, 399)]
)
def test_complete_from(committed: int, retain: int, first: int) -> None:
    assert complete_from(horizon(Epoch(committed), retain)) == first


EPOCHS = st.integers(0, 7)
RECORDS = st.one_of(
    st.builds(
        lambda epoch, operator, inputs, note: begin(epoch, operator, inputs=tuple(inputs), note=note),
        EPOCHS,
        st.sampled_from(OPERATORS),
        st.lists(st.integers(0, 1), unique=True),
        st.sampled_from("xyz"),
    ),
    st.builds(
        lambda epoch, subtask, operator, sent, note: ack(epoch, subtask, operator, sent=sent, note=note),
        EPOCHS,
        st.integers(0, 1),
        st.sampled_from(OPERATORS),
        st.booleans(),
        st.sampled_from("xyz"),
    ),
)


@st.composite
def logs(draw: st.DrawFn, earliest_run: int) -> list[Record]:
    """Any records in any order; runs begin from ``earliest_run`` or later (Spark cannot be set back farther)."""
    run = st.builds(
        lambda committed, more: started(committed, committed + more), st.integers(earliest_run, 8), st.integers(0, 1)
    )
    return draw(st.lists(st.one_of(RECORDS, RECORDS, RECORDS, run), max_size=25))


@settings(max_examples=400, deadline=None)
@given(st.data(), st.integers(-1, 8), st.integers(0, 4))
def test_every_recovery_from_what_is_live_is_the_same_as_from_everything(
    data: st.DataObject, committed: int, retain: int
) -> None:
    earliest = committed - retain - 1
    records = data.draw(logs(max(earliest, -1)))
    kept = live(records, Epoch(committed), retain)
    for k in range(max(earliest, -1), 9):
        for planned in (k, k + 1):
            assert recovered(kept, k, planned) == recovered(records, k, planned)


@settings(max_examples=400, deadline=None)
@given(st.data(), st.lists(st.integers(-1, 8), min_size=2, max_size=2), st.integers(0, 4))
def test_dropping_early_changes_nothing_later(data: st.DataObject, commits: list[int], retain: int) -> None:
    first, second = (Epoch(committed) for committed in sorted(commits))
    before = data.draw(logs(-1))
    # A run that begins there writes no records of epochs before the horizon.
    drawn = data.draw(logs(max(first - retain - 1, -1)))
    after = [record for record in drawn if not isinstance(record, Begin | Ack) or record.epoch >= first - retain]
    assert live(live(before, first, retain) + after, second, retain) == live(before + after, second, retain)


def test_exhaustively_for_one_subtask_and_three_epochs() -> None:
    """Every set of records of epochs 0..2 (begin or not; no ack, ack, ack with events), at every horizon."""
    choices = [
        [(b, a) for b in (None, begin(epoch, inputs=(0,))) for a in (None, ack(epoch), ack(epoch, sent=True))]
        for epoch in range(3)
    ]
    for picked in itertools.product(*choices):
        records: list[Record] = [record for pair in picked for record in pair if record is not None]
        for first_kept in range(4):
            kept = live(records, Epoch(first_kept), 0)
            for k in range(first_kept - 1, 4):
                for planned in (k, k + 1):
                    assert recovered(kept, k, planned) == recovered(records, k, planned), (records, first_kept, k)
