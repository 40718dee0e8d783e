"""What the sensor says of how jobs are: the outcomes of checks, and how queries fare."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from coord_control.dagster.asset_checks import CHECKS
from coord_control.dagster.feed.cursor import Cursor
from coord_control.dagster.feed.tick import TickLimits
from coord_control.dagster.spec import CheckBounds
from tests.dagster.sensor_kit import JOB, QUERY, Jobs, SensorRig, await_next_second, jobs_in, number, spec

# --- checks


def test_checks_are_shown_for_the_newest_materialization_whoever_has_made_it(tmp_path: Path) -> None:
    with dg.instance_for_test() as instance, jobs_in(tmp_path / "control.db") as jobs:  # Dagster's usual storage
        jobs.put()
        rig = SensorRig(tmp_path, instance, [spec(checks=CheckBounds(checkpoint_duration=1.0))])
        jobs.checkpoint()
        rig.tick()
        assert rig.checks() == {
            "running": True,
            "checkpoint_freshness": True,
            "failed_checkpoints": True,
            "checkpoint_duration": False,
            "blocked_time": True,
            "restart_rate": True,
            "lag": True,
            "backlog": True,
        }
        run = rig.run()
        record = jobs.checkpoint_of_run(run)
        rig.run_reports(run, record)
        assert rig.checks() == {}  # what Dagster makes of a newer materialization by a run
        rig.run_ends(run, well=True)
        rig.tick()
        await_next_second()  # SQLite knows the time of an outcome to the second; ticks are 15 of them apart
        rig.tick()

        assert len(rig.checks()) == len(CHECKS)
        assert rig.checks()["checkpoint_duration"] is False


def test_materializations_come_before_the_outcomes_of_checks(rig: SensorRig, jobs: Jobs) -> None:
    jobs.checkpoint()
    jobs.recovery()
    kinds = [type(event).__name__ for event in rig.tick()]

    assert kinds[:2] == ["AssetMaterialization", "AssetObservation"]
    assert kinds[-len(CHECKS) :] == ["AssetCheckEvaluation"] * len(CHECKS)


def test_an_outcome_is_told_when_it_changes(rig: SensorRig, jobs: Jobs) -> None:
    rig.tick()
    assert rig.tick() == []
    jobs.failed()
    told = [event for event in rig.tick() if isinstance(event, dg.AssetCheckEvaluation)]
    assert [(event.check_name, event.passed) for event in told] == [("failed_checkpoints", False)]
    jobs.checkpoint()
    rig.tick()

    assert rig.checks()["failed_checkpoints"] is True


def test_outcomes_are_told_again_after_a_while(rig: SensorRig, jobs: Jobs) -> None:
    rig.tick()
    assert rig.cursor is not None
    cursor = Cursor.decode(rig.cursor)
    mark = cursor.jobs[JOB]
    rig.cursor = rig.cursor.replace(str(mark.checked_at), str(mark.checked_at - 301))

    assert len(rig.tick()) == len(CHECKS)


def test_of_very_many_jobs_all_outcomes_are_told_after_a_new_checkpoint_and_some_again_for_their_age(
    tmp_path: Path,
) -> None:
    names = [f"job{each}" for each in range(5)]
    with dg.instance_for_test() as instance, jobs_in(tmp_path / "control.db") as jobs:
        rig = SensorRig(tmp_path, instance, [spec(name) for name in names], limits=TickLimits(repeats=2))
        for name in names:
            jobs.put(name)
        assert _told(rig) == dict.fromkeys(names, len(CHECKS))
        rig.tick_until_quiet()
        for name in names:
            jobs.checkpoint(name)
        assert _told(rig) == dict.fromkeys(names, len(CHECKS))
        assert rig.cursor is not None
        cursor = Cursor.decode(rig.cursor)
        aged = {name: replace(mark, checked_at=mark.checked_at - 301) for name, mark in cursor.jobs.items()}
        rig.cursor = replace(cursor, jobs=aged).encode()
        ticks = [_told(rig) for _ in range(4)]

    assert [len(told) for told in ticks] == [2, 2, 1, 0]
    assert {name: len(CHECKS) for told in ticks for name in told} == dict.fromkeys(names, len(CHECKS))


def _told(rig: SensorRig) -> dict[str, int]:
    """One tick: how many outcomes of each job were told."""
    events = [event for event in rig.tick() if isinstance(event, dg.AssetCheckEvaluation)]
    return dict(Counter(event.asset_key.path[0] for event in events))


# --- queries


def test_a_query_is_observed_when_its_epoch_has_moved(rig: SensorRig, jobs: Jobs) -> None:
    def observed() -> list[Any]:
        page = rig.instance.fetch_observations(rig.assets.queries[QUERY], 100, ascending=True)
        return [record.asset_observation for record in page.records]

    jobs.live(epoch=42)
    rig.tick()
    rig.tick()
    jobs.live(epoch=43)
    rig.tick()

    assert [number(each, "epoch") for each in observed()] == [42, 43]
    assert number(observed()[0], "rows_per_second") == 1234.0
    assert number(observed()[0], "backlog") == 56789
    assert number(observed()[0], "lag_seconds") == 2.5


def test_of_very_many_queries_some_are_observed_in_each_tick(tmp_path: Path) -> None:
    names = [f"job{each}" for each in range(5)]
    with dg.instance_for_test() as instance, jobs_in(tmp_path / "control.db") as jobs:
        rig = SensorRig(tmp_path, instance, [spec(name) for name in names], limits=TickLimits(observations=2))
        for name in names:
            jobs.put(name)
        seen = []
        for epoch in range(42, 47):
            for name in names:
                jobs.live(name, epoch=epoch)
            events = [event for event in rig.tick() if isinstance(event, dg.AssetObservation)]
            seen.append([event.asset_key.path[0] for event in events])

    assert seen == [["job0", "job1"], ["job2", "job3"], ["job4", "job0"], ["job1", "job2"], ["job3", "job4"]]
