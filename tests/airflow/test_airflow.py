"""Tasks in a real Airflow: its scheduler, triggerer and workers, each of which may die, and a job without Spark."""

from __future__ import annotations

import pytest

from tests.agent_kit import LIVE, OPERATOR, ScriptedDriver
from tests.airflow_kit import Airflow
from tests.dagster_kit import Plane
from tests.patience import eventually


def requested(plane: Plane, of: str) -> list[int]:
    """The checkpoints under way that a DAG, or one run of it (``DAG/RUN``), has requested; beginnings of names do."""
    ours = [each for each in plane.client().commands("flights") if each.key.startswith(f"airflow:{of}")]
    return [each.checkpoint for each in ours if not each.is_finished and each.checkpoint is not None]


def in_progress(airflow: Airflow, plane: Plane, dag: str, run: str, *, after: int = 0) -> int:
    """Wait until a task of this run takes a checkpoint with a larger id; its id."""
    found: list[int] = []

    def is_found() -> list[int]:
        found[:] = [each for each in requested(plane, f"{dag}/{run}") if each > after]
        return found

    eventually(is_found, airflow.logs)
    return found[0]


def commands(plane: Plane) -> int:
    return len(plane.client().commands("flights", limit=1000))


def test_a_savepoint_is_the_result_of_a_task_and_an_event_of_its_asset(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    airflow.run("saving", "one", label="first")
    checkpoint = in_progress(airflow, plane, "saving", "one")
    assert airflow.until("saving", "one", "save", "deferred")["trigger"] is not None
    eventually(lambda: "1 of 2 subtasks" in airflow.log("saving", "one", "save"), pause=0.2)
    driver.complete(checkpoint)

    assert airflow.until("saving", "one", "save")["state"] == "success"
    result = airflow.result("saving", "one", "save")
    record = plane.client().checkpoint("flights", checkpoint)
    assert result["job"] == "flights"
    assert result["checkpoint_id"] == checkpoint
    assert result["path"] == record.path
    assert result["label"] == "first"
    assert result["requested_by"] == "airflow:saving"
    assert result["restore_command"] == f"coordctl restore flights {checkpoint}"
    assert result["query/q/epoch"] == 1
    (event,) = airflow.events("coord-control://flights/savepoint")
    assert event["extra"].items() >= result.items()


def test_a_savepoint_starts_the_dags_that_wait_for_its_asset(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    airflow.unpause("after_a_savepoint")
    airflow.run("saving", "chained", label="chained")
    driver.complete(in_progress(airflow, plane, "saving", "chained"))

    driver.complete(in_progress(airflow, plane, "after_a_savepoint", "asset_triggered"))
    airflow.pause("after_a_savepoint")


def test_a_task_that_is_cleared_after_its_success_takes_another_savepoint(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    airflow.run("saving", "cleared")
    driver.complete(first := in_progress(airflow, plane, "saving", "cleared"))
    airflow.until("saving", "cleared", "save")
    airflow.until_over("saving", "cleared")

    airflow.clear("saving", "cleared", "save")
    driver.complete(second := in_progress(airflow, plane, "saving", "cleared"))

    airflow.until("saving", "cleared", "save")
    assert airflow.result("saving", "cleared", "save")["checkpoint_id"] == second > first


def test_a_worker_that_is_killed_is_followed_by_one_that_finds_its_savepoint(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    before = commands(plane)
    airflow.run("saving_in_the_worker", "one")
    checkpoint = in_progress(airflow, plane, "saving_in_the_worker", "one")
    airflow.kill_worker()
    eventually(lambda: airflow.task("saving_in_the_worker", "one", "save")["try_number"] == 2, airflow.logs, 0.2)
    found = "An earlier attempt has sent the request"
    eventually(lambda: found in airflow.log("saving_in_the_worker", "one", "save"), airflow.logs, 0.2)
    driver.complete(checkpoint)

    assert airflow.until("saving_in_the_worker", "one", "save")["state"] == "success"
    assert airflow.result("saving_in_the_worker", "one", "save")["checkpoint_id"] == checkpoint
    assert commands(plane) == before + 1


# Each start of a triggerer takes ten seconds of processor time. One that is stopped, below, hands over as
# well, and could besides abort what it waits for.
@pytest.mark.slow
def test_a_triggerer_that_is_killed_is_followed_by_one_that_waits_for_the_same_savepoint(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    before = commands(plane)
    airflow.run("saving", "orphaned")
    checkpoint = in_progress(airflow, plane, "saving", "orphaned")
    airflow.until("saving", "orphaned", "save", "deferred")
    airflow.kill("triggerer")
    driver.complete(checkpoint)
    airflow.start("triggerer")

    assert airflow.until("saving", "orphaned", "save")["state"] == "success"
    assert airflow.result("saving", "orphaned", "save")["checkpoint_id"] == checkpoint
    assert commands(plane) == before + 1


def test_a_triggerer_that_is_stopped_does_not_abort_the_savepoint(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    airflow.run("saving", "handed-over")
    checkpoint = in_progress(airflow, plane, "saving", "handed-over")
    eventually(lambda: "of 2 subtasks" in airflow.log("saving", "handed-over", "save"), airflow.logs, 0.2)
    airflow.stop("triggerer")
    airflow.start("triggerer")
    driver.complete(checkpoint)

    assert airflow.until("saving", "handed-over", "save")["state"] == "success"
    assert airflow.result("saving", "handed-over", "save")["checkpoint_id"] == checkpoint


def test_a_deferred_task_that_a_person_marks_as_failed_aborts_its_savepoint(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    airflow.run("saving", "unwanted")
    checkpoint = in_progress(airflow, plane, "saving", "unwanted")
    eventually(lambda: "of 2 subtasks" in airflow.log("saving", "unwanted", "save"), airflow.logs, 0.2)
    airflow.mark("saving", "unwanted", "save", "failed")

    eventually(lambda: plane.client().checkpoint("flights", checkpoint).reason == "aborted", airflow.logs, 0.2)


# In every run: one that is marked as failed aborts its savepoint, above; one that is cleared later takes another.
@pytest.mark.slow
def test_a_deferred_task_that_a_person_clears_aborts_its_savepoint_and_takes_another(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    airflow.run("saving", "begun-again")
    first = in_progress(airflow, plane, "saving", "begun-again")
    eventually(lambda: "of 2 subtasks" in airflow.log("saving", "begun-again", "save"), airflow.logs, 0.2)
    airflow.clear("saving", "begun-again", "save")
    eventually(lambda: plane.client().checkpoint("flights", first).reason == "aborted", airflow.logs, 0.2)
    driver.complete(second := in_progress(airflow, plane, "saving", "begun-again", after=first))

    assert airflow.until("saving", "begun-again", "save")["state"] == "success"
    assert airflow.result("saving", "begun-again", "save")["checkpoint_id"] == second


def test_a_task_that_is_killed_in_its_worker_aborts_its_savepoint(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    airflow.run("saving_in_the_worker", "unwanted")
    checkpoint = in_progress(airflow, plane, "saving_in_the_worker", "unwanted")
    eventually(lambda: "of 2 subtasks" in airflow.log("saving_in_the_worker", "unwanted", "save"), airflow.logs, 0.2)
    airflow.mark("saving_in_the_worker", "unwanted", "save", "failed")

    eventually(lambda: plane.client().checkpoint("flights", checkpoint).reason == "aborted", airflow.logs, 0.2)


def test_a_live_value_and_an_event_are_changed_once_and_a_refusal_is_not_retried(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    airflow.run("changing", "one")
    airflow.until("changing", "one", "set")
    assert airflow.result("changing", "one", "set")[f"live/{LIVE}/minutes"] == 45

    def applied() -> bool:
        driver.run_epoch()
        return airflow.state("changing", "one", "send") == "success"

    eventually(applied, airflow.logs, 0.5)
    assert driver.recorded_events() == [42]
    assert airflow.result("changing", "one", "send")["operator"] == OPERATOR

    nonsense = airflow.until("changing", "one", "send_nonsense")
    assert (nonsense["state"], nonsense["try_number"]) == ("failed", 1)
    log = airflow.log("changing", "one", "send_nonsense")
    assert "minutes: Input should be a valid integer" in log
    assert "Running the task again without a change will not help." in log


def test_a_sensor_waits_for_a_young_checkpoint(airflow: Airflow, plane: Plane, driver: ScriptedDriver) -> None:
    airflow.run("watching", "one")

    assert airflow.until("watching", "one", "fresh")["state"] == "success"
    assert airflow.result("watching", "one", "fresh")["kind"] == "savepoint"
    assert airflow.until("watching", "one", "stale")["state"] == "failed"
    assert "was completed" in airflow.log("watching", "one", "stale")


def test_the_page_takes_savepoints_every_hour(airflow: Airflow, plane: Plane, driver: ScriptedDriver) -> None:
    airflow.run("hourly_savepoints", "by-hand")

    completed: set[int] = set()

    def is_taken() -> bool:  # the run of the last full hour may come first, and takes one too
        for checkpoint in set(requested(plane, "hourly_savepoints/")) - completed:
            driver.complete(checkpoint)
            completed.add(checkpoint)
        return airflow.state("hourly_savepoints", "by-hand", "savepoint") == "success"

    eventually(is_taken, airflow.logs, 0.5)
    assert airflow.until("hourly_savepoints", "by-hand", "is_fresh")["state"] == "success"
    checkpoint = airflow.result("hourly_savepoints", "by-hand", "savepoint")["checkpoint_id"]
    assert airflow.result("hourly_savepoints", "by-hand", "is_fresh")["checkpoint_id"] == checkpoint
    airflow.pause("hourly_savepoints")


def test_the_page_stops_a_job_with_a_savepoint_and_goes_back_to_it(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    airflow.run("stop_for_upgrade", "one")
    driver.complete(checkpoint := in_progress(airflow, plane, "stop_for_upgrade", "one"))
    assert airflow.until("stop_for_upgrade", "one", "stop")["state"] == "success"
    stopped = airflow.result("stop_for_upgrade", "one", "stop")
    assert stopped["checkpoint_id"] == checkpoint

    airflow.run("back_to_savepoint", "one", ref=stopped["label"])
    assert airflow.until("back_to_savepoint", "one", "restore")["state"] == "success"
    restored = airflow.result("back_to_savepoint", "one", "restore")
    assert (restored["way"], restored["checkpoint_id"]) == ("storage", checkpoint)

    airflow.run("saving", "refused")
    airflow.until("saving", "refused", "save", "up_for_retry", "failed")
    log = airflow.log("saving", "refused", "save")
    assert "has not been running since" in log
    assert "start it with: coordctl run" in log


def test_no_dag_of_the_page_or_of_the_tests_has_an_error(airflow: Airflow) -> None:
    assert airflow.import_errors() == []
