"""An outage is said once when it begins and once when it ends, and the pauses between tries are bounded."""

from __future__ import annotations

from coord_control.protocol.outage import Outage


def test_an_outage_is_said_once_when_it_begins_and_once_when_it_ends() -> None:
    outage = Outage(1.0, 4.0)
    assert not outage.worked()
    assert [outage.failed(0.0) for _ in range(3)] == [True, False, False]
    assert (outage.is_on, outage.in_a_row) == (True, 3)
    assert [outage.worked(), outage.worked()] == [True, False]
    assert (outage.is_on, outage.in_a_row) == (False, 0)
    assert outage.failed(0.0)


def test_each_failure_makes_the_next_try_wait_longer_up_to_a_bound() -> None:
    outage, waits = Outage(1.0, 5.0), []
    for _ in range(2000):
        outage.failed(100.0)
        waits.append(outage.seconds_until_due(100.0))
    assert waits[:4] == [1.0, 2.0, 4.0, 5.0]
    assert max(waits) == waits[-1] == 5.0
    assert outage.seconds_until_due(105.0) == 0.0
    outage.worked()
    assert outage.seconds_until_due(100.0) == 0.0


def test_a_share_of_the_pause_spreads_many_who_wait_for_the_same() -> None:
    outage = Outage(4.0, 8.0)
    outage.failed(10.0, 0.5)
    assert outage.seconds_until_due(10.0) == 2.0
