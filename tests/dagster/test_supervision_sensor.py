"""Which dead drivers are started again, and when: the decision as a table, and ticks on a real database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest

from coord_control.dagster.definitions.action_jobs import build_jobs
from coord_control.dagster.definitions.supervision_sensor import (
    SUPERVISOR_NAME,
    Decision,
    Memory,
    build_supervisor,
    decide,
)
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.runs.job_actions import START_JOB
from coord_control.dagster.spec import StartSpec, StreamingJobSpec, SuperviseSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.storage.records import ENDED_TO_RESTART, JobRecord, JobState
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.control_kit import put_job
from tests.dagster_kit import (
    Plane,
    plane_in,
)
from tests.patience import eventually
from tests.records_kit import NOON

SPEC: Final = SuperviseSpec(max_restarts=3, within_seconds=1000.0, delay_seconds=10.0)
AT_ONCE: Final = SuperviseSpec(max_restarts=2, delay_seconds=0.0)


def job(state: JobState = JobState.RUNNING, *, is_alive: bool = False, **more: Any) -> JobRecord:
    """Its last heartbeat was at noon; its lease is 10 s."""
    values: dict[str, Any] = {"generation": 4, **more}
    return records.job(state=state, is_alive=is_alive, **values)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def at(*seconds: float) -> tuple[float, ...]:
    return tuple(after(each).timestamp() for each in seconds)


ALIVE = [job(state, is_alive=True) for state in (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)]
ENDED = job(JobState.ENDED, ended_at=NOON)
FAILED = job(JobState.FAILED, ended_at=NOON)
#: It was to start again, and its supervisor is not trusted to do it any more.
NOT_BACK = job(JobState.ENDED, ended_at=NOON, end_reason=ENDED_TO_RESTART)
RETURNING = job(JobState.ENDED, ended_at=NOON, end_reason=ENDED_TO_RESTART, is_restarting=True)
SILENT = [job(JobState.STARTING), job(), job(JobState.STOPPING)]
KNOWN = Memory(4)


@pytest.mark.parametrize("record", [*ALIVE, ENDED, RETURNING])
def test_a_job_that_runs_or_has_ended_is_left_alone(record: JobRecord) -> None:
    assert decide(record, SPEC, Memory(), after(5000)) == Decision(KNOWN)


@pytest.mark.parametrize(
    ("record", "memory", "seconds", "reason"),
    [
        *[(record, KNOWN, 19.0, "flights is dead and will be restarted in 1 s") for record in SILENT],
        (FAILED, KNOWN, 9.0, "flights is dead and will be restarted in 1 s"),
        # twice as long after one restart, four times after two; from the last one on, if that was later
        (FAILED, Memory(4, asked_at=at(-100)), 19.0, "flights is dead and will be restarted in 1 s"),
        (FAILED, Memory(4, 1, at(5)), 24.0, "flights is dead and will be restarted in 1 s"),
        (FAILED, Memory(4, asked_at=at(-100, -90)), 39.0, "flights is dead and will be restarted in 1 s"),
    ],
)
def test_it_waits_before_a_start(record: JobRecord, memory: Memory, seconds: float, reason: str) -> None:
    assert decide(record, SPEC, memory, after(seconds)) == Decision(memory, reason=reason)


@pytest.mark.parametrize(
    ("record", "memory", "seconds", "key"),
    [
        *[(record, Memory(), 20.0, "flights:4:1") for record in SILENT],
        (FAILED, Memory(), 10.0, "flights:4:1"),
        (NOT_BACK, Memory(), 10.0, "flights:4:1"),
        (FAILED, Memory(3, 1, at(-100)), 20.0, "flights:4:1"),  # another generation: counted anew, waited for longer
        (FAILED, Memory(4, 1, at(5)), 25.0, "flights:4:2"),
        (FAILED, Memory(4, 2, at(-100, -90)), 40.0, "flights:4:3"),
        (FAILED, Memory(4, 7, at(-5000, -4000, -3000)), 10.0, "flights:4:8"),  # before the window
    ],
)
def test_it_starts_a_dead_driver(record: JobRecord, memory: Memory, seconds: float, key: str) -> None:
    found = decide(record, SPEC, memory, after(seconds))

    assert (found.run_key, found.reason) == (key, "")
    assert found.memory.asked_at[-1] == after(seconds).timestamp()
    assert (found.memory.generation, found.memory.attempts) == (4, int(key[-1]))


def test_it_gives_up_after_too_many_and_stays_so_until_somebody_starts_the_job() -> None:
    memory = Memory(4, 3, at(-300, -200, -100))
    gave_up = decide(FAILED, SPEC, memory, after(500))
    assert gave_up.run_key is None
    assert gave_up.reason == "flights was restarted 3 times in 1000 s: start it manually"

    much_later = decide(FAILED, SPEC, gave_up.memory, after(50_000))
    assert (much_later.run_key, much_later.memory.gave_up) == (None, True)

    started = decide(job(is_alive=True, generation=5), SPEC, much_later.memory, after(50_100))
    assert started.memory == Memory(5)


def test_a_wait_is_never_longer_than_the_window() -> None:
    spec = SuperviseSpec(max_restarts=100, within_seconds=100.0, delay_seconds=10.0)
    memory = Memory(4, 50, at(*range(50)))

    assert decide(FAILED, spec, memory, after(60)).reason == "flights is dead and will be restarted in 89 s"
    assert decide(FAILED, spec, memory, after(149)).run_key == "flights:4:51"


# The sensor.


class SupervisionRig:
    """A sensor of two jobs, and the database that it looks at."""

    def __init__(self, plane: Plane, instance: dg.DagsterInstance) -> None:
        self.plane = plane
        self.instance = instance
        self.store: ControlStore = plane.store()
        self.cursor: str | None = None
        start = StartSpec(script="x.py")
        self.jobs = [StreamingJobSpec(name=name, start=start, supervise=AT_ONCE) for name in ("flights", "orders")]

    def tick(self) -> tuple[list[str], str]:
        """The keys of the runs that are asked for, and the reason if there are none."""
        found = self.look()
        while "there was no answer" in (found.skip_message or ""):  # a busy machine
            found = self.look()
        self.cursor = found.cursor
        self.requests = list(found.run_requests or ())
        return [str(request.run_key) for request in self.requests], found.skip_message or ""

    def look(self, resource: ControlPlaneResource | None = None) -> Any:
        """Evaluate the sensor."""
        sensor = build_supervisor(self.jobs, StreamingJobTranslator())
        assert sensor is not None
        resources = {RESOURCE_KEY: resource or self.plane.resource}
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor, resources=resources)
        return sensor.evaluate_tick(context)

    def fails(self, generation: int, name: str = "flights") -> None:
        put_job(self.store, name, generation=generation)
        self.store.jobs.ended(name, generation, JobState.FAILED, "it was too much", is_clean=False)
        client = self.plane.client()
        ended_at = client.job(name).ended_at
        assert ended_at is not None
        eventually(lambda: client.fleet([name]).now > ended_at)  # a clock of milliseconds

    def run_begins(self) -> dg.DagsterRun:
        """Dagster makes a run of the newest request."""
        definition = next(each for each in build_jobs(self.jobs, StreamingJobTranslator()) if each.name == START_JOB)
        request = self.requests[-1]
        return self.instance.create_run_for_job(
            definition,
            run_config=request.run_config,
            status=dg.DagsterRunStatus.STARTED,
            tags={**request.tags, "dagster/sensor_name": SUPERVISOR_NAME},
        )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SupervisionRig]:
    with dg.instance_for_test() as instance, plane_in(tmp_path) as plane:
        yield SupervisionRig(plane, instance)


def test_there_is_no_sensor_when_no_job_wants_one() -> None:
    assert build_supervisor([StreamingJobSpec(name="flights")], StreamingJobTranslator()) is None


def test_a_dead_driver_is_started_once(rig: SupervisionRig) -> None:
    put_job(rig.store, "orders")
    rig.fails(3)

    keys, _ = rig.tick()

    assert keys == ["flights:3:1"]
    (request,) = rig.requests
    assert request.tags["coord_control/job"] == "flights"
    run = rig.run_begins()
    assert rig.tick() == ([], "flights is dead; the run that starts it has not finished")

    put_job(rig.store, "flights", generation=4)
    rig.instance.delete_run(run.run_id)
    assert rig.tick() == ([], "no job is dead")


def test_its_run_config_fits_the_job(rig: SupervisionRig) -> None:
    rig.fails(3)
    rig.tick()
    definition = next(each for each in build_jobs(rig.jobs, StreamingJobTranslator()) if each.name == START_JOB)

    assert dg.validate_run_config(definition, rig.requests[0].run_config)


def test_a_driver_that_falls_silent_is_dead_when_its_lease_is_over(rig: SupervisionRig) -> None:
    put_job(rig.store, "flights", lease_seconds=3600.0)
    put_job(rig.store, "orders", lease_seconds=0.1)
    client = rig.plane.client()
    eventually(lambda: not client.job("orders").is_alive)

    assert rig.tick() == (["orders:1:1"], "")


def test_a_job_that_has_ended_or_has_never_run_is_left_alone(rig: SupervisionRig) -> None:
    put_job(rig.store, "flights")
    rig.store.jobs.ended("flights", 1, JobState.ENDED)

    assert rig.tick() == ([], "no job is dead")


def test_after_the_last_try_it_gives_up_until_somebody_starts_the_job(rig: SupervisionRig) -> None:
    for generation in (1, 2):
        rig.fails(generation)
        assert rig.tick() == ([f"flights:{generation}:1"], "")
    # The last try is under way: its driver is ours, and begins no new count.
    run = rig.run_begins()
    assert rig.tick() == ([], "flights is dead; the run that starts it has not finished")
    rig.fails(3)
    rig.instance.delete_run(run.run_id)

    for _ in range(2):
        assert rig.tick() == ([], "flights was restarted 2 times in 3600 s: start it manually")

    put_job(rig.store, "flights", generation=4)  # somebody has
    assert rig.tick() == ([], "no job is dead")
    rig.fails(5)
    assert rig.tick() == (["flights:5:1"], "")


def test_a_run_that_fails_is_followed_by_another_one(rig: SupervisionRig) -> None:
    rig.fails(1)
    assert rig.tick() == (["flights:1:1"], "")
    run = rig.run_begins()
    rig.instance.report_run_failed(run)

    assert rig.tick() == (["flights:1:2"], "")


@pytest.mark.parametrize("cursor", [None, "{", '{"jobs": {"flights": 7}}'])
def test_a_cursor_that_is_lost_or_damaged_repeats_no_run_key_of_another_generation(
    rig: SupervisionRig, cursor: str | None
) -> None:
    rig.fails(1)
    rig.tick()
    rig.cursor = cursor

    assert rig.tick() == (["flights:1:1"], "")  # Dagster has made a run of that name, and makes no second one


def test_a_database_that_is_away_skips_the_tick_and_keeps_what_is_known(rig: SupervisionRig) -> None:
    rig.fails(1)
    rig.tick()
    known = rig.cursor

    for address in ("postgresql://nobody@127.0.0.1:1/nothing", "none"):
        found = rig.look(ControlPlaneResource(database=address))
        assert not found.run_requests
        assert found.skip_message.startswith("the control database could not be read: ")
        assert found.cursor == known
