"""The envelope around a coordinator's state, and the feed of events from outside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord_control.errors import DamagedRecord, UnsupportedFormat
from coord_control.protocol.control_events import MAX_REFUSALS, EventFeed, Seal, Sealed, unseal

MAGIC = b"\0coord_control:"
STATES = st.one_of(st.binary(max_size=40), st.binary(max_size=20).map(lambda data: MAGIC + data))


@given(STATES)
def test_a_state_without_events_from_outside_comes_back(data: bytes) -> None:
    assert unseal("op", Seal("job").seal(data)) == Sealed(data)


def test_a_state_without_events_from_outside_is_written_as_it_is() -> None:
    assert Seal("job").seal(b'{"a": 1}\n') == b'{"a": 1}\n'
    assert unseal("op", None) == Sealed(None)


@given(STATES, st.dictionaries(st.sampled_from(["job", "a-1", "x_y.z"]), st.integers(1, 10**12), min_size=1))
def test_numbers_come_back_with_the_state(data: bytes, numbers: dict[str, int]) -> None:
    assert unseal("op", Seal("job", numbers).seal(data)) == Sealed(data, numbers)


def test_a_fork_begins_at_0_and_still_knows_what_it_was_forked_from() -> None:
    original = Seal("job")
    original.mark(3)
    fork = Seal("fork", unseal("op", original.seal(b"S")).numbers)
    assert fork.number == 0
    fork.mark(1)
    assert unseal("op", fork.seal(b"T")) == Sealed(b"T", {"job": 3, "fork": 1})
    assert Seal("job", unseal("op", fork.seal(b"T")).numbers).number == 3


def test_a_mark_counts_for_the_states_after_it() -> None:
    seal = Seal("job", {"job": 1})
    before = seal.seal(b"S")
    seal.mark(2)
    assert unseal("op", before).numbers == {"job": 1}
    assert unseal("op", seal.seal(b"S")).numbers == {"job": 2}


@pytest.mark.parametrize("state", [b"1:job=3", b"x:job=3\nS", b"1:job\nS", b"1:job=x\nS", b"1:j\xff=1\nS"])
def test_a_damaged_envelope_is_refused(state: bytes) -> None:
    with pytest.raises(DamagedRecord, match="operator 'op'"):
        unseal("op", MAGIC + state)


def test_an_envelope_of_a_newer_release_is_refused() -> None:
    with pytest.raises(UnsupportedFormat):
        unseal("op", MAGIC + b"3:job=1\nS")


@given(STATES, st.sets(st.integers(1, 50), min_size=1))
def test_what_was_refused_is_recorded_with_the_number_until_it_is_forgotten(data: bytes, refused: set[int]) -> None:
    seal = Seal("job", {"job": 1, "fork": 9}, {"fork": (4,)})
    seal.mark(50, sorted(refused))
    assert seal.refused == tuple(sorted(refused))
    sealed = unseal("op", seal.seal(data))
    assert sealed == Sealed(data, {"job": 50, "fork": 9}, {"job": tuple(sorted(refused)), "fork": (4,)})
    later = Seal("job", sealed.numbers, sealed.refused)
    later.mark(51)
    assert unseal("op", later.seal(data)) == Sealed(data, {"job": 51, "fork": 9}, {"fork": (4,)})


def test_a_state_without_refusals_is_written_as_before_there_were_any() -> None:
    seal = Seal("job")
    seal.mark(7, [3, 7])
    assert seal.seal(b"S") == MAGIC + b"2:job=7!3!7\nS"
    seal.mark(8)
    assert seal.seal(b"S") == MAGIC + b"1:job=8\nS"


def feed(*numbers: int, applied: int = 0, limit: int = 100) -> EventFeed[str]:
    feed: EventFeed[str] = EventFeed(limit)
    feed.recovered(applied)
    for number in numbers:
        assert feed.accept(number, f"e{number}", 10)
    return feed


def taken(feed: EventFeed[str]) -> list[int]:
    numbers = []
    while (event := feed.take()) is not None:
        assert event.event == f"e{event.number}"
        numbers.append(event.number)
    return numbers


def test_nothing_is_accepted_before_it_is_known_how_far_the_coordinator_is() -> None:
    unopened: EventFeed[str] = EventFeed(100)
    assert not unopened.accept(1, "e1")
    assert unopened.applied is None


def test_events_are_taken_once_and_in_order_with_gaps() -> None:
    one = feed(1, 2, 5)
    assert taken(one) == [1, 2, 5]
    assert one.applied == 5
    assert not any(one.accept(number, f"e{number}") for number in (2, 4, 5))
    assert one.accept(6, "e6")
    assert taken(one) == [6]


def test_a_recovery_gives_again_what_is_above_its_number() -> None:
    one = feed(1, 2, 3, 4, 5)
    assert [event.number for event in (one.take(), one.take(), one.take()) if event] == [1, 2, 3]
    one.recovered(1)
    assert (one.applied, one.waiting) == (1, 4)
    assert not one.accept(3, "e3")
    assert taken(one) == [2, 3, 4, 5]
    one.recovered(1)
    assert taken(one) == [2, 3, 4, 5]


def test_what_is_durable_is_forgotten_and_may_be_given_again_by_its_owner() -> None:
    one = feed(1, 2, 3)
    assert taken(one) == [1, 2, 3]
    assert one.recorded(2)
    assert not one.recorded(2)
    assert one.durable == 2
    one.recovered(0)  # further back than anything that was durable: a storage that has forgotten
    assert taken(one) == [3]


def test_a_refused_event_keeps_its_number_and_does_not_come_again() -> None:
    one = feed(1, 2, 3)
    assert taken(one) == [1, 2, 3]
    one.refuse(2)
    one.recovered(0)
    assert not one.accept(2, "e2")
    assert taken(one) == [1, 3]


def test_a_refusal_is_known_until_its_outcome_is_durable_whatever_the_coordinator_goes_back_to() -> None:
    one = feed(1, 2, 3)
    assert taken(one) == [1, 2, 3]
    one.refuse(2)
    one.recovered(0, [9])  # what was recorded
    known = [one.refused]
    one.forget([2])
    one.recovered(0)
    assert [*known, one.refused] == [(2, 9), (9,)]


def test_a_refused_event_of_an_earlier_driver_is_not_taken_again() -> None:
    one = feed()
    one.recovered(2, [3])
    assert not one.accept(3, "e3")
    assert one.accept(4, "e4")


def test_no_event_is_applied_while_the_outcomes_of_too_many_refusals_are_not_durable() -> None:
    one = feed(*range(1, MAX_REFUSALS + 2), limit=1 << 30)
    for number in range(1, MAX_REFUSALS + 1):
        assert one.take() is not None
        one.refuse(number)
    assert (one.take(), one.waiting) == (None, 1)
    one.forget([1])
    assert taken(one) == [MAX_REFUSALS + 1]


def test_only_so_much_is_on_its_way_at_once() -> None:
    one = feed(1, 2, 3, 4, limit=25)
    assert taken(one) == [1, 2]
    one.recorded(1)
    assert taken(one) == [3]
    one.refuse(3)
    assert taken(one) == [4]


def test_an_event_that_is_larger_than_the_limit_goes_alone() -> None:
    assert taken(feed(1, 2, limit=5)) == [1]
