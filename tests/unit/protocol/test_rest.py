"""How long nothing starts after a checkpoint."""

from __future__ import annotations

import pytest

from coord_control.ids import CheckpointId, CheckpointKind, Epoch, QueryName
from coord_control.protocol.scheduler.rest import LONGEST_REST_SECONDS, WORK_SHARE, Resting
from coord_control.protocol.statistics import CheckpointStatistics, QueryStatistics


def savepoint(
    *boundaries: int | None, seconds: float | None = 0.03, waited: float | None = None
) -> CheckpointStatistics:
    return CheckpointStatistics(
        checkpoint=CheckpointId(1),
        kind=CheckpointKind.SAVEPOINT,
        triggered_at_seconds=1e9,
        duration_seconds=seconds,
        queries=tuple(
            QueryStatistics(QueryName(f"q{place}"), None if epoch is None else Epoch(epoch), waited)
            for place, epoch in enumerate(boundaries)
        ),
    )


def moving(now: float = 100.0) -> Resting:
    """Of a job that was seen to come further just before."""
    resting = Resting()
    resting.after(savepoint(1, 7), now - 1)
    resting.after(savepoint(1, 8), now - 0.5)
    return resting


def test_the_first_one_and_those_of_an_idle_job_ask_for_no_rest() -> None:
    resting = Resting()
    assert [resting.after(savepoint(3, None), now) for now in (1.0, 2.0, 3.0)] == [0.0, 0.0, 0.0]


def test_a_job_without_queries_rests_never() -> None:
    assert Resting().after(savepoint(), 1.0) == 0.0


def test_beside_epochs_the_work_takes_its_share_of_the_time_and_no_more() -> None:
    work = 0.03
    rest = moving().after(savepoint(1, 9, seconds=work), 100.0)
    assert work / (work + rest) == pytest.approx(WORK_SHARE)


def test_several_between_two_epochs_rest_as_well() -> None:
    assert moving().after(savepoint(1, 8), 100.0) > 0


def test_time_in_which_it_waited_for_an_epoch_is_no_work() -> None:
    assert moving().after(savepoint(1, 9, seconds=0.4, waited=0.4), 100.0) == 0.0
    assert moving().after(savepoint(1, 9, seconds=None), 100.0) == 0.0


def test_a_long_one_is_not_followed_by_a_long_rest() -> None:
    assert moving().after(savepoint(1, 9, seconds=60.0), 100.0) == LONGEST_REST_SECONDS


def test_a_job_that_has_become_idle_needs_no_rest() -> None:
    assert moving().after(savepoint(1, 8), 130.0) == 0.0
