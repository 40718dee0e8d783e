"""What a schedule keeps of its savepoints: disposals through a real agent on real storage."""

# Without "from __future__ import annotations": Dagster reads the types of a step's arguments, and not as text.
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from coord_control.control.client.superfluous_savepoints import Retention
from coord_control.control.commands import CheckpointResult
from coord_control.dagster.runs.savepoint_retention import dispose_old, retention_of
from coord_control.dagster.spec import RetainSpec
from coord_control.durable.checkpoints.holds import hold
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.storage.records import CheckpointState, CommandKind
from tests.agent_kit import JOB
from tests.dagster_kit import (
    Plane,
    plane_in,
)
from tests.patience import eventually

_HOURLY = "dagster:schedule:hourly"


@pytest.mark.parametrize(
    ("retain", "rule"),
    [
        (RetainSpec(count=2), Retention(2)),
        (RetainSpec(max_age_hours=2.5), Retention(1, timedelta(hours=2.5))),
        (RetainSpec(count=4, max_age_hours=48), Retention(4, timedelta(days=2))),
    ],
)
def test_the_settings_of_a_schedule_are_a_rule(retain: RetainSpec, rule: Retention) -> None:
    assert retention_of(retain) == rule


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path) as plane:
        yield plane


def _take(plane: Plane, actor: str, label: str | None = None) -> CheckpointResult:
    client = plane.client(actor)
    result = client.wait(client.trigger_savepoint(JOB, label=label), 30)
    assert isinstance(result, CheckpointResult)
    return result


def _left(plane: Plane) -> list[int]:
    found = plane.client().checkpoints(JOB, state=CheckpointState.COMPLETED)
    return sorted(each.id for each in found)


def _dispose(plane: Plane, retain: RetainSpec, run: str = "a run") -> tuple[list[int], str]:
    """In a run of Dagster, with the text of its log."""
    gone: list[int] = []

    @dg.asset
    def savepoint(context: dg.AssetExecutionContext) -> None:
        gone.extend(dispose_old(context, plane.client(_HOURLY), JOB, "hourly", retain))

    with dg.instance_for_test() as instance:
        result = dg.materialize([savepoint], instance=instance)
        assert result.success
        lines = [entry.user_message for entry in instance.all_logs(result.run_id) if not entry.is_dagster_event]
    return gone, "\n".join(lines)


def test_the_older_ones_of_the_schedule_go_and_those_of_others_stay(plane: Plane) -> None:
    plane.driver()
    mine = [_take(plane, _HOURLY) for _ in range(4)]
    by_hand = _take(plane, "ada", label="hourly-20260301T120000Z")  # as those of the schedule have
    of_another = _take(plane, "dagster:schedule:daily")
    gone, log = _dispose(plane, RetainSpec(count=2))
    assert gone == [each.checkpoint for each in mine[:2]]
    assert "savepoint 1 of 20" in log
    assert [Path(each.path).exists() for each in mine] == [False, False, True, True]
    assert Path(by_hand.path).exists()
    assert Path(of_another.path).exists()
    eventually(lambda: _left(plane) == [3, 4, by_hand.checkpoint, of_another.checkpoint])


def test_one_that_is_being_read_is_a_line_in_the_log_and_goes_next_time(plane: Plane) -> None:
    plane.driver()
    first, second, _ = (_take(plane, _HOURLY) for _ in range(3))
    with hold(LocalFiles(), first.path, "somebody looks at it"):
        gone, log = _dispose(plane, RetainSpec(count=1))
    assert gone == [second.checkpoint]
    assert f"savepoint {first.checkpoint} in {first.path} is kept: dispose was refused (CHECKPOINT_IN_USE)" in log
    assert Path(first.path, "_metadata").exists()
    assert _dispose(plane, RetainSpec(count=1))[0] == [first.checkpoint]


def test_one_that_somebody_is_about_to_restore_stays(plane: Plane) -> None:
    driver = plane.driver(is_supervised=True)
    first, second, _ = (_take(plane, _HOURLY) for _ in range(3))
    driver.was_ready = False  # commands wait
    client = plane.client()
    restore = client.restore(JOB, first.path)

    def think_better_of_it() -> None:
        eventually(lambda: client.commands(JOB, kind=CommandKind.DISPOSE))
        client.cancel(restore)
        driver.was_ready = True

    thread = threading.Thread(target=think_better_of_it)
    thread.start()
    gone, _ = _dispose(plane, RetainSpec(count=1))
    thread.join()
    assert gone == [second.checkpoint]
    assert Path(first.path, "_metadata").exists()


def test_a_job_that_has_ended_keeps_all_and_the_run_is_no_failure(plane: Plane) -> None:
    driver = plane.driver()
    taken = [_take(plane, _HOURLY) for _ in range(3)]
    driver.stop()
    client = plane.client()
    eventually(lambda: not client.job(JOB).is_alive)
    gone, log = _dispose(plane, RetainSpec(count=1))
    assert gone == []
    assert "job 'flights' has not been running since" in log
    assert all(Path(each.path).exists() for each in taken)


def test_a_database_that_is_away_is_a_line_in_the_log(plane: Plane) -> None:
    gone, log = _dispose(plane, RetainSpec(count=1))
    assert gone == []
    assert "the old savepoints of hourly could not all be removed: " in log
