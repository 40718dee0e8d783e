from __future__ import annotations

import pytest

from coord_control.protocol.durations import BOUNDS, Durations


def test_nothing_has_been_counted_at_first() -> None:
    nothing = Durations()
    assert (nothing.count, nothing.seconds, set(nothing.counts)) == (0, 0.0, {0})
    assert len(nothing.counts) == len(BOUNDS) + 1


@pytest.mark.parametrize("place", range(len(BOUNDS)))
def test_a_bound_belongs_to_what_is_below_it(place: int) -> None:
    bound = BOUNDS[place]
    assert Durations().plus(bound).counts.index(1) == place
    assert Durations().plus(bound * 1.001).counts.index(1) == place + 1


def test_what_is_longer_than_all_bounds_is_counted_behind_them() -> None:
    assert Durations().plus(BOUNDS[-1] + 1).counts[-1] == 1


def test_durations_add_up_and_the_value_before_stays_as_it_was() -> None:
    one = Durations().plus(0.2)
    two = one.plus(40.0).plus(0.21)
    assert two.count == 3
    assert two.seconds == pytest.approx(40.41)
    assert two.counts[BOUNDS.index(0.25)] == 2
    assert one.count == 1


def test_bounds_grow() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))
