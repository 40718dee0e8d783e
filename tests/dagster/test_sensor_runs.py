"""The sensor and the runs of its own deployment: who reports what a run has asked for."""

from __future__ import annotations

from coord_control.dagster.runs.own_runs import RUN_ACTOR
from tests.dagster.sensor_kit import Jobs, SensorRig
from tests.storage.kit import statements


def test_what_a_run_of_ours_has_reported_is_not_repeated(rig: SensorRig, jobs: Jobs) -> None:
    run = rig.run()
    record = jobs.checkpoint_of_run(run)
    rig.run_reports(run, record)
    rig.run_ends(run, well=True)
    rig.tick()
    rig.cursor = None
    rig.tick()

    assert rig.materialized() == [1]


def test_a_run_that_goes_on_is_waited_for_and_holds_nobody_up(rig: SensorRig, jobs: Jobs) -> None:
    run = rig.run()
    record = jobs.checkpoint_of_run(run)
    jobs.checkpoint()
    rig.tick()
    rig.tick()
    assert rig.materialized() == [2]
    rig.run_reports(run, record)
    rig.tick()
    rig.run_ends(run, well=True)
    rig.tick()
    rig.tick()

    assert rig.materialized() == [2, 1]


def test_a_run_that_was_killed_before_it_could_report_is_spoken_for_once(rig: SensorRig, jobs: Jobs) -> None:
    run = rig.run()
    jobs.checkpoint_of_run(run)
    jobs.checkpoint()
    rig.tick()
    rig.run_ends(run, well=False)
    rig.tick()
    rig.tick()
    assert rig.materialized() == [2, 1]
    rig.cursor = None
    rig.tick()

    assert rig.materialized() == [2, 1]


def test_a_tick_that_dies_after_it_has_spoken_for_a_run_does_not_do_it_again(rig: SensorRig, jobs: Jobs) -> None:
    run = rig.run()
    jobs.checkpoint_of_run(run)
    rig.tick()
    rig.run_ends(run, well=False)
    jobs.checkpoint()
    for dies_after in (1, 1, 2):
        rig.tick(dies_after=dies_after)
    rig.tick()
    rig.tick()

    assert rig.materialized() == [1, 2]


def test_a_retry_that_goes_on_with_the_same_checkpoint_is_waited_for(rig: SensorRig, jobs: Jobs) -> None:
    run = rig.run(tags={"dagster/max_retries": "1"})
    record = jobs.checkpoint_of_run(run)
    rig.instance.add_run_tags(run, {"dagster/will_retry": "true"})
    rig.run_ends(run, well=False)
    rig.tick()
    assert rig.materialized() == []
    retry = rig.run(tags={"dagster/root_run_id": run, "dagster/parent_run_id": run})
    rig.instance.add_run_tags(run, {"dagster/auto_retry_run_id": retry})
    rig.tick()
    assert rig.materialized() == []
    rig.run_reports(retry, record)
    rig.run_ends(retry, well=True)
    rig.tick()
    rig.tick()

    assert rig.materialized() == [1]


def test_a_run_of_a_schedule_is_waited_for(rig: SensorRig, jobs: Jobs) -> None:
    run = rig.run(tags={"dagster/schedule_name": "nightly"})
    jobs.checkpoint(requested_by="dagster:schedule:nightly")
    jobs.checkpoint(requested_by="dagster:schedule:other")
    rig.tick()
    assert rig.materialized() == [2]
    rig.run_ends(run, well=False)
    rig.tick()

    assert rig.materialized() == [2, 1]


def test_a_run_of_another_deployment_is_none_of_ours(rig: SensorRig, jobs: Jobs) -> None:
    jobs.checkpoint_of_run("2f1b0c1e-0000-4000-8000-000000000000")
    rig.tick()

    assert rig.materialized() == [1]


def test_what_a_run_of_ours_could_not_complete_is_observed_at_once(rig: SensorRig, jobs: Jobs) -> None:
    run = rig.run()
    jobs.failed(requested_by=f"{RUN_ACTOR}{run}")
    rig.tick()
    rig.run_ends(run, well=False)
    rig.tick()

    assert len(rig.observed()) == 1


def test_many_runs_that_are_over_take_as_many_statements_as_few(rig: SensorRig, jobs: Jobs) -> None:
    counts = []
    for many in (1, 12):
        runs = [rig.run() for _ in range(many)]
        for run in runs:
            jobs.checkpoint_of_run(run)
        rig.tick()
        for run in runs:
            rig.run_ends(run, well=False)
        with statements(str(rig.file)) as asked:
            rig.tick()
        counts.append(len(asked))

    assert counts[0] == counts[1]
    assert rig.materialized() == list(range(1, 14))
