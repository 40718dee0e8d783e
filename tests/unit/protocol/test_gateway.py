"""The valve of one subtask, story by story (S1-S6 of the reference); every pair is in tests/machines."""

from __future__ import annotations

import pytest

from coord_control.errors import InvalidTransition
from coord_control.ids import BarrierId
from coord_control.protocol import gateway
from coord_control.protocol.gateway import Gateway
from coord_control.protocol.records import EventBatch
from tests.core_kit import event, events, names

FIRST, SECOND, THIRD = BarrierId(1), BarrierId(2), BarrierId(3)


def closed_for(*barriers: BarrierId) -> Gateway:
    valve = Gateway()
    for barrier in barriers:
        valve.mark(barrier)
        valve.close(barrier)
    return valve


def send(valve: Gateway, words: str, now: float = 0.0) -> None:
    for batch in events(words):
        valve.send(batch, now)


def two_closed() -> Gateway:
    """Close 1, send A, close 2, send B: the start of S2 to S5."""
    valve = closed_for(FIRST)
    send(valve, "A")
    valve.mark(SECOND)
    valve.close(SECOND)
    send(valve, "B")
    return valve


def test_an_event_passes_an_open_gateway() -> None:
    valve = Gateway()
    send(valve, "a")
    assert valve.is_open
    assert names(valve.mailbox) == "a"


def test_events_still_pass_while_the_coordinator_owes_its_state() -> None:
    valve = Gateway()
    valve.mark(FIRST)
    send(valve, "a")
    assert valve.is_open
    assert names(valve.mailbox) == "a"


def test_a_marked_gateway_closes() -> None:
    valve = Gateway()
    valve.mark(FIRST)
    assert valve.close(FIRST)
    assert valve.state(FIRST) is gateway.State.CLOSED
    assert not valve.is_open


@pytest.mark.parametrize("marked", [[], [BarrierId(100)]], ids=["nothing marked", "an older barrier marked"])
def test_closing_for_a_barrier_that_was_not_marked_is_refused(marked: list[BarrierId]) -> None:
    valve = Gateway()
    for barrier in marked:
        valve.mark(barrier)
    with pytest.raises(InvalidTransition, match=r"gateway: input CLOSE of barrier 123 .* state UNSEEN"):
        valve.close(BarrierId(123))
    assert valve.is_open


def test_a_closed_gateway_holds_events_back() -> None:
    valve = closed_for(FIRST)
    send(valve, "a b")
    assert valve.mailbox == []
    assert valve.blocked == 2


def test_opening_sends_held_events_in_order_behind_what_waits_already() -> None:
    valve = Gateway()
    send(valve, "a")
    valve.mark(FIRST)
    valve.close(FIRST)
    send(valve, "b c")
    assert valve.open(FIRST, 0.0)
    assert names(valve.mailbox) == "a b c"
    assert valve.is_open


def test_two_barriers_acknowledged_in_order_release_one_after_the_other() -> None:
    valve = two_closed()
    valve.open(FIRST, 0.0)
    assert names(valve.mailbox) == "A"
    valve.open(SECOND, 0.0)
    assert names(valve.mailbox) == "A B"


def test_the_newer_barrier_acknowledged_first_queues_its_events_behind_the_older_ones() -> None:
    valve = two_closed()
    valve.open(SECOND, 0.0)
    assert valve.mailbox == []
    send(valve, "C")
    assert valve.mailbox == []
    valve.open(FIRST, 0.0)
    assert names(valve.mailbox) == "A B C"


def test_aborting_the_older_barrier_releases_its_events_at_once() -> None:
    valve = two_closed()
    valve.open(FIRST, 0.0)
    assert names(valve.mailbox) == "A"
    assert valve.blocked == 1


def test_aborting_the_newer_barrier_merges_its_events_into_the_older_one() -> None:
    valve = two_closed()
    valve.open(SECOND, 0.0)
    assert valve.blocked == 2
    valve.open(FIRST, 0.0)
    assert names(valve.mailbox) == "A B"


def test_a_barrier_that_fails_while_only_marked_releases_nothing_of_the_older_one() -> None:
    valve = closed_for(FIRST)
    send(valve, "A")
    valve.mark(SECOND)
    valve.open(SECOND, 0.0)
    assert valve.mailbox == []
    assert valve.blocked == 1
    assert valve.state(SECOND) is gateway.State.OPENED


def test_events_pass_over_a_barrier_that_is_only_marked_to_the_closed_one_below() -> None:
    valve = closed_for(FIRST)
    valve.mark(SECOND)
    send(valve, "A")
    valve.close(SECOND)
    send(valve, "B")
    valve.mark(THIRD)
    valve.open(SECOND, 0.0)
    valve.open(FIRST, 0.0)
    assert names(valve.mailbox) == "A B"


def test_a_marked_barrier_below_is_no_place_to_hold_events() -> None:
    valve = Gateway()
    valve.mark(FIRST)
    valve.mark(SECOND)
    valve.close(SECOND)
    send(valve, "a")
    valve.open(SECOND, 0.0)
    assert names(valve.mailbox) == "a"


def test_late_news_about_an_opened_barrier_changes_nothing() -> None:
    valve = closed_for(FIRST)
    send(valve, "a")
    valve.open(FIRST, 0.0)
    assert not valve.open(FIRST, 0.0), "a duplicate ack"
    assert not valve.close(FIRST), "an answer after the abort"
    assert valve.is_open
    assert names(valve.mailbox) == "a"


def test_an_older_id_that_was_skipped_counts_as_opened() -> None:
    valve = Gateway()
    valve.mark(SECOND)
    assert valve.state(FIRST) is gateway.State.OPENED
    assert not valve.open(FIRST, 0.0)


def test_opening_a_barrier_that_was_never_marked_is_an_error() -> None:
    valve = closed_for(FIRST)
    with pytest.raises(InvalidTransition, match="input OPEN of barrier 2 is not allowed in state UNSEEN"):
        valve.open(SECOND, 0.0)
    assert valve.state(FIRST) is gateway.State.CLOSED


@pytest.mark.parametrize("again", [FIRST, SECOND])
def test_ids_that_do_not_grow_are_refused(again: BarrierId) -> None:
    valve = closed_for(SECOND)
    with pytest.raises(InvalidTransition, match=f"input MARK of barrier {again}"):
        valve.mark(again)


def test_the_mailbox_is_taken_once() -> None:
    valve = Gateway()
    send(valve, "a b")
    assert names(valve.take_mailbox()) == "a b"
    assert valve.take_mailbox() == ()


def test_unconsumed_inputs_return_to_the_front() -> None:
    valve = Gateway()
    send(valve, "a")
    frozen = valve.take_mailbox()
    send(valve, "b")
    valve.put_back(frozen)
    assert names(valve.mailbox) == "a b"


def test_blocked_events_are_counted_one_by_one_and_for_good() -> None:
    valve = closed_for(FIRST)
    send(valve, "a")
    valve.send(event("b,c")._replace(length=2), 0.0)
    assert (valve.blocked, valve.blocked_total) == (3, 3)
    valve.open(FIRST, 0.0)
    assert (valve.blocked, valve.blocked_total) == (0, 3)


def test_blocked_time_runs_from_the_first_held_event_to_the_last_release() -> None:
    valve = closed_for(FIRST, SECOND)
    send(valve, "a", now=10.0)
    send(valve, "b", now=11.0)
    valve.open(SECOND, now=13.0)
    assert valve.blocked_seconds == 0.0, "they wait behind the older barrier now"
    valve.open(FIRST, now=14.5)
    assert valve.blocked_seconds == 4.5


def test_blocked_time_can_be_read_while_events_wait() -> None:
    valve = closed_for(FIRST)
    assert valve.blocked_seconds_at(5.0) == 0.0
    send(valve, "a", now=10.0)
    assert valve.blocked_seconds_at(12.0) == 2.0
    valve.open(FIRST, now=13.0)
    assert valve.blocked_seconds_at(99.0) == 3.0


def test_a_gateway_that_was_closed_without_an_event_has_blocked_no_time() -> None:
    valve = closed_for(FIRST)
    valve.open(FIRST, now=9.0)
    assert valve.blocked_seconds == 0.0


def test_events_and_time_behind_a_checkpoint_are_counted_apart_from_those_behind_an_epoch() -> None:
    valve = closed_for(FIRST)
    send(valve, "a", now=10.0)
    valve.mark(SECOND, is_checkpoint=True)
    valve.close(SECOND)
    send(valve, "b", now=12.0)
    send(valve, "c", now=13.0)
    assert (valve.blocked_total, valve.checkpoint_blocked_total) == (3, 2)
    assert (valve.blocked_seconds_at(14.0), valve.checkpoint_blocked_seconds_at(14.0)) == (4.0, 2.0)
    valve.open(SECOND, now=15.0)
    assert valve.checkpoint_blocked_seconds_at(99.0) == 3.0, "they wait behind the older epoch now"
    send(valve, "d", now=16.0)
    valve.open(FIRST, now=17.0)
    assert (valve.blocked_total, valve.checkpoint_blocked_total) == (4, 2)
    assert (valve.blocked_seconds, valve.checkpoint_blocked_seconds) == (7.0, 3.0)


def test_the_time_behind_a_checkpoint_begins_when_a_newer_epoch_hands_its_events_on() -> None:
    valve = Gateway()
    valve.mark(FIRST, is_checkpoint=True)
    valve.close(FIRST)
    valve.mark(SECOND)
    valve.close(SECOND)
    send(valve, "a", now=1.0)
    assert valve.checkpoint_blocked_seconds_at(5.0) == 0.0
    valve.open(SECOND, now=5.0)
    valve.open(FIRST, now=7.0)
    assert (valve.checkpoint_blocked_total, valve.checkpoint_blocked_seconds) == (0, 2.0)
    assert valve.blocked_seconds == 6.0


def test_what_an_epoch_takes_makes_room_in_the_channel_and_what_returns_takes_it_again() -> None:
    gateway = Gateway()
    gateway.send(event("abc"), 0.0)
    gateway.send(event("de"), 0.0)
    assert gateway.waiting_bytes == 5
    taken = gateway.take_mailbox()
    assert gateway.waiting_bytes == 0
    gateway.put_back(taken)
    assert gateway.waiting_bytes == 5


def test_what_is_held_is_named_over_all_barriers_in_the_order_in_which_it_was_sent() -> None:
    valve = two_closed()
    send(valve, "C")
    assert names(valve.held()) == "A B C"
    assert (valve.held_by(FIRST), valve.held_by(SECOND)) == (1, 2)
    assert valve.mailbox == []


def test_nothing_is_held_by_a_barrier_that_is_marked_opened_or_unknown() -> None:
    valve = closed_for(FIRST)
    valve.mark(SECOND)
    send(valve, "a")
    assert (valve.held_by(SECOND), valve.held_by(THIRD)) == (0, 0)
    valve.open(FIRST, 0.0)
    assert (valve.held(), valve.held_by(FIRST)) == ((), 0)


def test_joined_events_that_are_held_are_counted_one_by_one() -> None:
    valve = closed_for(FIRST)
    valve.send(EventBatch(0, 3, b"a,b,c"), 0.0)
    assert valve.held_by(FIRST) == 3
