"""Several ticks of a schedule, one after the other, as users write them; each run asks a real agent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
import yaml

from coord_control.dagster import ControlPlaneSpec, RetainSpec, ScheduleSpec, StreamingJobComponent, StreamingJobSpec
from coord_control.dagster.definitions.factory import build_streaming_definitions
from coord_control.dagster.resource import RESOURCE_KEY
from coord_control.protocol.failures import FailureReason
from coord_control.storage.records import CheckpointRecord, CheckpointState, CommandState
from examples.flights.definitions import FLIGHTS
from tests.agent_kit import JOB
from tests.dagster.action_kit import meanwhile, silence
from tests.dagster_kit import (
    Plane,
    plane_in,
)
from tests.patience import eventually
from tests.places import CHECKOUT

_NOON: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
_MINUTE: Final = timedelta(minutes=1)


def _documented() -> StreamingJobSpec:
    """That of the YAML in docs/dagster.md."""
    text = (CHECKOUT / "docs" / "dagster.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    job = {"name": JOB, "schedules": yaml.safe_load(block)["attributes"]["jobs"][0]["schedules"]}
    return StreamingJobComponent.from_attributes_dict(attributes={"jobs": [job]}).jobs[0]


def _of_the_readme() -> StreamingJobSpec:
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    job = {**yaml.safe_load(block)["attributes"]["jobs"][0], "name": JOB}
    return StreamingJobComponent.from_attributes_dict(attributes={"jobs": [job]}).jobs[0]


def _of_checkpoints() -> StreamingJobSpec:
    return StreamingJobSpec(name=JOB, schedules=[ScheduleSpec(cron="*/5 * * * *", kind="checkpoint")])


class Site:
    """A control database, and a Dagster that evaluates one job's schedules and executes the runs."""

    def __init__(self, plane: Plane, instance: dg.DagsterInstance) -> None:
        self.plane, self.instance = plane, instance
        self.repository = dg.Definitions().get_repository_def()

    def define(self, job: StreamingJobSpec) -> list[str]:
        """The names of its schedules."""
        schedules = [
            each.model_copy(update={"target": each.target and str(self.plane.folder / "savepoints")})
            for each in job.schedules
        ]
        job = job.model_copy(update={"queries": [], "schedules": schedules})
        spec = ControlPlaneSpec(database=self.plane.settings.url, jobs=[job])
        self.repository = build_streaming_definitions(spec).get_repository_def()
        return [schedule.name for schedule in self.repository.schedule_defs]

    def tick(self, schedule: str, time: datetime) -> dg.ScheduleExecutionData:
        with dg.build_schedule_context(
            instance=self.instance, scheduled_execution_time=time, resources={RESOURCE_KEY: self.plane.resource}
        ) as context:
            return self.repository.get_schedule_def(schedule).evaluate_tick(context)

    def run(self, schedule: str, time: datetime, **tags: str) -> dg.ExecuteInProcessResult:
        """The run that a tick asks for, which must not be skipped."""
        ticked = self.tick(schedule, time)
        assert ticked.run_requests, ticked.skip_message
        [request] = ticked.run_requests
        job = self.repository.get_job(self.repository.get_schedule_def(schedule).job_name)
        return job.execute_in_process(
            run_config=request.run_config,
            instance=self.instance,
            tags={**request.tags, **tags},
            raise_on_error=False,
        )

    def taken(self, schedule: str) -> list[CheckpointRecord]:
        """Those that a schedule has, the oldest first."""
        found = self.plane.client().checkpoints(
            JOB, state=CheckpointState.COMPLETED, requested_by=f"dagster:schedule:{schedule}"
        )
        return sorted(found, key=lambda record: record.id)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with plane_in(tmp_path) as plane, dg.instance_for_test() as instance:
        yield Site(plane, instance)


@pytest.mark.parametrize(
    ("job", "kept"),
    [
        pytest.param(_documented, 4, id="docs/dagster.md"),
        pytest.param(_of_the_readme, 4, id="README.md", marks=pytest.mark.slow),
        pytest.param(lambda: FLIGHTS, 3, id="demo", marks=pytest.mark.slow),
        pytest.param(_of_checkpoints, 4, id="checkpoints"),
    ],
)
def test_a_schedule_does_not_fail_from_its_second_tick_on(
    site: Site, job: Callable[[], StreamingJobSpec], kept: int
) -> None:
    site.plane.driver()
    [schedule] = site.define(job())

    results = [site.run(schedule, _NOON + hour * timedelta(hours=1)) for hour in range(4)]

    assert [result.success for result in results] == [True] * 4
    found = site.taken(schedule)
    assert [record.id for record in found] == [1, 2, 3, 4][-kept:]
    stem = job().schedules[0].label or schedule
    assert found[-1].label == f"{stem}-20260301T150000Z"


def test_two_schedules_of_a_job_tick_in_the_same_minute(site: Site) -> None:
    site.plane.driver()
    specs = [ScheduleSpec(cron="@hourly"), ScheduleSpec(cron="@daily"), ScheduleSpec(cron="@daily", kind="checkpoint")]
    schedules = site.define(StreamingJobSpec(name=JOB, schedules=specs))

    assert all(site.run(schedule, _NOON).success for schedule in schedules)

    assert [len(site.taken(schedule)) for schedule in schedules] == [1, 1, 1]


def test_schedules_with_long_names_have_labels_that_differ(site: Site) -> None:
    site.plane.driver()
    specs = [ScheduleSpec(cron="@hourly", name=f"{'s' * 90}_{number}") for number in range(2)]
    schedules = site.define(StreamingJobSpec(name=JOB, schedules=specs))

    assert all(site.run(schedule, _NOON).success for schedule in schedules)

    labels = {record.label for record in site.plane.client().checkpoints(JOB)}
    assert [len(label or "") for label in labels] == [100, 100]


def test_the_hour_that_comes_twice_at_the_end_of_summer_has_two_labels(site: Site) -> None:
    site.plane.driver()
    spec = ScheduleSpec(cron="30 2 * * *", timezone="Europe/Vienna", target="/savepoints")
    [schedule] = site.define(StreamingJobSpec(name=JOB, schedules=[spec]))
    half_past_two = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Vienna"))

    for fold in (0, 1):
        assert site.run(schedule, half_past_two.replace(fold=fold)).success

    assert [record.label for record in site.taken(schedule)] == [
        f"{schedule}-20261025T003000Z",
        f"{schedule}-20261025T013000Z",
    ]


def test_a_savepoint_by_hand_with_a_label_of_the_schedule_is_not_the_schedules(site: Site) -> None:
    site.plane.driver()
    [schedule] = site.define(
        StreamingJobSpec(name=JOB, schedules=[ScheduleSpec(cron="* * * * *", retain=RetainSpec(count=1))])
    )
    client = site.plane.client("ada")
    client.wait(client.trigger_savepoint(JOB, label=f"{schedule}-20260301T115900Z"), 30.0)

    results = [site.run(schedule, _NOON + minute * _MINUTE) for minute in range(3)]

    assert all(result.success for result in results)
    assert [record.id for record in client.checkpoints(JOB, state=CheckpointState.COMPLETED)] == [4, 1]


def test_a_run_that_is_retried_after_its_savepoint_failed_takes_it_with_the_same_label(site: Site) -> None:
    driver = site.plane.driver(is_automatic=False)
    [schedule] = site.define(StreamingJobSpec(name=JOB, schedules=[ScheduleSpec(cron="* * * * *")]))
    client = site.plane.client()
    with meanwhile(lambda: _end(site, 1, lambda: driver.fail(1, FailureReason.STORAGE_ERROR))):
        failed = site.run(schedule, _NOON)
    assert not failed.success

    retry = {"dagster/retry_number": "1", "dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    with meanwhile(lambda: _end(site, 2, lambda: driver.complete(2))):
        assert site.run(schedule, _NOON, **retry).success

    first, second = reversed(client.checkpoints(JOB))
    assert (first.state, second.state) == (CheckpointState.FAILED, CheckpointState.COMPLETED)
    assert first.label == second.label == f"{schedule}-20260301T120000Z"


def _end(site: Site, checkpoint: int, end: Callable[[], object]) -> None:
    client = site.plane.client()
    eventually(lambda: any(each.id == checkpoint for each in client.snapshot(JOB).under_way))
    end()


# --- the supervisor is starting the job again


def _kill(site: Site, *, is_supervised: bool) -> None:
    """As kill -9 leaves a driver: it has not said that it ends, and its lease is over."""
    silence(site.plane.driver(is_supervised=is_supervised))
    client = site.plane.client()
    eventually(lambda: not client.job(JOB).is_alive)


def test_a_run_waits_while_the_jobs_supervisor_is_starting_it_again(site: Site) -> None:
    _kill(site, is_supervised=True)
    [schedule] = site.define(StreamingJobSpec(name=JOB, schedules=[ScheduleSpec(cron="* * * * *")]))
    client = site.plane.client()

    def come_back() -> None:
        eventually(lambda: client.commands(JOB, state=CommandState.PENDING))
        site.plane.driver(is_supervised=True)

    with meanwhile(come_back):
        result = site.run(schedule, _NOON)

    assert result.success
    [command] = client.commands(JOB)
    assert (command.state, command.generation) == (CommandState.COMPLETED, 2)
    assert [record.label for record in site.taken(schedule)] == [f"{schedule}-20260301T120000Z"]


def test_a_run_waits_for_a_supervisor_no_longer_than_its_timeout(site: Site) -> None:
    _kill(site, is_supervised=True)
    spec = ScheduleSpec(cron="* * * * *", timeout_seconds=0.5)
    [schedule] = site.define(StreamingJobSpec(name=JOB, schedules=[spec]))

    result = site.run(schedule, _NOON)

    [event] = [event for event in result.all_events if event.is_step_failure]
    data = event.step_failure_data.user_failure_data
    assert data is not None
    assert data.metadata["coord_control/error"].value in ("CommandTimeout", "CommandExpired")


def test_a_tick_is_skipped_when_no_supervisor_is_there_to_start_the_job_again(site: Site) -> None:
    _kill(site, is_supervised=False)
    [schedule] = site.define(StreamingJobSpec(name=JOB, schedules=[ScheduleSpec(cron="* * * * *")]))

    assert (site.tick(schedule, _NOON).skip_message or "").startswith("job 'flights' has not been running since 20")


# --- what a spec may say


def test_two_schedules_of_a_job_with_one_label_are_refused() -> None:
    specs = [ScheduleSpec(cron="@hourly", label="x"), ScheduleSpec(cron="@daily", kind="checkpoint", label="x")]
    with pytest.raises(ValueError, match=r"two schedules of job 'flights' have the same label \(x, x\)"):
        StreamingJobSpec(name=JOB, schedules=specs)


@pytest.mark.parametrize("label", ["", "two words", "a/b", "-a", "x" * 81])
def test_a_label_that_cannot_begin_one_is_refused_when_definitions_are_loaded(label: str) -> None:
    with pytest.raises(ValueError, match="label"):
        ScheduleSpec(cron="@hourly", label=label)
