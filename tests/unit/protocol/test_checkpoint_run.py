"""One checkpoint: every pair of its table, and its rules one by one. All histories are in tests/machines."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest

from coord_control.errors import Fenced, InvalidTransition, StateFileMissing, StoreUnavailable
from coord_control.ids import BarrierId, QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.checkpoint_run import (
    MAX_CUTS,
    MEASURED_SECONDS,
    REMOVED_SECONDS,
    TRANSITIONS,
    AbortCut,
    CheckpointRun,
    ClaimNumber,
    Confirm,
    Cut,
    Discard,
    Effect,
    Ended,
    Input,
    Pin,
    Report,
    State,
    Withdraw,
    Write,
)
from coord_control.protocol.scheduler.tickets import CheckpointOutcome

FIRST, SECOND = BarrierId(7), BarrierId(8)
AWAITED, AT_REST, LATER = QueryName("awaited"), QueryName("at rest"), QueryName("later")
GONE = StateFileMissing("state/0/0/1.delta", "it was removed")
UNAVAILABLE = StoreUnavailable("flights", "write", "no answer")
ABORTED = CheckpointOutcome(FailureReason.ABORTED, "by a person")
EXPIRED = CheckpointOutcome(FailureReason.EXPIRED, "after 600 s")
PATH = "/jobs/flights/savepoints/1"


def claiming() -> CheckpointRun:
    run = CheckpointRun()
    run.begin()
    return run


def cutting() -> CheckpointRun:
    run = claiming()
    run.claimed()
    return run


def pinning(*, awaited: tuple[QueryName, ...] = (AWAITED, LATER), barrier: BarrierId = FIRST) -> CheckpointRun:
    """One query rests and is being pinned, the others wait for their boundaries."""
    run = cutting()
    run.cut(barrier, awaited, [AT_REST])
    run.take()
    return run


def void(run: CheckpointRun | None = None) -> CheckpointRun:
    """A file of the resting query was gone while the captured one is still being pinned."""
    run = run or pinning()
    run.captured(AWAITED, FIRST)
    run.not_pinned(AT_REST, GONE, 0.0)
    run.take()
    return run


def writing() -> CheckpointRun:
    run = pinning(awaited=())
    run.pinned(AT_REST)
    run.take()
    return run


def failing() -> CheckpointRun:
    run = pinning()
    run.fail(ABORTED, 0.0)
    run.take()
    return run


def draining() -> CheckpointRun:
    run = failing()
    run.measured()
    return run


def removing() -> CheckpointRun:
    run = draining()
    run.pinned(AT_REST)
    return run


def left() -> CheckpointRun:
    run = draining()
    assert run.tick(REMOVED_SECONDS) is Input.OVERDUE
    return run


def completed() -> CheckpointRun:
    run = writing()
    run.written(PATH)
    return run


def failed() -> CheckpointRun:
    run = removing()
    run.removed()
    return run


IN: dict[State, Callable[[], CheckpointRun]] = {
    State.NEW: CheckpointRun,
    State.CLAIMING: claiming,
    State.CUTTING: cutting,
    State.PINNING: pinning,
    State.VOID: void,
    State.WRITING: writing,
    State.FAILING: failing,
    State.DRAINING: draining,
    State.REMOVING: removing,
    State.LEFT: left,
    State.COMPLETED: completed,
    State.FAILED: failed,
}

#: Each input as it comes from outside.
GIVE: dict[Input, Callable[[CheckpointRun], object]] = {
    Input.BEGIN: lambda run: run.begin(),
    Input.CLAIMED: lambda run: run.claimed(),
    Input.NOT_CLAIMED: lambda run: run.not_claimed(UNAVAILABLE, 0.0),
    Input.CUT: lambda run: run.cut(SECOND, [AWAITED], [AT_REST]),
    Input.CAPTURED: lambda run: run.captured(LATER, FIRST),
    Input.PINNED: lambda run: run.pinned(being_pinned(run)),
    Input.FILE_GONE: lambda run: run.not_pinned(being_pinned(run), GONE, 0.0),
    Input.NOT_PINNED: lambda run: run.not_pinned(being_pinned(run), UNAVAILABLE, 0.0),
    Input.WRITTEN: lambda run: run.written(PATH),
    Input.NOT_WRITTEN: lambda run: run.not_written(UNAVAILABLE, 0.0),
    Input.FAIL: lambda run: run.fail(EXPIRED, 0.0),
    Input.ABANDONED: lambda run: run.abandoned(FIRST, EXPIRED, 0.0),
    Input.MEASURED: lambda run: run.measured(),
    Input.REMOVED: lambda run: run.removed(),
}
#: What follows from the others, or from time.
INNER = (Input.QUIET, Input.OVERDUE)
PAIRS = [(state, input_) for state, input_ in itertools.product(State, Input) if input_ not in INNER]
#: What the core says is late news where it cannot mean anything any more, or does not speak of the present cut.
LATE = {
    *itertools.product((State.NEW, State.CLAIMING, State.CUTTING), (Input.CAPTURED, Input.ABANDONED)),
    *itertools.product((State.WRITING, State.COMPLETED), (Input.CAPTURED,)),
}


def being_pinned(run: CheckpointRun) -> QueryName:
    return AWAITED if run.state is State.VOID else AT_REST


def ended(run: CheckpointRun) -> bool:
    """Whether it only waits for the removal of its files, and ends with it."""
    assert run.take() == [Discard()]
    run.removed()
    return run.take() == [Ended()]


def everything(run: CheckpointRun) -> dict[str, object]:
    return {slot: copy.deepcopy(getattr(run, slot)) for slot in CheckpointRun.__slots__}


def row(state: State, input_: Input) -> tuple[State, list[type[Effect]]]:
    """Where a pair leads, with what follows at once when no pin runs any more."""
    target, effects = TRANSITIONS[state, input_]
    is_quiet = {Input.PINNED, Input.FILE_GONE, Input.NOT_PINNED}
    if target in (State.VOID, State.DRAINING, State.LEFT) and input_ in is_quiet:  # it was the only pin
        target, more = TRANSITIONS[target, Input.QUIET]
        return target, [*effects, *more]
    return target, list(effects)


@pytest.mark.parametrize("state", State)
def test_every_state_can_be_reached(state: State) -> None:
    assert IN[state]().state is state


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PAIRS if pair in TRANSITIONS])
def test_a_legal_pair_leads_where_the_table_says(state: State, input_: Input) -> None:
    run = IN[state]()
    run.take()
    GIVE[input_](run)
    target, effects = row(state, input_)
    assert run.state is target
    assert [type(effect) for effect in run.take()] == effects


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PAIRS if pair not in TRANSITIONS])
def test_any_other_pair_is_refused_or_late_and_changes_nothing(state: State, input_: Input) -> None:
    run = IN[state]()
    before = everything(run)
    if (state, input_) in LATE:
        assert GIVE[input_](run) is False
    else:
        with pytest.raises(InvalidTransition, match=rf"checkpoint run: input {input_.name} .*in state {state.name}"):
            GIVE[input_](run)
    assert everything(run) == before


@pytest.mark.parametrize("state", State)
def test_a_failure_may_come_in_every_state(state: State) -> None:
    assert (state, Input.FAIL) in TRANSITIONS


def test_the_steps_of_a_checkpoint_that_is_completed() -> None:
    run = CheckpointRun()
    run.begin()
    assert run.take() == [ClaimNumber()]
    run.claimed()
    assert run.take() == [Cut()]
    run.cut(FIRST, [AWAITED], [AT_REST])
    assert run.take() == [Pin(AT_REST)]
    assert run.captured(AWAITED, FIRST)
    assert run.take() == [Pin(AWAITED)]
    assert run.pinned(AT_REST)
    assert run.take() == [Report()]
    assert run.pinned(AWAITED)
    assert run.take() == [Report(), Write()]
    run.written(PATH)
    assert run.take() == [Confirm(), Ended()]
    assert run.outcome == CheckpointOutcome(path=PATH)
    assert not run.has_output


def test_metadata_is_not_written_while_a_boundary_is_waited_for() -> None:
    run = pinning(awaited=(AWAITED,))
    run.pinned(AT_REST)
    assert run.take() == [Report()]
    assert run.awaited == {AWAITED}


def test_metadata_is_not_written_while_a_pin_runs() -> None:
    run = pinning(awaited=(AWAITED,))
    run.captured(AWAITED, FIRST)
    run.pinned(AWAITED)
    assert run.take() == [Pin(AWAITED), Report()]
    assert run.state is State.PINNING


def test_a_query_is_pinned_once() -> None:
    run = pinning()
    assert run.captured(AWAITED, FIRST)
    assert not run.captured(AWAITED, FIRST)
    assert run.take() == [Pin(AWAITED)]
    run.pinned(AWAITED)
    with pytest.raises(InvalidTransition, match="PINNED of query 'awaited' is not allowed in state PINNING"):
        run.pinned(AWAITED)


# Cut again.


def test_a_checkpoint_whose_file_was_gone_is_cut_again_when_every_pin_of_the_first_cut_has_ended() -> None:
    run = pinning(awaited=(AWAITED,))
    run.captured(AWAITED, FIRST)
    run.take()
    assert run.not_pinned(AT_REST, GONE, 0.0)
    assert run.take() == [Withdraw()]
    assert not run.pinned(AWAITED), "it does not count"
    assert run.take() == [Cut()]
    run.cut(SECOND, [AWAITED], [AT_REST])
    assert run.take() == [Pin(AT_REST)]
    assert run.awaited == {AWAITED}


def test_a_checkpoint_without_another_pin_is_cut_again_at_once() -> None:
    run = pinning(awaited=(AWAITED,))
    assert run.not_pinned(AT_REST, GONE, 0.0)
    assert run.take() == [Withdraw(), Cut()]


@pytest.mark.parametrize("error", [GONE, UNAVAILABLE])
def test_whatever_else_goes_wrong_in_a_void_cut_does_not_matter(error: Exception) -> None:
    run = void()
    assert not run.not_pinned(AWAITED, error, 0.0)
    assert run.take() == [Cut()]
    assert run.outcome is None


def test_a_checkpoint_is_cut_a_few_times_at_most() -> None:
    run = pinning(awaited=())
    for again in range(1, MAX_CUTS):
        assert run.not_pinned(AT_REST, GONE, 0.0)
        run.cut(BarrierId(FIRST + again), [], [AT_REST])
    run.take()
    assert not run.not_pinned(AT_REST, GONE, 0.0)
    assert run.take() == [AbortCut()]
    assert run.outcome == CheckpointOutcome(FailureReason.FILES_PURGED, str(GONE))


def test_another_error_of_a_pin_ends_the_checkpoint() -> None:
    run = pinning()
    assert not run.not_pinned(AT_REST, UNAVAILABLE, 0.0)
    assert run.take() == [AbortCut()]
    assert run.outcome == CheckpointOutcome(FailureReason.STORAGE_ERROR, str(UNAVAILABLE))


def test_news_of_an_earlier_cut_change_nothing() -> None:
    run = pinning(awaited=(AWAITED,))
    run.not_pinned(AT_REST, GONE, 0.0)
    for _ in ("while it is cut again", "afterwards"):
        run.take()
        assert not run.captured(AWAITED, FIRST)
        assert not run.abandoned(FIRST, EXPIRED, 0.0)
        assert run.take() == []
        if run.state is State.CUTTING:
            run.cut(SECOND, [AWAITED], [AT_REST])
    assert run.state is State.PINNING


def test_a_checkpoint_that_is_given_up_while_its_cut_is_void_is_not_cut_again() -> None:
    run = void()
    run.fail(ABORTED, 0.0)
    run.measured()
    run.pinned(AWAITED)
    assert run.take() == [AbortCut(), Discard()]


# The end of one that failed.


def test_what_could_not_be_claimed_is_not_discarded() -> None:
    run = claiming()
    run.take()
    run.not_claimed(Fenced("flights", 1, 2), 0.0)
    assert run.take() == [Ended()]
    assert run.outcome == CheckpointOutcome(FailureReason.FENCED, str(Fenced("flights", 1, 2)))


def test_a_checkpoint_that_was_given_up_before_it_began_leaves_the_storage_alone() -> None:
    run = CheckpointRun()
    run.fail(ABORTED, 0.0)
    assert run.take() == [Ended()]


def test_nothing_is_discarded_while_a_pin_runs() -> None:
    run = pinning()
    run.fail(ABORTED, 0.0)
    run.measured()
    assert run.take() == [AbortCut()]
    assert not run.pinned(AT_REST), "it does not count"
    assert ended(run)


# A storage that hangs.


def test_a_checkpoint_that_is_given_up_while_its_claim_hangs_ends_in_time_and_removes_the_claim_later() -> None:
    run = claiming()
    run.take()
    run.fail(EXPIRED, 100.0)
    assert run.needs_look
    assert run.tick(100.0 + REMOVED_SECONDS - 1) is None
    assert run.tick(100.0 + REMOVED_SECONDS) is Input.OVERDUE
    assert run.take() == [Ended()]
    assert run.outcome == EXPIRED
    run.claimed()
    assert run.take() == [Discard()]
    run.removed()
    assert run.take() == []


def test_a_checkpoint_whose_claim_fails_after_it_was_given_up_removes_nothing() -> None:
    run = claiming()
    run.fail(ABORTED, 0.0)
    run.not_claimed(UNAVAILABLE, 0.0)
    assert run.take() == [ClaimNumber(), Ended()]
    assert run.outcome == ABORTED


def test_a_checkpoint_ends_in_time_while_a_pin_hangs_and_is_removed_when_it_has_come_back() -> None:
    run = draining()
    assert run.tick(REMOVED_SECONDS) is Input.OVERDUE
    assert run.take() == [Ended()]
    run.pinned(AT_REST)
    assert run.take() == [Discard()]


def test_a_checkpoint_ends_in_time_while_its_removal_hangs() -> None:
    run = removing()
    run.take()
    assert run.tick(REMOVED_SECONDS) is Input.OVERDUE
    assert run.take() == [Ended()]
    run.removed()
    assert run.take() == []


def test_the_end_waits_for_what_the_core_has_measured() -> None:
    run = pinning()
    run.fail(ABORTED, 0.0)
    run.pinned(AT_REST)
    assert run.take() == [AbortCut()]
    run.measured()
    assert ended(run)


def test_a_core_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    run = pinning()
    run.fail(ABORTED, 10.0)
    run.pinned(AT_REST)
    run.take()
    assert not run.tick(10.0 + MEASURED_SECONDS - 0.1)
    assert run.take() == []
    assert run.tick(10.0 + MEASURED_SECONDS) is Input.MEASURED
    assert ended(run)
    run.measured()
    assert not run.has_output


TIMED = (State.FAILING, State.DRAINING, State.REMOVING)


@pytest.mark.parametrize("state", [state for state in State if state not in TIMED])
def test_time_alone_ends_nothing_else(state: State) -> None:
    run = IN[state]()
    before = everything(run)
    assert not run.tick(1e9)
    assert everything(run) == before


def test_a_checkpoint_that_the_core_has_given_up_does_not_ask_it() -> None:
    run = pinning()
    run.pinned(AT_REST)
    run.take()
    assert run.abandoned(FIRST, EXPIRED, 0.0)
    assert ended(run)
    assert run.outcome == EXPIRED


def test_the_first_failure_stands() -> None:
    run = pinning()
    run.fail(ABORTED, 0.0)
    run.fail(EXPIRED, 5.0)
    run.abandoned(FIRST, EXPIRED, 5.0)
    run.not_pinned(AT_REST, UNAVAILABLE, 5.0)
    assert run.state is State.REMOVING
    assert run.outcome == ABORTED


def test_a_second_failure_does_not_prolong_the_wait_for_the_core() -> None:
    run = pinning()
    run.fail(ABORTED, 0.0)
    run.fail(EXPIRED, 100.0)
    assert run.tick(MEASURED_SECONDS)


def test_a_query_that_is_captured_after_the_failure_still_counts_for_the_statistics() -> None:
    run = failing()
    assert run.captured(AWAITED, FIRST)
    assert run.take() == []
    assert run.awaited == frozenset(), "its boundary is not looked for any more"


# Writing.


def test_a_failure_comes_too_late_while_the_metadata_is_written() -> None:
    run = writing()
    run.fail(ABORTED, 0.0)
    assert run.abandoned(FIRST, EXPIRED, 0.0)
    assert run.take() == []
    run.written(PATH)
    assert run.outcome == CheckpointOutcome(path=PATH)


def test_a_failure_comes_too_late_when_it_is_complete() -> None:
    run = completed()
    run.fail(ABORTED, 0.0)
    assert run.outcome == CheckpointOutcome(path=PATH)


def test_metadata_that_could_not_be_written_is_discarded() -> None:
    run = writing()
    run.not_written(UNAVAILABLE, 0.0)
    assert run.take() == [AbortCut()]
    run.measured()
    assert ended(run)
    assert run.outcome == CheckpointOutcome(FailureReason.FINALISE_FAILED, str(UNAVAILABLE))


def test_metadata_of_a_driver_that_was_replaced_say_so() -> None:
    run = writing()
    run.not_written(Fenced("flights", 1, 2), 0.0)
    assert run.outcome is not None
    assert run.outcome.reason is FailureReason.FENCED


@pytest.mark.parametrize("state", State)
def test_it_is_looked_at_while_something_is_waited_for(state: State) -> None:
    assert IN[state]().needs_look is (state in (State.PINNING, *TIMED))
