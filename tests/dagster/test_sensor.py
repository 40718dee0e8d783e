"""The sensor, tick by tick: every change becomes an event once, whatever dies or is lost; bounded work."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from coord_control.dagster.definitions.sensor import SENSOR_NAME
from coord_control.dagster.feed.tick import TickLimits
from coord_control.dagster.metadata import NAMESPACE
from tests.dagster.sensor_kit import QUERY, Jobs, SensorRig, jobs_in, number, spec, text
from tests.storage.kit import statements


def test_a_sensor_is_on_by_default_and_looks_every_15_seconds(rig: SensorRig) -> None:
    sensor = rig.sensor()

    assert sensor.name == SENSOR_NAME
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert sensor.minimum_interval_seconds == 15


# --- exactly once, in order


def test_checkpoints_of_others_appear_once_in_the_order_in_which_they_settled(rig: SensorRig, jobs: Jobs) -> None:
    for id_ in (2, 1, 4, 3):
        jobs.checkpoint(id=id_)
    rig.tick()
    jobs.checkpoint(id=6, requested_by="ada")
    jobs.checkpoint(id=5)
    rig.tick()
    rig.tick()

    assert rig.materialized() == [2, 1, 4, 3, 6, 5]


def test_a_savepoint_is_a_materialization_of_its_own_asset(rig: SensorRig, jobs: Jobs) -> None:
    jobs.savepoint(label="before-upgrade")
    rig.tick()

    assert rig.materialized(rig.assets.savepoint) == [1]
    assert rig.materialized() == []


def test_what_the_sensor_reports_says_so_and_has_the_parts_of_all_subtasks(rig: SensorRig, jobs: Jobs) -> None:
    jobs.checkpoint()
    jobs.recovery()
    rig.tick()

    event = rig.instance.get_latest_materialization_event(rig.assets.checkpoint)
    assert event is not None
    assert event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    assert metadata[f"{NAMESPACE}reported_by"].value == "sensor"
    assert metadata[f"{NAMESPACE}sequence"].value == "1"
    table = metadata[f"{NAMESPACE}subtask_table"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [record.data["subtask"] for record in table.records] == [0, 1]
    assert "recovery" in str(metadata)


def test_a_failed_checkpoint_is_an_observation_and_turns_its_check(rig: SensorRig, jobs: Jobs) -> None:
    jobs.checkpoint()
    jobs.failed()
    rig.tick()
    rig.tick()

    assert rig.materialized() == [1]
    [failed] = rig.observed()
    assert text(failed, "failed_checkpoint_id") == "2"
    assert text(failed, "reason") == "timeout"
    assert text(failed, "message") == "too slow"
    table = failed.metadata[f"{NAMESPACE}subtask_table"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [record.data["passed_seconds"] for record in table.records] == [0.1, None], "it waited for the second one"
    assert rig.checks()["failed_checkpoints"] is False


def test_one_that_was_thought_to_have_failed_and_is_complete_is_both(rig: SensorRig, jobs: Jobs) -> None:
    failed = jobs.failed()
    rig.tick()
    jobs.checkpoint(id=failed.id, triggered_at=failed.triggered_at)
    rig.tick()
    rig.tick()

    assert rig.materialized() == [1]
    assert len(rig.observed()) == 1


def test_a_recovery_is_an_observation_of_the_checkpoints_and_of_its_query(rig: SensorRig, jobs: Jobs) -> None:
    jobs.recovery()
    jobs.recovery(query=None, cause="restore", generation=2)
    rig.tick()
    rig.tick()

    of_checkpoints = rig.observed()
    assert [text(each, "recovery_cause") for each in of_checkpoints] == ["driver_died", "restore"]
    first = of_checkpoints[0]
    assert text(first, "from_checkpoint") == "3"
    assert text(first, "from_epoch") == "40"
    assert number(first, "recovery_seconds") == 3.0
    assert number(first, "epochs_rerun") == 1
    [of_query] = rig.observed(rig.assets.queries[QUERY])
    assert text(of_query, "recovery_cause") == "driver_died"


def test_two_recoveries_right_after_each_other_are_two(rig: SensorRig, jobs: Jobs) -> None:
    begun = datetime.now(UTC)
    for after in (0.0, 0.5):
        jobs.recovery(cause="query_failed", started_at=begun + timedelta(seconds=after), duration_seconds=None)
        rig.cursor = None
        rig.tick()

    assert len(rig.observed()) == 2


# --- whatever happens to the cursor


def test_what_an_earlier_release_has_reported_with_ids_as_numbers_is_not_reported_again(
    rig: SensorRig, jobs: Jobs
) -> None:
    jobs.checkpoint()
    jobs.failed()
    jobs.recovery()
    ids = ("checkpoint_id", "failed_checkpoint_id", "generation")
    for event in rig.look().asset_events:
        if isinstance(event, (dg.AssetMaterialization, dg.AssetObservation)):
            old = {
                name: dg.MetadataValue.int(int(str(value.value))) if name.removeprefix(NAMESPACE) in ids else value
                for name, value in event.metadata.items()
            }
            kind = type(event)
            rig.instance.report_runless_asset_event(kind(event.asset_key, metadata=old))
    rig.tick()

    assert len(rig.instance.fetch_materializations(rig.assets.checkpoint, 10).records) == 1
    assert [type(event) for event in rig.observed()] == [dg.AssetObservation] * 2


def test_a_lost_cursor_repeats_nothing_and_misses_nothing(rig: SensorRig, jobs: Jobs) -> None:
    jobs.checkpoint()
    jobs.recovery()
    jobs.failed()
    rig.tick()
    jobs.savepoint()
    jobs.checkpoint()
    rig.cursor = None
    rig.tick()
    rig.cursor = None
    rig.tick()

    assert rig.materialized() == [1, 4]
    assert rig.materialized(rig.assets.savepoint) == [3]
    assert len(rig.observed()) == 2
    assert len(rig.observed(rig.assets.queries[QUERY])) == 1


@pytest.mark.parametrize("cursor", ["nonsense", "zlib:AAAA", "zlib:not base64", '{"version": 2}', "{}", "17"])
def test_a_corrupt_cursor_repeats_nothing_and_misses_nothing(rig: SensorRig, jobs: Jobs, cursor: str) -> None:
    jobs.checkpoint()
    rig.tick()
    jobs.checkpoint()
    rig.cursor = cursor
    rig.tick()
    rig.tick()

    assert rig.materialized() == [1, 2]


def test_a_tick_that_dies_after_each_of_its_events_repeats_nothing_and_misses_nothing(
    rig: SensorRig, jobs: Jobs
) -> None:
    rig.tick()
    jobs.checkpoint()
    jobs.recovery()
    jobs.savepoint()
    jobs.failed()
    jobs.checkpoint()
    for _ in range(8):
        rig.tick(dies_after=1)
    rig.tick()

    assert rig.materialized() == [1, 4]
    assert rig.materialized(rig.assets.savepoint) == [2]
    assert [len(rig.observed()), len(rig.observed(rig.assets.queries[QUERY]))] == [2, 1]


def test_a_tick_that_died_before_its_cursor_was_stored_is_repeated_without_its_facts(
    rig: SensorRig, jobs: Jobs
) -> None:
    rig.tick()
    jobs.checkpoint()
    jobs.recovery()
    stored = len(rig.look().asset_events)
    rig.tick(dies_after=stored)
    jobs.checkpoint()
    rig.tick()

    assert rig.materialized() == [1, 2]
    assert len(rig.observed()) == 1


def test_checks_come_after_the_materialization_also_when_the_tick_between_them_died(rig: SensorRig, jobs: Jobs) -> None:
    rig.tick()
    jobs.checkpoint()
    rig.tick(dies_after=1)
    later = rig.tick()

    assert {event.check_name for event in later if isinstance(event, dg.AssetCheckEvaluation)} >= {"running", "lag"}


# Seeds of which one looks at a change at a time, one at three and one at all; the other seeds are for the night.
@pytest.mark.parametrize("seed", [0, 1, 5, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3, 4))])
def test_whatever_happens_every_fact_is_there_once(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    specs = [spec("a"), spec("b")]
    made: dict[str, list[int]] = {"a": [], "b": []}
    recovered = {"a": 0, "b": 0}

    def checkpoint(rig: SensorRig, jobs: Jobs) -> None:
        job = dice.choice("ab")
        made[job].append(jobs.checkpoint(job).id)

    def recover(rig: SensorRig, jobs: Jobs) -> None:
        job = dice.choice("ab")
        jobs.recovery(job, started_at=datetime.now(UTC))
        recovered[job] += 1

    def tick(rig: SensorRig, jobs: Jobs) -> None:
        rig.tick()

    def die(rig: SensorRig, jobs: Jobs) -> None:
        rig.tick(dies_after=dice.randrange(6))

    def lose(rig: SensorRig, jobs: Jobs) -> None:
        rig.cursor = dice.choice([None, "nonsense"])

    def older(rig: SensorRig, jobs: Jobs) -> None:
        rig.cursor = dice.choice(cursors)

    cursors: list[str | None] = [None]
    actions: list[Callable[[SensorRig, Jobs], None]] = [checkpoint, checkpoint, recover, tick, die, lose, older]
    with dg.instance_for_test() as instance, jobs_in(tmp_path / "control.db") as jobs:
        rig = SensorRig(tmp_path, instance, specs, limits=TickLimits(changes=dice.choice([1, 3, 100])))
        for name in made:
            jobs.put(name)
        for _ in range(60):
            dice.choice(actions)(rig, jobs)
            cursors.append(rig.cursor)
        rig.tick_until_quiet()
        for name in made:
            assert rig.materialized(dg.AssetKey([name, "checkpoint"])) == made[name]
            assert len(rig.observed(dg.AssetKey([name, "checkpoint"]))) == recovered[name]
            assert len(rig.observed(dg.AssetKey([name, "query", QUERY]))) == recovered[name]


# --- bounded work


def test_many_changes_are_worked_off_in_several_ticks(rig: SensorRig, jobs: Jobs) -> None:
    rig.limits = TickLimits(changes=100)
    for _ in range(250):
        jobs.checkpoint()
    counts = []
    for _ in range(4):
        rig.tick()
        counts.append(len(rig.materialized()))

    assert counts == [100, 200, 250, 250]
    assert rig.materialized() == list(range(1, 251))


def test_many_jobs_take_as_many_statements_as_few(tmp_path: Path) -> None:
    counts = []
    for many in (2, 40):
        folder = tmp_path / str(many)
        folder.mkdir()
        names = [f"job-{number}" for number in range(many)]
        with dg.DagsterInstance.ephemeral() as instance, jobs_in(folder / "control.db") as jobs:
            rig = SensorRig(folder, instance, [spec(name) for name in names])
            for name in names:
                jobs.put(name)
            for tick in range(3):
                for name in names:
                    jobs.checkpoint(name)
                    jobs.live(name, epoch=tick)
                with statements(str(rig.file)) as asked:
                    found = rig.look()
                rig.cursor = found.cursor
            told = {event.asset_key for event in found.asset_events if isinstance(event, dg.AssetMaterialization)}
            assert len(told) == many
            counts.append(len(asked))

    assert counts[0] == counts[1]
    assert counts[1] <= 30


def test_checkpoints_with_very_many_subtasks_are_spread_over_ticks(rig: SensorRig, jobs: Jobs) -> None:
    rig.limits = TickLimits(subtasks=5)
    for subtasks in (9, 3, 2, 1):
        jobs.checkpoint(subtasks=subtasks)
    counts = []
    for _ in range(3):
        rig.tick()
        counts.append(len(rig.materialized()))

    assert counts == [1, 3, 4]


def test_a_tick_without_time_leaves_everything_to_the_next(rig: SensorRig, jobs: Jobs) -> None:
    jobs.checkpoint()
    rig.limits = TickLimits(seconds=0.0)
    rig.tick()
    assert rig.materialized() == []
    rig.limits = None
    rig.tick()

    assert rig.materialized() == [1]


def test_history_from_before_the_first_start_is_left_out(rig: SensorRig, jobs: Jobs) -> None:
    rig.limits = TickLimits(changes=3)
    for _ in range(10):
        jobs.checkpoint(age=timedelta(hours=25))
    for _ in range(2):
        jobs.checkpoint(age=timedelta(hours=23))
    rig.tick()

    assert rig.materialized() == [11, 12]


def test_what_was_recorded_late_is_told(rig: SensorRig, jobs: Jobs) -> None:
    rig.tick()
    jobs.checkpoint(age=timedelta(hours=20))  # the driver could not reach the database for so long
    rig.tick()
    rig.tick()

    assert rig.materialized() == [1]
