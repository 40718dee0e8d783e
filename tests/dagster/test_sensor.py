from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from coord_control.storage.records import CheckpointRecord
from dagster_defs.cursor import Cursor
from dagster_defs.metadata import NAMESPACE
from dagster_defs.own_runs import RUN_ACTOR
from dagster_defs.sensor import SENSOR_NAME
from dagster_defs.spec import CheckBounds
from dagster_defs.tick import Limits
from tests.dagster.sensor_kit import JOB, QUERY, Jobs, World, jobs_in, number, spec, text


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with dg.instance_for_test() as instance:
        yield World(tmp_path, instance)


@pytest.fixture
def jobs(world: World) -> Iterator[Jobs]:
    with jobs_in(world.file) as jobs:
        jobs.put()
        yield jobs


def _until_quiet(world: World) -> None:
    for _ in range(50):
        world.tick()
        if world.skipped is not None and "more changes" not in world.skipped:
            return
    raise AssertionError("it did not come to an end")


# --- exactly once, in order


def test_checkpoints_of_others_appear_once_in_the_order_in_which_they_settled(world: World, jobs: Jobs) -> None:
    for id_ in (2, 1, 4, 3):
        jobs.checkpoint(id=id_)
    world.tick()
    jobs.checkpoint(id=6, requested_by="ada")
    jobs.checkpoint(id=5)
    world.tick()
    world.tick()

    assert world.materialized() == [2, 1, 4, 3, 6, 5]


def test_a_savepoint_is_a_materialization_of_its_own_asset(world: World, jobs: Jobs) -> None:
    jobs.savepoint(label="before-upgrade")
    world.tick()

    assert world.materialized(world.assets.savepoint) == [1]
    assert world.materialized() == []


def test_what_the_sensor_reports_says_so_and_has_the_parts_of_all_subtasks(world: World, jobs: Jobs) -> None:
    jobs.checkpoint()
    jobs.recovery()
    world.tick()

    event = world.instance.get_latest_materialization_event(world.assets.checkpoint)
    assert event is not None
    assert event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    assert metadata[f"{NAMESPACE}reported_by"].value == "sensor"
    assert metadata[f"{NAMESPACE}sequence"].value == 1
    table = metadata[f"{NAMESPACE}subtask_table"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [record.data["subtask"] for record in table.records] == [0, 1]
    assert "recovery" in str(metadata)


def test_a_failed_checkpoint_is_an_observation_and_turns_its_check(world: World, jobs: Jobs) -> None:
    jobs.checkpoint()
    jobs.failed()
    world.tick()
    world.tick()

    assert world.materialized() == [1]
    [failed] = world.observed()
    assert number(failed, "failed_checkpoint_id") == 2
    assert text(failed, "reason") == "timeout"
    assert text(failed, "message") == "too slow"
    assert world.checks()["failed_checkpoints"] is False


def test_one_that_was_thought_to_have_failed_and_is_complete_is_both(world: World, jobs: Jobs) -> None:
    failed = jobs.failed()
    world.tick()
    jobs.checkpoint(id=failed.id, triggered_at=failed.triggered_at)
    world.tick()
    world.tick()

    assert world.materialized() == [1]
    assert len(world.observed()) == 1


def test_a_recovery_is_an_observation_of_the_checkpoints_and_of_its_query(world: World, jobs: Jobs) -> None:
    jobs.recovery()
    jobs.recovery(query=None, cause="restore", generation=2)
    world.tick()
    world.tick()

    of_checkpoints = world.observed()
    assert [text(each, "recovery_cause") for each in of_checkpoints] == ["driver_died", "restore"]
    first = of_checkpoints[0]
    assert number(first, "from_checkpoint") == 3
    assert number(first, "from_epoch") == 40
    assert number(first, "recovery_seconds") == 3.0
    assert number(first, "epochs_rerun") == 1
    [of_query] = world.observed(world.assets.queries[QUERY])
    assert text(of_query, "recovery_cause") == "driver_died"


def test_two_recoveries_right_after_each_other_are_two(world: World, jobs: Jobs) -> None:
    begun = datetime.now(UTC)
    for after in (0.0, 0.5):
        jobs.recovery(cause="query_failed", started_at=begun + timedelta(seconds=after), duration_seconds=None)
        world.cursor = None
        world.tick()

    assert len(world.observed()) == 2


# --- whatever happens to the cursor


def test_a_lost_cursor_repeats_nothing_and_misses_nothing(world: World, jobs: Jobs) -> None:
    jobs.checkpoint()
    jobs.recovery()
    jobs.failed()
    world.tick()
    jobs.savepoint()
    jobs.checkpoint()
    world.cursor = None
    world.tick()
    world.cursor = None
    world.tick()

    assert world.materialized() == [1, 4]
    assert world.materialized(world.assets.savepoint) == [3]
    assert len(world.observed()) == 2
    assert len(world.observed(world.assets.queries[QUERY])) == 1


@pytest.mark.parametrize("cursor", ["nonsense", "zlib:AAAA", "zlib:not base64", '{"version": 2}', "{}", "17"])
def test_a_corrupt_cursor_repeats_nothing_and_misses_nothing(world: World, jobs: Jobs, cursor: str) -> None:
    jobs.checkpoint()
    world.tick()
    jobs.checkpoint()
    world.cursor = cursor
    world.tick()
    world.tick()

    assert world.materialized() == [1, 2]


def test_a_tick_that_dies_after_each_of_its_events_repeats_nothing_and_misses_nothing(world: World, jobs: Jobs) -> None:
    world.tick()
    jobs.checkpoint()
    jobs.recovery()
    jobs.savepoint()
    jobs.failed()
    jobs.checkpoint()
    for _ in range(8):
        world.tick(dies_after=1)
    world.tick()

    assert world.materialized() == [1, 4]
    assert world.materialized(world.assets.savepoint) == [2]
    assert [len(world.observed()), len(world.observed(world.assets.queries[QUERY]))] == [2, 1]


def test_a_tick_that_died_before_its_cursor_was_stored_is_repeated_without_its_facts(world: World, jobs: Jobs) -> None:
    world.tick()
    jobs.checkpoint()
    jobs.recovery()
    stored = len(world.look().asset_events)
    world.tick(dies_after=stored)
    jobs.checkpoint()
    world.tick()

    assert world.materialized() == [1, 2]
    assert len(world.observed()) == 1


def test_checks_come_after_the_materialization_also_when_the_tick_between_them_died(world: World, jobs: Jobs) -> None:
    world.tick()
    jobs.checkpoint()
    world.tick(dies_after=1)
    later = world.tick()

    assert {event.check_name for event in later if isinstance(event, dg.AssetCheckEvaluation)} >= {"running", "lag"}


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_every_fact_is_there_once(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    specs = [spec("a"), spec("b")]
    made: dict[str, list[int]] = {"a": [], "b": []}
    recovered = {"a": 0, "b": 0}

    def checkpoint(world: World, jobs: Jobs) -> None:
        job = dice.choice("ab")
        made[job].append(jobs.checkpoint(job).id)

    def recover(world: World, jobs: Jobs) -> None:
        job = dice.choice("ab")
        jobs.recovery(job, started_at=datetime.now(UTC))
        recovered[job] += 1

    def tick(world: World, jobs: Jobs) -> None:
        world.tick()

    def die(world: World, jobs: Jobs) -> None:
        world.tick(dies_after=dice.randrange(6))

    def lose(world: World, jobs: Jobs) -> None:
        world.cursor = dice.choice([None, "nonsense"])

    def older(world: World, jobs: Jobs) -> None:
        world.cursor = dice.choice(cursors)

    cursors: list[str | None] = [None]
    actions: list[Callable[[World, Jobs], None]] = [checkpoint, checkpoint, recover, tick, die, lose, older]
    with dg.instance_for_test() as instance, jobs_in(tmp_path / "control.db") as jobs:
        world = World(tmp_path, instance, specs, limits=Limits(changes=dice.choice([1, 3, 100])))
        for name in made:
            jobs.put(name)
        for _ in range(60):
            dice.choice(actions)(world, jobs)
            cursors.append(world.cursor)
        _until_quiet(world)
        for name in made:
            assert world.materialized(dg.AssetKey([name, "checkpoint"])) == made[name]
            assert len(world.observed(dg.AssetKey([name, "checkpoint"]))) == recovered[name]
            assert len(world.observed(dg.AssetKey([name, "query", QUERY]))) == recovered[name]


# --- bounded work


def test_many_changes_are_worked_off_in_several_ticks(world: World, jobs: Jobs) -> None:
    world.limits = Limits(changes=100)
    for _ in range(250):
        jobs.checkpoint()
    counts = []
    for _ in range(4):
        world.tick()
        counts.append(len(world.materialized()))

    assert counts == [100, 200, 250, 250]
    assert world.materialized() == list(range(1, 251))


def test_checkpoints_with_very_many_subtasks_are_spread_over_ticks(world: World, jobs: Jobs) -> None:
    world.limits = Limits(subtasks=5)
    for subtasks in (9, 3, 2, 1):
        jobs.checkpoint(subtasks=subtasks)
    counts = []
    for _ in range(3):
        world.tick()
        counts.append(len(world.materialized()))

    assert counts == [1, 3, 4]


def test_a_tick_without_time_leaves_everything_to_the_next(world: World, jobs: Jobs) -> None:
    jobs.checkpoint()
    world.limits = Limits(seconds=0.0)
    world.tick()
    assert world.materialized() == []
    world.limits = None
    world.tick()

    assert world.materialized() == [1]


def test_history_from_before_the_first_start_is_left_out(world: World, jobs: Jobs) -> None:
    world.limits = Limits(changes=3)
    for _ in range(10):
        jobs.checkpoint(age=timedelta(hours=25))
    for _ in range(2):
        jobs.checkpoint(age=timedelta(hours=23))
    world.tick()

    assert world.materialized() == [11, 12]


def test_what_was_recorded_late_is_told(world: World, jobs: Jobs) -> None:
    world.tick()
    jobs.checkpoint(age=timedelta(hours=20))  # the driver could not reach the database for so long
    world.tick()
    world.tick()

    assert world.materialized() == [1]


# --- our own runs


def _own(world: World, jobs: Jobs, run_id: str) -> CheckpointRecord:
    return jobs.checkpoint(requested_by=f"{RUN_ACTOR}{run_id}", key="command:1", cause="command")


def test_what_a_run_of_ours_has_reported_is_not_repeated(world: World, jobs: Jobs) -> None:
    run = world.run()
    record = _own(world, jobs, run)
    world.run_reports(run, record)
    world.run_ends(run, well=True)
    world.tick()
    world.cursor = None
    world.tick()

    assert world.materialized() == [1]


def test_a_run_that_goes_on_is_waited_for_and_holds_nobody_up(world: World, jobs: Jobs) -> None:
    run = world.run()
    record = _own(world, jobs, run)
    jobs.checkpoint()
    world.tick()
    world.tick()
    assert world.materialized() == [2]
    world.run_reports(run, record)
    world.tick()
    world.run_ends(run, well=True)
    world.tick()
    world.tick()

    assert world.materialized() == [2, 1]


def test_a_run_that_was_killed_before_it_could_report_is_spoken_for_once(world: World, jobs: Jobs) -> None:
    run = world.run()
    _own(world, jobs, run)
    jobs.checkpoint()
    world.tick()
    world.run_ends(run, well=False)
    world.tick()
    world.tick()
    assert world.materialized() == [2, 1]
    world.cursor = None
    world.tick()

    assert world.materialized() == [2, 1]


def test_a_tick_that_dies_after_it_has_spoken_for_a_run_does_not_do_it_again(world: World, jobs: Jobs) -> None:
    run = world.run()
    _own(world, jobs, run)
    world.tick()
    world.run_ends(run, well=False)
    jobs.checkpoint()
    for dies_after in (1, 1, 2):
        world.tick(dies_after=dies_after)
    world.tick()
    world.tick()

    assert world.materialized() == [1, 2]


def test_a_retry_that_goes_on_with_the_same_checkpoint_is_waited_for(world: World, jobs: Jobs) -> None:
    run = world.run(tags={"dagster/max_retries": "1"})
    record = _own(world, jobs, run)
    world.instance.add_run_tags(run, {"dagster/will_retry": "true"})
    world.run_ends(run, well=False)
    world.tick()
    assert world.materialized() == []
    retry = world.run(tags={"dagster/root_run_id": run, "dagster/parent_run_id": run})
    world.instance.add_run_tags(run, {"dagster/auto_retry_run_id": retry})
    world.tick()
    assert world.materialized() == []
    world.run_reports(retry, record)
    world.run_ends(retry, well=True)
    world.tick()
    world.tick()

    assert world.materialized() == [1]


def test_a_run_of_a_schedule_is_waited_for(world: World, jobs: Jobs) -> None:
    run = world.run(tags={"dagster/schedule_name": "nightly"})
    jobs.checkpoint(requested_by="dagster:schedule:nightly")
    jobs.checkpoint(requested_by="dagster:schedule:other")
    world.tick()
    assert world.materialized() == [2]
    world.run_ends(run, well=False)
    world.tick()

    assert world.materialized() == [2, 1]


def test_a_run_of_another_deployment_is_none_of_ours(world: World, jobs: Jobs) -> None:
    _own(world, jobs, "2f1b0c1e-0000-4000-8000-000000000000")
    world.tick()

    assert world.materialized() == [1]


def test_what_a_run_of_ours_could_not_complete_is_observed_at_once(world: World, jobs: Jobs) -> None:
    run = world.run()
    jobs.failed(requested_by=f"{RUN_ACTOR}{run}")
    world.tick()
    world.run_ends(run, well=False)
    world.tick()

    assert len(world.observed()) == 1


# --- checks


def test_checks_are_shown_for_the_newest_materialization_whoever_has_made_it(world: World, jobs: Jobs) -> None:
    world.specs = [spec(checks=CheckBounds(checkpoint_duration=1.0))]
    jobs.checkpoint()
    world.tick()
    assert world.checks() == {
        "running": True,
        "checkpoint_freshness": True,
        "failed_checkpoints": True,
        "checkpoint_duration": False,
        "blocked_time": True,
        "restart_rate": True,
        "lag": True,
    }
    run = world.run()
    record = _own(world, jobs, run)
    world.run_reports(run, record)
    assert world.checks() == {}  # what Dagster makes of a newer materialization by a run
    world.run_ends(run, well=True)
    world.tick()
    world.tick()

    assert len(world.checks()) == 7
    assert world.checks()["checkpoint_duration"] is False


def test_materializations_come_before_the_outcomes_of_checks(world: World, jobs: Jobs) -> None:
    jobs.checkpoint()
    jobs.recovery()
    kinds = [type(event).__name__ for event in world.tick()]

    assert kinds[:2] == ["AssetMaterialization", "AssetObservation"]
    assert kinds[-7:] == ["AssetCheckEvaluation"] * 7


def test_an_outcome_is_told_when_it_changes(world: World, jobs: Jobs) -> None:
    world.tick()
    assert world.tick() == []
    jobs.failed()
    told = [event for event in world.tick() if isinstance(event, dg.AssetCheckEvaluation)]
    assert [(event.check_name, event.passed) for event in told] == [("failed_checkpoints", False)]
    jobs.checkpoint()
    world.tick()

    assert world.checks()["failed_checkpoints"] is True


def test_outcomes_are_told_again_after_a_while(world: World, jobs: Jobs) -> None:
    world.tick()
    assert world.cursor is not None
    cursor = Cursor.decode(world.cursor)
    mark = cursor.jobs[JOB]
    world.cursor = world.cursor.replace(str(mark.checked_at), str(mark.checked_at - 301))

    assert len(world.tick()) == 7


# --- queries


def test_a_query_is_observed_when_its_epoch_has_moved(world: World, jobs: Jobs) -> None:
    def observed() -> list[Any]:
        page = world.instance.fetch_observations(world.assets.queries[QUERY], 100, ascending=True)
        return [record.asset_observation for record in page.records]

    jobs.live(epoch=42)
    world.tick()
    world.tick()
    jobs.live(epoch=43)
    world.tick()

    assert [number(each, "epoch") for each in observed()] == [42, 43]
    assert number(observed()[0], "rows_per_second") == 1234.0
    assert number(observed()[0], "lag_seconds") == 2.5


def test_of_very_many_queries_some_are_observed_in_each_tick(tmp_path: Path) -> None:
    names = [f"job{each}" for each in range(5)]
    with dg.instance_for_test() as instance, jobs_in(tmp_path / "control.db") as jobs:
        world = World(tmp_path, instance, [spec(name) for name in names], limits=Limits(observations=2))
        for name in names:
            jobs.put(name)
        seen = []
        for epoch in range(42, 47):
            for name in names:
                jobs.live(name, epoch=epoch)
            events = [event for event in world.tick() if isinstance(event, dg.AssetObservation)]
            seen.append([event.asset_key.path[0] for event in events])

    assert seen == [["job0", "job1"], ["job2", "job3"], ["job4", "job0"], ["job1", "job2"], ["job3", "job4"]]


# --- jobs and databases that come and go


def test_a_job_that_appears_later_is_told_from_its_first_checkpoint(world: World, jobs: Jobs) -> None:
    world.specs = [spec(), spec("later")]
    world.tick()
    assert world.checks(dg.AssetKey(["later", "checkpoint"]))["running"] is False
    jobs.put("later")
    jobs.checkpoint("later")
    world.tick()
    world.tick()

    assert world.materialized(dg.AssetKey(["later", "checkpoint"])) == [1]
    assert world.checks(dg.AssetKey(["later", "checkpoint"]))["running"] is True


def test_the_changes_of_a_job_that_went_by_before_it_was_one_of_ours_are_caught_up(world: World, jobs: Jobs) -> None:
    world.limits = Limits(changes=2)
    jobs.put("later")
    for _ in range(5):
        jobs.checkpoint("later")
        jobs.checkpoint()
        _until_quiet(world)
    world.specs = [spec(), spec("later")]
    jobs.checkpoint()
    jobs.checkpoint("later")
    _until_quiet(world)

    assert world.materialized(dg.AssetKey(["later", "checkpoint"])) == [1, 2, 3, 4, 5, 6]
    assert world.materialized() == [1, 2, 3, 4, 5, 6]


def test_a_job_whose_history_was_forgotten_and_written_anew_repeats_nothing(world: World, jobs: Jobs) -> None:
    record = jobs.checkpoint()
    jobs.checkpoint()
    world.tick()
    jobs.store.jobs.forget(JOB, force=True)
    world.tick()
    assert world.checks()["running"] is False
    jobs.put(generation=2)
    jobs.checkpoint(id=1, triggered_at=record.triggered_at, finished_at=record.finished_at)
    jobs.checkpoint(id=3)
    world.tick()
    world.tick()

    assert world.materialized() == [1, 2, 3]


def test_a_job_that_was_forgotten_between_two_ticks_repeats_nothing(world: World, jobs: Jobs) -> None:
    record = jobs.checkpoint()
    world.tick()
    jobs.store.jobs.forget(JOB, force=True)
    jobs.put(generation=2)
    jobs.checkpoint(id=1, triggered_at=record.triggered_at, finished_at=record.finished_at)
    world.tick()

    assert world.materialized() == [1]


def test_a_database_that_cannot_be_reached_is_a_reason_to_skip(world: World, jobs: Jobs) -> None:
    jobs.checkpoint()
    world.tick()
    before = world.cursor
    away = world.file.rename(world.folder / "away.db")
    world.file.mkdir()
    assert world.tick() == []
    assert world.skipped is not None
    assert "control database" in world.skipped
    assert world.cursor == before
    world.file.rmdir()
    away.rename(world.file)
    jobs.checkpoint()
    world.tick()

    assert world.materialized() == [1, 2]


def test_a_database_that_does_not_answer_is_a_reason_to_skip(world: World, jobs: Jobs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        world.address = f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/none"
        assert world.tick() == []

    assert world.skipped is not None
    assert "no answer" in world.skipped


def test_an_empty_database_in_its_place_begins_anew_and_repeats_nothing(world: World) -> None:
    with jobs_in(world.file) as jobs:
        jobs.put()
        records = [jobs.checkpoint() for _ in range(5)]
        world.tick()
    _remove(world.file)
    with jobs_in(world.file) as jobs:
        world.tick()
        jobs.put()
        for record in records[3:]:  # the driver finds them on its storage
            jobs.checkpoint(id=record.id, triggered_at=record.triggered_at, finished_at=record.finished_at)
        jobs.checkpoint(id=6)
        world.tick()
        world.tick()

    assert world.materialized() == [1, 2, 3, 4, 5, 6]


def test_another_database_with_more_changes_than_were_seen_misses_nothing(world: World) -> None:
    with jobs_in(world.file) as jobs:
        jobs.put()
        jobs.checkpoint()
        world.tick()
    _remove(world.file)
    with jobs_in(world.file) as jobs:
        jobs.put()
        for id_ in range(2, 8):
            jobs.checkpoint(id=id_)
        world.tick()
        world.tick()

    assert world.materialized() == [1, 2, 3, 4, 5, 6, 7]


def test_ids_that_begin_again_in_an_emptied_folder_are_other_checkpoints(world: World, jobs: Jobs) -> None:
    jobs.checkpoint(id=1, age=timedelta(minutes=5))
    world.tick()
    jobs.store.jobs.forget(JOB, force=True)
    jobs.put()
    jobs.checkpoint(id=1)
    world.tick()

    assert world.materialized() == [1, 1]


def _remove(file: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()


def test_a_sensor_is_on_by_default_and_looks_every_15_seconds(world: World) -> None:
    sensor = world.sensor()

    assert sensor.name == SENSOR_NAME
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert sensor.minimum_interval_seconds == 15
