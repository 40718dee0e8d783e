"""The sensor when jobs and databases come and go, are forgotten, replaced, or cannot be reached."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path

import dagster as dg

from coord_control.dagster.feed.tick import Limits
from tests.dagster.sensor_kit import JOB, Jobs, World, jobs_in, spec


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
        world.tick_until_quiet()
    world.specs = [spec(), spec("later")]
    jobs.checkpoint()
    jobs.checkpoint("later")
    world.tick_until_quiet()

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
