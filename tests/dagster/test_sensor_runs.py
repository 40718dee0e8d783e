"""The sensor and the runs of its own deployment: who reports what a run has asked for."""

from __future__ import annotations

from coord_control.dagster.runs.own_runs import RUN_ACTOR
from tests.dagster.sensor_kit import Jobs, World
from tests.storage.kit import statements


def test_what_a_run_of_ours_has_reported_is_not_repeated(world: World, jobs: Jobs) -> None:
    run = world.run()
    record = jobs.checkpoint_of_run(run)
    world.run_reports(run, record)
    world.run_ends(run, well=True)
    world.tick()
    world.cursor = None
    world.tick()

    assert world.materialized() == [1]


def test_a_run_that_goes_on_is_waited_for_and_holds_nobody_up(world: World, jobs: Jobs) -> None:
    run = world.run()
    record = jobs.checkpoint_of_run(run)
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
    jobs.checkpoint_of_run(run)
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
    jobs.checkpoint_of_run(run)
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
    record = jobs.checkpoint_of_run(run)
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
    jobs.checkpoint_of_run("2f1b0c1e-0000-4000-8000-000000000000")
    world.tick()

    assert world.materialized() == [1]


def test_what_a_run_of_ours_could_not_complete_is_observed_at_once(world: World, jobs: Jobs) -> None:
    run = world.run()
    jobs.failed(requested_by=f"{RUN_ACTOR}{run}")
    world.tick()
    world.run_ends(run, well=False)
    world.tick()

    assert len(world.observed()) == 1


def test_many_runs_that_are_over_take_as_many_statements_as_few(world: World, jobs: Jobs) -> None:
    counts = []
    for many in (1, 12):
        runs = [world.run() for _ in range(many)]
        for run in runs:
            jobs.checkpoint_of_run(run)
        world.tick()
        for run in runs:
            world.run_ends(run, well=False)
        with statements(str(world.file)) as asked:
            world.tick()
        counts.append(len(asked))

    assert counts[0] == counts[1]
    assert world.materialized() == list(range(1, 14))
