"""A person looks after a streaming job in Dagster's pages: Chromium, ``dagster dev``, and a driver with real Spark.

All clicks are made by one person in one deployment, one test after the other, as a day goes by: a savepoint,
events, a schedule, a driver that dies, a way back. What the pages have shown is kept in ``test-artifacts/dagster``.
Nothing is waited for by the clock, but the next full minute: a schedule knows nothing smaller.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import expect

from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import CheckpointResult
from coord_control.control.settings import ControlSettings
from coord_control.errors import DatabaseError, JobNotFound
from coord_control.storage.records import CheckpointKind, CheckpointState, JobRecord, JobState
from tests.acceptance import delays_job
from tests.acceptance.dagster_pages import Person
from tests.browser_kit import Screen, browser
from tests.dagster_dev_kit import DagsterDev, dagster_dev
from tests.patience import SECONDS, eventually
from tests.places import CHECKOUT

pytestmark = [pytest.mark.spark, pytest.mark.kill]

_JOB: Final = delays_job.JOB
_SAVEPOINT: Final = f"{_JOB}/savepoint"
_CHECKPOINT: Final = f"{_JOB}/checkpoint"
_SCHEDULE: Final = f"{_JOB}_every_minute"
_LOG: Final = "job.log"
_CODE: Final = f"""
    import dagster as dg
    from coord_control.dagster import CheckBounds, QuerySpec, RetainSpec, ScheduleSpec, streaming_job_definitions

    defs = dg.Definitions.merge(
        streaming_job_definitions(
            "{_JOB}",
            description="Late departures from New York.",
            queries=[QuerySpec(name="{delays_job.QUERY}", description="Unusually late departures.")],
            owners=["team:operations"],
            schedules=[
                ScheduleSpec(name="{_SCHEDULE}", cron="* * * * *", label="every-minute", retain=RetainSpec(count=3))
            ],
            checks=CheckBounds(restarts_per_hour=1),
        ),
        # A run is one process: a second one, for its step, would import Dagster again.
        dg.Definitions(executor=dg.in_process_executor),
    )
"""
#: From the request to end to the kill of the driver and all that it has started.
_GRACE_SECONDS: Final = 60.0
#: Not one epoch after the other: the tests look at pages most of the time.
_EPOCH_SECONDS: Final = 3.0


@dataclass
class BrowserRig:
    """The person, and the job."""

    person: Person
    dagster: DagsterDev
    client: ControlClient
    folder: Path

    @property
    def job(self) -> JobRecord:
        return self.client.job(_JOB)

    @contextmanager
    def held(self) -> Iterator[None]:
        """One subtask does not end its epoch: a checkpoint that begins now is under way eventually this is left."""
        hold, held = self.folder / delays_job.HOLD, self.folder / delays_job.HELD
        hold.touch()
        try:
            eventually(held.exists)
            yield
        finally:
            hold.unlink()

    def oldest_savepoint(self) -> int:
        """The one that was taken first; if there is none, one is taken."""
        found = self.client.checkpoints(_JOB, kind=CheckpointKind.SAVEPOINT, state=CheckpointState.COMPLETED)
        if found:
            return found[-1].id
        made = self.client.wait(self.client.trigger_savepoint(_JOB))
        assert isinstance(made, CheckpointResult), "it was a savepoint that was asked for"
        return made.checkpoint

    def let_savepoint_block(self) -> None:
        """If there is no savepoint, take one that holds events back."""
        if self.client.checkpoints(_JOB, kind=CheckpointKind.SAVEPOINT):
            return
        with self.held():
            command = self.client.trigger_savepoint(_JOB)
            eventually(lambda: (self.client.command(command.id).progress or {}).get("blocked_events"))
        self.client.wait(command)

    def until_running(self, generation: int) -> None:
        """Wait eventually a driver of that generation, or a later one, processes something."""
        deadline = time.monotonic() + SECONDS
        while not self._runs(generation):
            assert time.monotonic() < deadline, (self.folder / _LOG).read_text(errors="replace")[-4000:]
            time.sleep(0.1)

    def until_observed(self, name: str, text: str) -> None:
        """Wait until the checkpoints have an observation with this text in an entry."""

        def is_there() -> bool:
            values = (each.metadata.get(f"coord_control/{name}") for each in self.dagster.observations(_CHECKPOINT))
            return any(text in str(value) for value in values)

        self.dagster.wait(is_there)

    def until_reported(self, savepoint: int) -> None:
        """Wait until a savepoint is a materialization."""
        name = "coord_control/checkpoint_id"
        made = self.dagster.materializations
        self.dagster.wait(lambda: str(savepoint) in [each.metadata[name] for each in made(_SAVEPOINT)])

    def _runs(self, generation: int) -> bool:
        try:
            job = self.job
        except (DatabaseError, JobNotFound):  # its first driver is about to make it
            return False
        is_there = job.state is JobState.RUNNING and job.generation >= generation
        return is_there and any((query.epoch or 0) > 0 for query in job.queries)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserRig]:
    folder = tmp_path_factory.mktemp("browser")
    url = f"sqlite:///{folder / 'control.db'}"
    environment = {
        "COORD_CONTROL": url,
        "COORD_CONTROL_HEARTBEAT_SECONDS": "0.5",
        "COORD_CONTROL_LEASE_SECONDS": "10",
        "XDG_STATE_HOME": str(folder / "state"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with ExitStack() as cleanup:
        cleanup.enter_context(_job(folder, environment))
        dagster = cleanup.enter_context(dagster_dev(folder / "dagster", _CODE, environment))
        client = cleanup.enter_context(ControlClient(actor="test", settings=ControlSettings.load(url)))
        screen = Screen(cleanup.enter_context(browser()), "dagster")
        rig = BrowserRig(Person(screen, dagster), dagster, client, folder)
        rig.until_running(1)
        yield rig


@pytest.fixture(autouse=True)
def _last_look(rig: BrowserRig, request: pytest.FixtureRequest) -> Iterator[None]:
    """What was on the screen when a test has ended, however it has."""
    yield
    rig.person.screen.shoot(f"end-of-{request.node.name}")


@contextmanager
def _job(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """The streaming job under ``coordctl run``; ended afterwards with all of its processes."""
    keeper = [sys.executable, "-m", "examples.flights.keeper", str(_GRACE_SECONDS)]
    run = [sys.executable, "-m", "coord_control.cli", "run", "--backoff-initial", "10ms"]
    with (folder / _LOG).open("wb") as log:
        process = subprocess.Popen(
            [*keeper, *run, delays_job.__file__, str(folder), str(_EPOCH_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **environment, "PYTHONPATH": str(CHECKOUT)},
        )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def test_a_savepoint_is_taken_by_a_click_and_shows_what_it_is(rig: BrowserRig) -> None:
    person = rig.person
    person.open_asset(_SAVEPOINT)
    expect(person.page.get_by_text("Materialize it to take one now.")).to_be_visible()
    person.screen.shoot("11-asset-before")

    with rig.held():
        person.materialize()
        progress = re.compile(r"savepoint 1: 3 of 4 subtasks have passed the boundary, [1-9]\d* events blocked")
        person.sees_line(progress)
        person.screen.shoot("12-run-under-way")
    person.sees_success()
    person.filter_log("is complete")
    expect(person.sees_line("savepoint 1 is complete")).to_be_visible()
    person.screen.shoot("13-run-complete")

    person.open_asset(_SAVEPOINT)
    person.see(person.metadata("checkpoint_id"))
    record = rig.client.checkpoint(_JOB, int(person.metadata("checkpoint_id").inner_text()))
    expect(person.metadata("path")).to_contain_text(str(record.path))
    expect(person.metadata("size_bytes")).to_have_text(str(record.state_bytes))
    expect(person.metadata("passed_subtasks")).to_have_text(str(delays_job.SUBTASKS))
    expect(person.metadata("blocked_events")).to_have_text(str(record.blocked_events))
    assert record.blocked_events > 0
    table = person.metadata("subtask_table")
    expect(table.get_by_text(delays_job.OPERATOR, exact=True)).to_have_count(delays_job.SUBTASKS)
    expect(table.get_by_text("ack_seconds")).to_be_visible()
    expect(table.get_by_text("passed_seconds")).to_be_visible()
    expect(person.metadata("restore_command")).to_contain_text(f"coordctl restore {_JOB} {record.id}")
    person.scroll_to("checkpoint_id")
    person.screen.shoot("14-asset-metadata")
    person.scroll_to("restore_command")
    person.screen.shoot("15-asset-subtasks")


# In every run: dagster/test_asset_checks.py runs checks as a person does, dagster/test_actions.py sends events.
@pytest.mark.slow
def test_blocked_events_are_checked_and_an_event_is_sent(rig: BrowserRig) -> None:
    person = rig.person
    rig.let_savepoint_block()
    person.open_asset(_CHECKPOINT, "checks")
    person.see(person.page.get_by_text("Checks (8)"))
    person.choose_check("blocked_time")
    person.execute_check()
    person.sees_success()
    person.open_asset(_CHECKPOINT, "checks")
    person.choose_check("blocked_time")
    person.see(person.page.get_by_text(re.compile(r"savepoint 1 kept a gateway closed for \S*[1-9]\S* m?s")))
    expect(person.page.get_by_text("Passed", exact=True)).to_be_visible()
    person.screen.shoot("21-check-blocked-time")

    config = f"""ops:
  send_control_event:
    config:
      operator: {delays_job.OPERATOR}
      event_type: Threshold
      payload: {{minutes: 45}}
"""
    person.launch("send_control_event", config)
    person.sees_success()
    person.filter_log("effect")
    person.sees_line(f"event 1 of operator {delays_job.OPERATOR} has taken effect")
    person.screen.shoot("22-event-sent")


def test_a_schedule_is_switched_on_and_its_next_tick_takes_a_savepoint(rig: BrowserRig) -> None:
    person = rig.person
    person.open_schedule(_SCHEDULE)
    expect(person.page.get_by_text("Schedule has never run")).to_be_visible()
    person.switch_schedule()
    person.see(person.page.get_by_text("Next tick"))
    person.screen.shoot("31-schedule-on")
    person.leave()
    rig.dagster.wait(lambda: any(tick["runIds"] for tick in rig.dagster.ticks(_SCHEDULE)))

    person.open_schedule(_SCHEDULE)
    run = person.see(person.page.get_by_role("link", name=re.compile("^[0-9a-f]{8}$")))
    person.see(person.page.get_by_text("1 run requested"))
    person.screen.shoot("32-schedule-tick")
    person.switch_schedule()  # one is enough, and the rest of the day is to be calm
    expect(person.page.get_by_text("Next tick")).to_have_count(0)
    person.open_run(run)
    person.sees_success()

    person.open_asset(_SAVEPOINT)
    expect(person.metadata("label")).to_have_text(re.compile(r"^every-minute-\d{8}T\d{6}Z$"))
    expect(person.metadata("requested_by")).to_have_text(f"dagster:schedule:{_SCHEDULE}")
    person.show_plots()
    person.sees_plot("duration_seconds")
    person.sees_plot("blocked_events")
    person.screen.shoot("33-asset-plots")


# In every run: dagster/test_sensor.py reports the recovery, dagster/test_asset_checks.py has the check.
@pytest.mark.slow
def test_a_driver_that_is_killed_shows_as_a_recovery_and_turns_a_check(rig: BrowserRig) -> None:
    person = rig.person
    person.open_asset(_CHECKPOINT, "checks")
    person.choose_check("restart_rate")
    person.see(person.page.get_by_text("restarts after failures within the last hour: 0"))
    expect(person.page.get_by_text("Passed", exact=True)).to_be_visible()
    person.screen.shoot("41-check-before")

    before = rig.job
    os.kill(before.pid, signal.SIGKILL)
    person.leave()
    rig.until_observed("recovery_cause", "driver_died")

    person.open_asset(_CHECKPOINT, "events")
    person.see(person.page.get_by_text("is taken up by a new driver"))
    expect(person.page.get_by_text("driver_died").first).to_be_visible()
    expect(person.page.get_by_text("coord_control/epochs_rerun")).to_be_visible()
    person.screen.shoot("42-recovery")
    person.open_asset(_CHECKPOINT, "checks")
    person.choose_check("restart_rate")
    person.see(person.page.get_by_text("restarts after failures within the last hour: 1"))
    expect(person.page.get_by_text("Failed", exact=True).last).to_be_visible()
    person.screen.shoot("43-check-after")


@pytest.mark.slow
def test_a_job_is_set_back_to_a_savepoint_and_goes_on_from_there(rig: BrowserRig) -> None:
    person, before, savepoint = rig.person, rig.job, rig.oldest_savepoint()
    config = f"""ops:
  restore_streaming_job:
    config:
      ref: "{savepoint}"
"""
    person.launch("restore_streaming_job", config)
    person.sees_success()
    person.filter_log("preflight")
    person.sees_line(re.compile("preflight: ok: "))
    person.screen.shoot("51-restored")
    person.page.get_by_text("[Show Markdown]").first.click()
    dialog = person.page.get_by_role("dialog")
    expect(dialog.get_by_role("row").filter(has_text="files")).to_contain_text("ok")
    person.screen.shoot("52-preflight")

    person.leave()
    rig.until_running(before.generation + 1)
    # A savepoint shows the recoveries that have ended, with their first epoch, when the sensor reports it.
    eventually(lambda: rig.client.recoveries(_JOB)[0].generation > before.generation)
    after = rig.client.wait(rig.client.trigger_savepoint(_JOB))  # which the sensor will report
    assert isinstance(after, CheckpointResult)
    rig.until_reported(after.checkpoint)
    person.open_asset(_CHECKPOINT, "events")
    person.see(person.page.get_by_text(f"resumes from checkpoint {savepoint} "))  # its first epoch is done
    person.screen.shoot("53-recovery")
    person.open_asset(_SAVEPOINT)
    expect(person.metadata("checkpoint_id")).to_have_text(str(after.checkpoint))
    expect(person.metadata("recovery")).to_contain_text(f"restored from checkpoint {savepoint} ")
    assert rig.job.generation > before.generation
    expect(person.metadata("generation")).to_have_text(str(rig.job.generation))
    person.scroll_to("recovery")
    person.screen.shoot("54-savepoint-after")
