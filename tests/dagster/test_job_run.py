"""Runs that are cancelled, and what a failure says: the rest of following a command is in test_assets and test_actions.

Dagster interrupts a step with a signal that becomes an exception in the middle of whatever it does; so do these tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from coord_control.dagster.definitions.assets import CheckpointConfig, SavepointConfig, build_assets
from coord_control.dagster.resource import RESOURCE_KEY
from coord_control.dagster.runs.job_run import action_failure
from coord_control.dagster.spec import StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import (
    CommandFailed,
    CommandRefused,
    CommandTimeout,
    CoordControlError,
    DatabaseUnavailable,
    Fault,
    JobNotRunning,
    KeyReused,
)
from coord_control.storage.records import CheckpointState, CommandState
from tests.dagster.action_kit import FLIGHTS, Actions, meanwhile
from tests.dagster_kit import (
    Plane,
    plane_in,
)
from tests.patience import eventually


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path) as plane:
        yield plane


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


class _Patient(StreamingJobTranslator):
    def retry_policy(self, job: StreamingJobSpec, purpose: str) -> dg.RetryPolicy | None:
        return dg.RetryPolicy(max_retries=3)


class Cancelled:
    """Runs that are cancelled while they wait."""

    def __init__(self, plane: Plane, instance: dg.DagsterInstance) -> None:
        self.plane = plane
        self.instance = instance

    def when(self, text: str, after: Callable[[], object] = lambda: None) -> AbstractContextManager[None]:
        """Cancel the newest run as soon as its log says this; then do something."""
        known = {run.run_id for run in self.instance.get_runs()}

        def run() -> dg.DagsterRun | None:
            return next((each for each in self.instance.get_runs() if each.run_id not in known), None)

        def has_said(text: str) -> bool:
            found = run()
            return found is not None and any(
                text in entry.user_message for entry in self.instance.all_logs(found.run_id)
            )

        def work() -> None:
            eventually(lambda: has_said(text))
            found = run()
            assert found is not None
            self.instance.report_run_canceling(found)
            os.kill(os.getpid(), signal.SIGINT)
            eventually(lambda: has_said("The run is being cancelled"))
            after()

        return meanwhile(work)

    def materialize(self, config: CheckpointConfig, *, purpose: str = "checkpoint") -> dg.ExecuteInProcessResult:
        translator = _Patient()
        return dg.materialize(
            build_assets([FLIGHTS], translator),
            selection=[dg.AssetKey(["flights", purpose])],
            resources={RESOURCE_KEY: self.plane.resource},
            instance=self.instance,
            run_config=dg.RunConfig(ops={translator.name(FLIGHTS, purpose): config}),
            raise_on_error=False,
        )


@pytest.fixture
def cancelled(plane: Plane, instance: dg.DagsterInstance) -> Cancelled:
    return Cancelled(plane, instance)


def states(plane: Plane) -> tuple[list[CommandState], list[CheckpointState]]:
    client = plane.client()
    commands = [each.state for each in client.commands("flights") if each.kind != "abort"]
    return commands, [each.state for each in client.checkpoints("flights")]


def test_a_run_that_is_cancelled_gives_its_checkpoint_up(plane: Plane, cancelled: Cancelled) -> None:
    driver = plane.driver(is_automatic=False)

    with cancelled.when("checkpoint 1: 1 of 2"):
        result = cancelled.materialize(CheckpointConfig())

    assert not result.get_asset_materialization_events()
    assert states(plane) == ([CommandState.CANCELLED], [CheckpointState.FAILED])
    assert not driver.ended.is_set()


def test_a_run_that_is_cancelled_can_wait_for_its_checkpoint_and_report_it(plane: Plane, cancelled: Cancelled) -> None:
    driver = plane.driver(is_automatic=False)

    with cancelled.when("checkpoint 1: 1 of 2", lambda: driver.complete(1)):
        result = cancelled.materialize(CheckpointConfig(on_cancel="finish"))

    (event,) = result.get_asset_materialization_events()
    metadata = event.step_materialization_data.materialization.metadata
    assert metadata["coord_control/checkpoint_id"].value == "1"
    assert states(plane) == ([CommandState.COMPLETED], [CheckpointState.COMPLETED])


def test_a_job_that_was_to_stop_runs_on_when_the_run_is_cancelled(plane: Plane, cancelled: Cancelled) -> None:
    driver = plane.driver(is_automatic=False)

    with cancelled.when("savepoint 1: 1 of 2"):
        cancelled.materialize(SavepointConfig(stop=True), purpose="savepoint")

    assert states(plane) == ([CommandState.CANCELLED], [CheckpointState.FAILED])
    assert not driver.ended.is_set()
    assert plane.client().job("flights").is_alive


def test_what_cannot_be_given_up_half_way_is_awaited(plane: Plane, cancelled: Cancelled) -> None:
    driver = plane.driver(is_supervised=True)

    def start_next() -> None:
        eventually(driver.ended.is_set)
        plane.driver(is_supervised=True)

    with cancelled.when("the job is restarting", start_next):
        ended = Actions(plane, cancelled.instance).run("restart_streaming_job")

    assert not ended.is_success
    assert states(plane)[0] == [CommandState.COMPLETED]
    assert ended.has_said("can no longer be aborted; waiting for its end")
    assert ended.has_said("It is complete")


# Failures.


@pytest.mark.parametrize(
    ("error", "next_step", "retry", "metadata"),
    [
        (CommandTimeout("c1", "stop", "claimed", 5.0), "Re-execute the run from failure", True, {"command": "c1"}),
        (JobNotRunning("flights", "noon", "", "c1"), "start_streaming_job", True, {"command": "c1"}),
        (KeyReused("flights", "k", "c1", "payload"), "launch a new run for a different one", False, {}),
        (DatabaseUnavailable("db", "no route"), "may succeed when the run is re-executed", True, {}),
        (
            CommandFailed("c1", "stop", "STORAGE", "no route", retry=True),
            "may succeed when the run is re-executed",
            True,
            {"command": "c1", "reason": "STORAGE"},
        ),
        (
            CommandFailed("c1", "stop", "INTERNAL", "boom", fault=Fault.INTERNAL),
            "please report it",
            False,
            {"command": "c1", "reason": "INTERNAL"},
        ),
        (
            CommandRefused("c1", "verify", "X", "no", fault=Fault.USER, fields=[{"loc": ["a"], "msg": "m"}]),
            "without a change will not help",
            False,
            {"command": "c1", "reason": "X", "problems": [{"loc": ["a"], "msg": "m"}]},
        ),
    ],
)
def test_a_failure_says_the_cause_and_the_next_step(
    error: CoordControlError, next_step: str, retry: bool, metadata: dict[str, Any]
) -> None:
    failure = action_failure(error)

    assert failure.description is not None
    assert failure.description.startswith(f"{error}. ")
    assert next_step in failure.description
    assert failure.allow_retries is retry
    found = {name.removeprefix("coord_control/"): value.value for name, value in failure.metadata.items()}
    common = {"error": type(error).__name__, "fault": error.fault.value, "retry": retry}
    assert found == {**common, **metadata}
