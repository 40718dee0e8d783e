"""When periodic checkpoints are due, and the pause between them."""

from __future__ import annotations

from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.pacing import Pacing


def pacing(interval: float | None = 10.0, pause: float = 0.0) -> Pacing:
    return Pacing(CheckpointOptions(interval_seconds=interval, min_pause_seconds=pause))


def test_without_an_interval_nothing_is_ever_due() -> None:
    paces = pacing(None, 3.0)
    paces.begin(0.0, 1.0)
    assert not paces.take_due(1e9)
    paces.restart(0.0)
    assert paces.next_due is None


def test_the_first_is_due_after_the_delay_or_else_one_period() -> None:
    with_delay, without = pacing(), pacing()
    with_delay.begin(100.0, 3.5)
    without.begin(100.0, None)
    assert (with_delay.next_due, without.next_due) == (103.5, 110.0)


def test_each_period_is_due_once_on_a_grid_that_lateness_does_not_move() -> None:
    paces = pacing()
    paces.begin(0.0, 0.0)
    assert paces.take_due(0.0)
    assert not paces.take_due(9.9)
    assert paces.take_due(13.0)
    assert paces.next_due == 20.0


def test_periods_that_nobody_looked_at_are_left_out() -> None:
    paces = pacing()
    paces.begin(0.0, 0.0)
    assert paces.take_due(47.0)
    assert not paces.take_due(49.0)
    assert paces.next_due == 50.0


def test_the_pause_begins_with_each_end() -> None:
    paces = pacing(pause=3.0)
    assert not paces.is_pause(0.0)
    paces.ended(5.0)
    paces.ended(6.0)
    assert paces.pause_ends_at == 9.0
    assert paces.is_pause(8.9)
    assert not paces.is_pause(9.0)


def test_a_pause_of_zero_is_none() -> None:
    paces = pacing(pause=0.0)
    paces.ended(5.0)
    assert paces.pause_ends_at is None
    assert not paces.is_pause(5.0)


def test_after_a_restart_the_first_is_due_one_pause_later_and_nothing_was_due_between() -> None:
    paces = pacing(pause=3.0)
    paces.begin(0.0, 0.0)
    paces.stop()
    assert not paces.take_due(50.0)
    paces.restart(50.0)
    assert paces.is_pause(52.9)
    assert not paces.take_due(52.9)
    assert paces.take_due(53.0)
    assert paces.next_due == 63.0


def test_a_rest_holds_everybody_up_and_a_shorter_one_does_not_end_it() -> None:
    paces = pacing(pause=3.0)
    assert paces.opens_at(periodic=True) is None
    paces.ended(5.0, 0.5)
    paces.ended(5.1, 0.1)
    assert paces.opens_at(periodic=False) == 5.5
    assert paces.opens_at(periodic=True) == 8.1


def test_an_end_without_a_rest_holds_up_periodic_ones_only() -> None:
    paces = pacing(pause=3.0)
    paces.ended(5.0)
    assert paces.opens_at(periodic=False) is None
    assert paces.opens_at(periodic=True) == 8.0
