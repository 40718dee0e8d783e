"""One coordinator, its gateways, one triggering phase at a time."""

from __future__ import annotations

import pytest

from coord_control.errors import InvalidTransition, NoSuchSubtask
from coord_control.ids import BarrierId, OperatorUid, SubtaskIndex
from coord_control.protocol import gateway
from coord_control.protocol.channel import OperatorChannel
from tests.core_kit import event, events, names

FIRST, SECOND, THIRD = BarrierId(1), BarrierId(2), BarrierId(3)
S0, S1 = SubtaskIndex(0), SubtaskIndex(1)


@pytest.fixture
def channel() -> OperatorChannel:
    return OperatorChannel(OperatorUid("op"), 2, incarnation=1)


def send(channel: OperatorChannel, subtask: SubtaskIndex, words: str) -> None:
    for batch in events(words):
        channel.send(subtask, batch, 0.0)


def mailbox(channel: OperatorChannel, subtask: SubtaskIndex) -> str:
    return names(channel.gateways[subtask].mailbox)


def states(channel: OperatorChannel, barrier: BarrierId) -> list[gateway.State]:
    return [valve.state(barrier) for valve in channel.gateways]


def complete(channel: OperatorChannel, barrier: BarrierId) -> None:
    assert channel.trigger(barrier, 0.0) == barrier
    assert channel.answered(barrier, 0.0)


def test_a_trigger_marks_all_gateways_and_asks(channel: OperatorChannel) -> None:
    assert channel.trigger(FIRST, 0.0) == FIRST
    assert states(channel, FIRST) == [gateway.State.MARKED] * 2


def test_before_the_answer_events_pass_and_after_it_they_wait(channel: OperatorChannel) -> None:
    channel.trigger(FIRST, 0.0)
    send(channel, S0, "a")
    channel.answered(FIRST, 0.0)
    send(channel, S0, "b")
    assert mailbox(channel, S0) == "a"
    assert channel.gateways[S0].blocked == 1


def test_each_subtask_opens_in_its_own_time(channel: OperatorChannel) -> None:
    complete(channel, FIRST)
    send(channel, S0, "a")
    send(channel, S1, "b")
    channel.gateways[S1].open(FIRST, 0.0)
    assert (mailbox(channel, S0), mailbox(channel, S1)) == ("", "b")
    channel.gateways[S0].open(FIRST, 0.0)
    assert (mailbox(channel, S0), mailbox(channel, S1)) == ("a", "b")


@pytest.mark.parametrize("subtask", [-1, 2])
def test_an_event_to_a_subtask_that_does_not_exist_is_refused(channel: OperatorChannel, subtask: int) -> None:
    with pytest.raises(NoSuchSubtask, match=f"there is no subtask {subtask}"):
        channel.send(SubtaskIndex(subtask), event("a"), 0.0)


def test_one_triggering_phase_runs_at_a_time(channel: OperatorChannel) -> None:
    assert channel.trigger(FIRST, 0.0) == FIRST
    assert channel.trigger(SECOND, 0.0) is None
    assert channel.next_phase(0.0) is None, "the first answer is still owed"
    assert channel.answered(FIRST, 0.0)
    assert channel.next_phase(0.0) == SECOND
    assert states(channel, SECOND) == [gateway.State.MARKED] * 2
    assert channel.answered(SECOND, 0.0)
    assert channel.next_phase(0.0) is None


def test_only_the_asked_barrier_can_be_answered(channel: OperatorChannel) -> None:
    channel.trigger(FIRST, 0.0)
    channel.trigger(SECOND, 0.0)
    assert not channel.answered(SECOND, 0.0)
    assert states(channel, SECOND) == [gateway.State.MARKED] * 2


def test_an_answer_counts_once(channel: OperatorChannel) -> None:
    complete(channel, FIRST)
    assert not channel.answered(FIRST, 0.0)


def test_an_id_that_does_not_grow_is_refused_and_changes_nothing(channel: OperatorChannel) -> None:
    channel.trigger(SECOND, 0.0)
    for barrier in (FIRST, SECOND):
        with pytest.raises(InvalidTransition):
            channel.trigger(barrier, 0.0)
    channel.answered(SECOND, 0.0)
    assert channel.next_phase(0.0) is None, "a refused barrier does not wait for its turn"


def test_an_aborted_barrier_is_not_closed_by_its_late_answer(channel: OperatorChannel) -> None:
    channel.trigger(FIRST, 0.0)
    channel.abort(FIRST, 0.0)
    assert not channel.answered(FIRST, 0.0)
    send(channel, S0, "a")
    assert mailbox(channel, S0) == "a"


def test_an_abort_lets_the_next_phase_begin(channel: OperatorChannel) -> None:
    channel.trigger(FIRST, 0.0)
    channel.trigger(SECOND, 0.0)
    channel.abort(FIRST, 0.0)
    assert channel.next_phase(0.0) == SECOND


def test_a_barrier_that_waits_for_its_phase_can_be_aborted(channel: OperatorChannel) -> None:
    channel.trigger(FIRST, 0.0)
    channel.trigger(SECOND, 0.0)
    channel.trigger(THIRD, 0.0)
    channel.abort(SECOND, 0.0)
    channel.answered(FIRST, 0.0)
    assert channel.next_phase(0.0) == THIRD


def test_the_abort_of_another_barrier_leaves_a_held_event_where_it_is(channel: OperatorChannel) -> None:
    """Hazard H2: what is given up is named, never "the last one"."""
    complete(channel, FIRST)
    send(channel, S0, "A")
    channel.trigger(SECOND, 0.0)
    channel.abort(SECOND, 0.0)
    assert mailbox(channel, S0) == ""
    assert states(channel, FIRST) == [gateway.State.CLOSED] * 2


def test_the_abort_of_a_barrier_that_was_never_marked_is_an_error_that_changes_nothing(
    channel: OperatorChannel,
) -> None:
    complete(channel, FIRST)
    send(channel, S0, "A")
    with pytest.raises(InvalidTransition, match="barrier 2"):
        channel.abort(SECOND, 0.0)
    assert states(channel, FIRST) == [gateway.State.CLOSED] * 2
    assert channel.gateways[S0].blocked == 1


def test_an_abort_after_the_close_drops_nothing(channel: OperatorChannel) -> None:
    complete(channel, FIRST)
    send(channel, S0, "a b")
    channel.abort(FIRST, 0.0)
    assert mailbox(channel, S0) == "a b"


def test_an_abort_after_an_ack_is_late_news_for_that_subtask(channel: OperatorChannel) -> None:
    complete(channel, FIRST)
    send(channel, S0, "a")
    send(channel, S1, "b")
    channel.gateways[S0].open(FIRST, 0.0)
    channel.abort(FIRST, 0.0)
    assert (mailbox(channel, S0), mailbox(channel, S1)) == ("a", "b")


def test_a_coordinator_that_owes_its_state_is_overdue_after_the_limit(channel: OperatorChannel) -> None:
    assert not channel.overdue(100.0, 60.0), "nothing is owed"
    channel.trigger(FIRST, 100.0)
    assert not channel.overdue(160.0, 60.0)
    assert channel.overdue(160.5, 60.0)
    channel.answered(FIRST, 161.0)
    assert not channel.overdue(1000.0, 60.0)


def test_the_time_of_a_phase_counts_from_its_own_question(channel: OperatorChannel) -> None:
    channel.trigger(FIRST, 0.0)
    channel.trigger(SECOND, 0.0)
    channel.answered(FIRST, 50.0)
    channel.next_phase(50.0)
    assert not channel.overdue(100.0, 60.0)


def test_freezing_takes_the_mailboxes_and_leaves_out_empty_ones(channel: OperatorChannel) -> None:
    send(channel, S1, "a b")
    assert channel.freeze() == {S1: events("a b")}
    assert channel.freeze() == {}


def test_frozen_inputs_can_be_put_back_in_front(channel: OperatorChannel) -> None:
    send(channel, S0, "a")
    frozen = channel.freeze()
    send(channel, S0, "b")
    channel.put_back(frozen)
    assert mailbox(channel, S0) == "a b"


def test_after_a_recovery_a_recorded_barrier_is_closed_again(channel: OperatorChannel) -> None:
    channel.close_again(FIRST)
    send(channel, S0, "a")
    assert mailbox(channel, S0) == ""
    channel.gateways[S0].open(FIRST, 0.0)
    assert mailbox(channel, S0) == "a"


def test_only_calls_of_its_own_incarnation_are_current(channel: OperatorChannel) -> None:
    assert channel.is_current(1)
    assert not channel.is_current(0)
    assert not channel.is_current(2)


def test_the_barrier_that_is_owed_is_named(channel: OperatorChannel) -> None:
    owed = [channel.asked]
    channel.trigger(FIRST, 100.0)
    channel.trigger(SECOND, 100.0)
    owed += [channel.asked, channel.overdue(161.0, 60.0)]
    channel.abort(FIRST, 161.0)
    owed += [channel.asked, channel.overdue(161.0, 60.0)]
    channel.next_phase(161.0)
    owed += [channel.asked, channel.overdue(200.0, 60.0)]
    assert owed == [None, FIRST, FIRST, None, None, SECOND, None], "the next one is owed when it is asked for"


def test_what_waits_behind_closed_barriers_is_known_by_subtask(channel: OperatorChannel) -> None:
    send(channel, S1, "passed")
    complete(channel, FIRST)
    send(channel, S1, "a")
    complete(channel, SECOND)
    send(channel, S1, "b")
    assert channel.held() == {S1: events("a b")}
    assert channel.freeze() == {S1: events("passed")}, "to look does not take"
