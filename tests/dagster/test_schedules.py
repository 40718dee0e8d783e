"""Schedules are evaluated as Dagster's daemon does it, against a real control database."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from coord_control.dagster.definitions import schedules
from coord_control.dagster.definitions.schedules import build_schedules, find_schedule
from coord_control.dagster.resource import ControlPlaneResource
from coord_control.dagster.spec import RetainSpec, ScheduleSpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from tests.agent_kit import JOB
from tests.dagster_kit import (
    Plane,
    plane_in,
)
from tests.patience import eventually

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_SAVEPOINTS = ScheduleSpec(cron="0 * * * *", target="/backup/", retain=RetainSpec(count=3), timeout_seconds=30)
_CHECKPOINTS = ScheduleSpec(cron="*/5 * * * *", kind="checkpoint", name="quick", label="five", running=True)
_SPEC = StreamingJobSpec(name=JOB, schedules=[_SAVEPOINTS, _CHECKPOINTS])


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path) as plane:
        yield plane


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


def _schedules() -> tuple[dg.ScheduleDefinition, dg.ScheduleDefinition]:
    first, second = build_schedules([_SPEC], StreamingJobTranslator())
    return first, second


def _tick(schedule: dg.ScheduleDefinition, instance: dg.DagsterInstance, resource: ControlPlaneResource) -> Any:
    """What the daemon would get; the code around it is Dagster's own."""
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=_NOON, resources={"control_plane": resource}
    ) as context:
        return schedule.evaluate_tick(context)


def _skipped(schedule: dg.ScheduleDefinition, instance: dg.DagsterInstance, resource: ControlPlaneResource) -> str:
    ticked = _tick(schedule, instance, resource)
    assert not ticked.run_requests
    return str(ticked.skip_message)


def test_a_tick_asks_for_a_run_of_the_asset_that_knows_what_it_is_for(
    plane: Plane, instance: dg.DagsterInstance
) -> None:
    plane.driver()
    savepoints, checkpoints = _schedules()
    [request] = _tick(savepoints, instance, plane.resource).run_requests
    assert savepoints.name == "flights__savepoint_schedule_1"
    assert request.run_key == "2026-03-01T12:00:00+00:00"
    assert request.tags["dagster/schedule_name"] == savepoints.name
    assert request.tags["dagster/max_runtime"] == "270"
    assert request.run_config == {
        "ops": {
            "flights__savepoint": {
                "config": {
                    "label": f"{savepoints.name}-20260301T120000Z",
                    "timeout_seconds": 30,
                    "target": "/backup/flights__savepoint_schedule_1-20260301T120000Z",
                }
            }
        }
    }
    [request] = _tick(checkpoints, instance, plane.resource).run_requests
    assert request.run_config == {
        "ops": {"flights__checkpoint": {"config": {"label": "five-20260301T120000Z", "timeout_seconds": 600.0}}}
    }


def test_names_and_states_are_those_of_the_specs() -> None:
    savepoints, checkpoints = _schedules()
    assert checkpoints.name == "quick"
    assert checkpoints.default_status is dg.DefaultScheduleStatus.RUNNING
    assert savepoints.default_status is dg.DefaultScheduleStatus.STOPPED
    assert "the newest 3 are kept" in (savepoints.description or "")
    translator = StreamingJobTranslator()
    assert find_schedule(_SPEC, "flights__savepoint_schedule_1", translator) is _SPEC.schedules[0]
    assert find_schedule(_SPEC, "quick", translator) is _SPEC.schedules[1]
    assert find_schedule(_SPEC, "another", translator) is None


def test_a_schedule_is_of_the_asset_of_its_job() -> None:
    savepoints, _ = _schedules()

    @dg.asset(name="savepoint", key_prefix="flights")
    def savepoint() -> None: ...

    defs = dg.Definitions(
        assets=[savepoint], schedules=[savepoints], resources={"control_plane": ControlPlaneResource()}
    )
    repository = defs.get_repository_def()
    job = repository.get_job(repository.get_schedule_def(savepoints.name).job_name)
    assert job.asset_layer.selected_asset_keys == {dg.AssetKey(["flights", "savepoint"])}


def test_a_job_that_has_never_run_is_skipped(plane: Plane, instance: dg.DagsterInstance) -> None:
    plane.driver(name="another")
    savepoints, _ = _schedules()
    assert _skipped(savepoints, instance, plane.resource) == (
        "job 'flights' has never run with this control database: start it"
    )


def test_a_job_that_is_down_is_skipped(plane: Plane, instance: dg.DagsterInstance) -> None:
    driver = plane.driver()
    driver.stop()
    client = plane.client()
    eventually(lambda: not client.job(JOB).is_alive)
    savepoints, _ = _schedules()
    reason = _skipped(savepoints, instance, plane.resource)
    assert reason.startswith("job 'flights' has not been running since 20")
    assert reason.endswith("; start it with coordctl run, or with start_streaming_job")


def test_a_job_that_its_supervisor_starts_again_is_not_skipped(plane: Plane, instance: dg.DagsterInstance) -> None:
    plane.driver(is_supervised=True)
    client = plane.client()
    client.restart(JOB)
    eventually(lambda: not client.job(JOB).is_alive)
    savepoints, _ = _schedules()
    assert _tick(savepoints, instance, plane.resource).run_requests  # the run waits for the next driver


def test_one_of_the_kind_under_way_is_a_reason_and_one_of_another_kind_is_none(
    plane: Plane, instance: dg.DagsterInstance
) -> None:
    plane.driver(is_automatic=False)
    client = plane.client("somebody")
    savepoints, checkpoints = _schedules()
    client.trigger_savepoint(JOB, label="by-hand")
    eventually(lambda: client.snapshot(JOB).under_way)
    assert _skipped(savepoints, instance, plane.resource).startswith("savepoint 1 has been in progress since ")
    assert _tick(checkpoints, instance, plane.resource).run_requests


def test_a_command_that_no_driver_has_taken_yet_is_a_reason(plane: Plane, instance: dg.DagsterInstance) -> None:
    driver = plane.driver(is_automatic=False)
    client = plane.client("somebody")
    driver.was_ready = False  # commands wait
    command = client.trigger_checkpoint(JOB)
    _, checkpoints = _schedules()
    assert command.id in _skipped(checkpoints, instance, plane.resource)


def test_the_run_of_an_earlier_tick_that_still_waits_is_a_reason(plane: Plane, instance: dg.DagsterInstance) -> None:
    plane.driver()
    savepoints, checkpoints = _schedules()

    @dg.job(tags={"dagster/schedule_name": savepoints.name})
    def earlier() -> None: ...

    run = instance.create_run_for_job(earlier, tags={"dagster/schedule_name": savepoints.name})
    reason = _skipped(savepoints, instance, plane.resource)
    assert reason.startswith(f"run {run.run_id} of an earlier tick has not finished: NOT_STARTED for ")
    assert reason.endswith(" s; its page shows what it waits for")
    assert _tick(checkpoints, instance, plane.resource).run_requests


def test_a_tick_in_which_the_daemon_died_asks_for_its_own_run_again(plane: Plane, instance: dg.DagsterInstance) -> None:
    plane.driver()
    savepoints, _ = _schedules()

    @dg.job
    def made() -> None: ...

    tags = {"dagster/schedule_name": savepoints.name, "dagster/run_key": "2026-03-01T12:00:00+00:00"}
    instance.create_run_for_job(made, tags=tags)
    [request] = _tick(savepoints, instance, plane.resource).run_requests
    assert request.run_key == tags["dagster/run_key"]


def test_a_run_that_was_killed_with_its_daemon_does_not_stop_the_schedule_for_ever(
    plane: Plane, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.driver()
    savepoints, _ = _schedules()

    @dg.job
    def lost() -> None: ...

    tags = {"dagster/schedule_name": savepoints.name}
    instance.create_run_for_job(lost, tags=tags, status=dg.DagsterRunStatus.STARTED)
    assert "of an earlier tick has not finished: STARTED" in _skipped(savepoints, instance, plane.resource)
    later = time.time() + _SAVEPOINTS.timeout_seconds + 241
    monkeypatch.setattr(time, "time", lambda: later)
    assert _tick(savepoints, instance, plane.resource).run_requests


def test_a_run_that_its_daemon_never_submitted_does_not_stop_the_schedule(
    plane: Plane, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon died between creating and submitting it, and came back after the next tick."""
    plane.driver()
    savepoints, _ = _schedules()

    @dg.job
    def created() -> None: ...

    instance.create_run_for_job(created, tags={"dagster/schedule_name": savepoints.name})
    assert "has not finished: NOT_STARTED" in _skipped(savepoints, instance, plane.resource)
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    assert _tick(savepoints, instance, plane.resource).run_requests


def test_a_database_that_cannot_be_used_is_a_reason(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    (tmp_path / "control.db").mkdir()
    savepoints, _ = _schedules()
    resource = ControlPlaneResource(database=f"sqlite:///{tmp_path / 'control.db'}")
    assert _skipped(savepoints, instance, resource).startswith("the control database could not be read: ")


def test_a_server_that_does_not_answer_is_left_behind(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "_ANSWER_SECONDS", 0.5)
    savepoints, _ = _schedules()
    with socket.create_server(("127.0.0.1", 0)) as mute:  # connections are accepted by the kernel, and then silence
        port = mute.getsockname()[1]
        resource = ControlPlaneResource(database=f"postgresql://nobody@127.0.0.1:{port}/control")
        assert _skipped(savepoints, instance, resource) == "the control database did not answer within 0.5 s"
