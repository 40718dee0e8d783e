"""The sensor when jobs and databases come and go, are forgotten, replaced, or cannot be reached."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path

import dagster as dg

from coord_control.dagster.feed.tick import TickLimits
from tests.dagster.sensor_kit import JOB, Jobs, SensorRig, jobs_in, spec


def test_a_job_that_appears_later_is_told_from_its_first_checkpoint(rig: SensorRig, jobs: Jobs) -> None:
    rig.specs = [spec(), spec("later")]
    rig.tick()
    assert rig.checks(dg.AssetKey(["later", "checkpoint"]))["running"] is False
    jobs.put("later")
    jobs.checkpoint("later")
    rig.tick()
    rig.tick()

    assert rig.materialized(dg.AssetKey(["later", "checkpoint"])) == [1]
    assert rig.checks(dg.AssetKey(["later", "checkpoint"]))["running"] is True


def test_the_changes_of_a_job_that_went_by_before_it_was_one_of_ours_are_caught_up(rig: SensorRig, jobs: Jobs) -> None:
    rig.limits = TickLimits(changes=2)
    jobs.put("later")
    for _ in range(5):
        jobs.checkpoint("later")
        jobs.checkpoint()
        rig.tick_until_quiet()
    rig.specs = [spec(), spec("later")]
    jobs.checkpoint()
    jobs.checkpoint("later")
    rig.tick_until_quiet()

    assert rig.materialized(dg.AssetKey(["later", "checkpoint"])) == [1, 2, 3, 4, 5, 6]
    assert rig.materialized() == [1, 2, 3, 4, 5, 6]


def test_a_job_whose_history_was_forgotten_and_written_anew_repeats_nothing(rig: SensorRig, jobs: Jobs) -> None:
    record = jobs.checkpoint()
    jobs.checkpoint()
    rig.tick()
    jobs.store.jobs.forget(JOB, force=True)
    rig.tick()
    assert rig.checks()["running"] is False
    jobs.put(generation=2)
    jobs.checkpoint(id=1, triggered_at=record.triggered_at, finished_at=record.finished_at)
    jobs.checkpoint(id=3)
    rig.tick()
    rig.tick()

    assert rig.materialized() == [1, 2, 3]


def test_a_job_that_was_forgotten_between_two_ticks_repeats_nothing(rig: SensorRig, jobs: Jobs) -> None:
    record = jobs.checkpoint()
    rig.tick()
    jobs.store.jobs.forget(JOB, force=True)
    jobs.put(generation=2)
    jobs.checkpoint(id=1, triggered_at=record.triggered_at, finished_at=record.finished_at)
    rig.tick()

    assert rig.materialized() == [1]


def test_a_database_that_cannot_be_reached_is_a_reason_to_skip(rig: SensorRig, jobs: Jobs) -> None:
    jobs.checkpoint()
    rig.tick()
    before = rig.cursor
    away = rig.file.rename(rig.folder / "away.db")
    rig.file.mkdir()
    assert rig.tick() == []
    assert rig.skipped is not None
    assert "control database" in rig.skipped
    assert rig.cursor == before
    rig.file.rmdir()
    away.rename(rig.file)
    jobs.checkpoint()
    rig.tick()

    assert rig.materialized() == [1, 2]


def test_a_database_that_does_not_answer_is_a_reason_to_skip(rig: SensorRig, jobs: Jobs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        rig.address = f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/none"
        assert rig.tick() == []

    assert rig.skipped is not None
    assert "no answer" in rig.skipped


def test_an_empty_database_in_its_place_begins_anew_and_repeats_nothing(rig: SensorRig) -> None:
    with jobs_in(rig.file) as jobs:
        jobs.put()
        records = [jobs.checkpoint() for _ in range(5)]
        rig.tick()
    _remove(rig.file)
    with jobs_in(rig.file) as jobs:
        rig.tick()
        jobs.put()
        for record in records[3:]:  # the driver finds them on its storage
            jobs.checkpoint(id=record.id, triggered_at=record.triggered_at, finished_at=record.finished_at)
        jobs.checkpoint(id=6)
        rig.tick()
        rig.tick()

    assert rig.materialized() == [1, 2, 3, 4, 5, 6]


def test_another_database_with_more_changes_than_were_seen_misses_nothing(rig: SensorRig) -> None:
    with jobs_in(rig.file) as jobs:
        jobs.put()
        jobs.checkpoint()
        rig.tick()
    _remove(rig.file)
    with jobs_in(rig.file) as jobs:
        jobs.put()
        for id_ in range(2, 8):
            jobs.checkpoint(id=id_)
        rig.tick()
        rig.tick()

    assert rig.materialized() == [1, 2, 3, 4, 5, 6, 7]


def test_ids_that_begin_again_in_an_emptied_folder_are_other_checkpoints(rig: SensorRig, jobs: Jobs) -> None:
    jobs.checkpoint(id=1, age=timedelta(minutes=5))
    rig.tick()
    jobs.store.jobs.forget(JOB, force=True)
    jobs.put()
    jobs.checkpoint(id=1)
    rig.tick()

    assert rig.materialized() == [1, 1]


def _remove(file: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()
