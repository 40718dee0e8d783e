"""The table of an upgrade's steps, and when a new program counts as healthy."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from coord_control.durable.job_folder.upgrade_record import UpgradeStep
from coord_control.errors import InvalidTransition
from coord_control.launch.upgrade_steps import ENDS, TRANSITIONS, Look, QueryLook, StepOutcome, Watch, next_step


@pytest.mark.parametrize(("step", "outcome"), list(itertools.product(UpgradeStep, StepOutcome)))
def test_every_pair_of_a_step_and_an_outcome_is_in_the_table_or_refused(
    step: UpgradeStep, outcome: StepOutcome
) -> None:
    is_possible = step not in ENDS and (step, outcome) != (UpgradeStep.STOP_NEW, StepOutcome.GIVEN_UP)
    assert ((step, outcome) in TRANSITIONS) == is_possible
    if not is_possible:
        with pytest.raises(InvalidTransition):
            next_step(step, outcome)


def test_every_history_ends_and_ends_where_it_should() -> None:
    """Before the old program is stopped nothing is undone; afterwards one of the programs runs, or somebody is told."""

    def histories(
        step: UpgradeStep, outcomes: tuple[StepOutcome, ...]
    ) -> list[tuple[tuple[StepOutcome, ...], UpgradeStep]]:
        if step in ENDS:
            return [(outcomes, step)]
        possible = [outcome for outcome in StepOutcome if (step, outcome) in TRANSITIONS]
        assert len(outcomes) < len(UpgradeStep)
        return [found for each in possible for found in histories(next_step(step, each), (*outcomes, each))]

    for outcomes, end in histories(UpgradeStep.CHECK, ()):
        failed = [index for index, outcome in enumerate(outcomes) if outcome is not StepOutcome.DONE]
        assert (end is UpgradeStep.DONE) == (not failed)
        assert (end in (UpgradeStep.REFUSED, UpgradeStep.NOT_STOPPED)) == (bool(failed) and failed[0] < 2)
        assert (end is UpgradeStep.STUCK) == (len(failed) > 1 and outcomes[failed[-1]] is StepOutcome.FAILED)
        assert (end is UpgradeStep.LEFT) == (
            bool(failed) and failed[0] >= 2 and outcomes[failed[-1]] is StepOutcome.GIVEN_UP
        )


def _look(at: float, *, epoch: int | None = 5, backlog: int | None = None, **changes: Any) -> Look:
    queries = {"rows": QueryLook(epoch, changes.pop("restarts", 0), backlog)}
    values: dict[str, Any] = {"generation": 7, "is_alive": True, "is_supervised": True, "queries": queries}
    return Look(at, **values | changes)


def _verdict(looks: list[Look], **changes: Any) -> str | None:
    watch = Watch(7, {"rows": 4}, seconds=10.0, **changes)
    for look in looks:
        assert not watch.is_over
        if (why := watch.saw(look)) is not None:
            return why
    assert watch.is_over
    return watch.verdict()


def test_a_program_that_commits_epochs_and_stays_alive_is_healthy() -> None:
    assert _verdict([_look(0, epoch=None), _look(5, epoch=4), _look(10, epoch=5)]) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"is_supervised": False}, "its supervisor has ended"),
        ({"generation": 8}, "its driver was restarted: generation 8 follows 7"),
        ({"restarts": 1}, "queries were restarted after a failure: rows"),
        ({"is_alive": False}, "its driver sends no heartbeats"),
        ({"epoch": 4}, "queries have committed no epoch since the savepoint: rows"),
        ({"epoch": None}, "queries have committed no epoch since the savepoint: rows"),
        ({"queries": {}}, "queries have committed no epoch since the savepoint: rows"),
    ],
)
def test_it_is_not(changes: dict[str, Any], why: str) -> None:
    assert _verdict([_look(0), _look(10, **changes)]) == why


def test_a_query_without_input_may_be_accepted() -> None:
    assert _verdict([_look(0, epoch=None), _look(10, epoch=None)], accept_idle=True) is None


def test_a_driver_may_miss_heartbeats_for_a_while() -> None:
    assert _verdict([_look(0), _look(5, is_alive=False), _look(10)]) is None


@pytest.mark.parametrize(
    ("sizes", "grows"),
    [
        ([None, None, None], False),
        ([10, 20, 30, 40], True),
        ([100, 60, 30, 10], False),  # what the pause has left
        ([0, 9, 0, 8, 1, 7], False),
        ([0, 0, 0, 0], False),
        ([5], False),
        ([10, 20, 30], False),  # too few epochs to say
        ([1000, 1010, 1020, 1030], False),  # so little is noise
    ],
)
def test_a_backlog_grows_if_it_is_clearly_higher_at_its_lowest_than_it_was_at_its_highest(
    sizes: list[int | None], grows: bool
) -> None:
    looks = [_look(index * 0.1, epoch=5 + index, backlog=size) for index, size in enumerate(sizes)]
    verdict = _verdict([*looks, _look(10.0, epoch=5 + len(sizes) - 1, backlog=sizes[-1])])
    assert verdict == (f"the backlog of query rows grows: from 20 to {sizes[-1]}" if grows else None)


def test_looks_between_two_epochs_do_not_make_a_backlog_grow() -> None:
    looks = [_look(index, epoch=5 + index // 4, backlog=10 + 100 * (index // 4)) for index in range(8)]
    assert _verdict([*looks, _look(10, epoch=6, backlog=110)]) is None
