"""Axes of durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord_control.ui.scales import seconds_scale


@pytest.mark.parametrize(
    ("longest", "labels"),
    [
        (0.0, ["0", "0.25 ms", "0.5 ms", "0.75 ms", "1 ms"]),
        (0.4, ["0", "100 ms", "200 ms", "300 ms", "400 ms"]),
        (3.4, ["0", "1 s", "2 s", "3 s", "4 s"]),
        (10.0, ["0", "2.5 s", "5 s", "7.5 s", "10 s"]),
        (200.0, ["0", "50 s", "1m 40s", "2m 30s", "3m 20s"]),
    ],
)
def test_lines_stand_at_round_values(longest: float, labels: list[str]) -> None:
    assert [tick.label for tick in seconds_scale(longest, 0, 100, steps=4).ticks] == labels


@given(st.floats(1e-6, 1e7), st.integers(2, 10))
def test_everything_fits_in_and_lines_are_few_and_in_order(longest: float, steps: int) -> None:
    scale = seconds_scale(longest, 50, 250, steps=steps)
    places = [tick.at for tick in scale.ticks]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (50, 250)
    assert len(places) <= steps + 2
    assert scale.at(longest) <= 250
    assert scale.at(longest) >= 50 + 200 * 0.3  # and the axis is not much longer than needed


def test_an_axis_can_go_up() -> None:
    scale = seconds_scale(4.0, 100, 0, steps=4)
    assert [scale.at(value) for value in (0.0, 1.0, 4.0)] == [100, 75, 0]


def test_what_is_beyond_an_end_lies_at_it() -> None:
    scale = seconds_scale(4.0, 0, 100, steps=4)
    assert (scale.at(-1.0), scale.at(9.0)) == (0, 100)
