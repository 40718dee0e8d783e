"""Which savepoints are superfluous: the decision alone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord_control.control.client.superfluous_savepoints import Retention, TakenSavepoint, superfluous
from coord_control.storage.records import CheckpointKind
from tests import records_kit as records
from tests.records_kit import NOON


def _savepoint(number: int, hours_old: float) -> TakenSavepoint:
    ended = NOON - timedelta(hours=hours_old)
    found = records.checkpoint(number, kind=CheckpointKind.SAVEPOINT, triggered_at=ended, finished_at=ended)
    return TakenSavepoint.of_record(found)


def _ids(savepoints: list[TakenSavepoint]) -> list[int]:
    return [each.id for each in savepoints]


def _hours(hours: float) -> timedelta:
    return timedelta(hours=hours)


_FIVE = [_savepoint(number, hours_old=5 - number) for number in (3, 1, 5, 2, 4)]


@pytest.mark.parametrize(
    ("retention", "doomed"),
    [
        (Retention(2), [1, 2, 3]),
        (Retention(9), []),
        (Retention(0), [1, 2, 3, 4]),  # the newest stays
        (Retention(1, _hours(2.5)), [1, 2]),
        (Retention(1, _hours(0.001)), [1, 2, 3, 4]),
        (Retention(4, _hours(2.5)), [1]),
    ],
)
def test_those_go_that_are_neither_among_the_newest_nor_young(retention: Retention, doomed: list[int]) -> None:
    assert _ids(superfluous(_FIVE, retention)) == doomed


@pytest.mark.parametrize("name", ["2", "the second", "/savepoints/2"])
def test_one_that_is_in_use_stays_and_counts(name: str) -> None:
    five = [TakenSavepoint(each.id, f"/savepoints/{each.id}", None, each.taken_at) for each in _FIVE]
    named = [TakenSavepoint(2, each.path, "the second", each.taken_at) if each.id == 2 else each for each in five]
    assert _ids(superfluous(named, Retention(2), in_use={name})) == [1, 3]


def test_an_age_is_measured_from_the_newest_and_not_by_another_clock() -> None:
    """This machine may be hours ahead of the driver's."""
    both = [_savepoint(1, hours_old=72), _savepoint(2, hours_old=71)]
    assert superfluous(both, Retention(1, _hours(2))) == []


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.integers(0, 5), st.none() | st.floats(0, 100))
def test_the_newest_never_goes(ages: list[float], keep: int, hours: float | None) -> None:
    savepoints = [_savepoint(number, age) for number, age in enumerate(ages, start=1)]
    older_than = None if hours is None else _hours(hours)
    doomed = _ids(superfluous(savepoints, Retention(keep, older_than)))
    assert len(ages) not in doomed
    assert len(ages) - len(doomed) >= min(len(ages), max(1, keep))
