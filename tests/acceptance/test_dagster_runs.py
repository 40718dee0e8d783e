"""Runs that end badly while a savepoint is under way, in a real ``dagster dev``: one savepoint, the right final state.

The driver follows a script, so a savepoint is under way exactly until the test lets it be complete; nothing here hopes
that something takes long enough. Everything else is real: the webserver, the daemon with its run monitoring, the code
server and the run workers, which are killed with ``kill -9``. Where the difference matters, a step runs in a separate
process, as it does by default; elsewhere its worker executes it, which saves a process that imports Dagster.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest
from dagster_shared.check import CheckError

from coord_control.control.client.control_client import ControlClient
from coord_control.storage.records import CheckpointKind, CheckpointRecord, CheckpointState, CommandKind, CommandState
from tests.agent_kit import JOB, ScriptedDriver
from tests.dagster_dev_kit import DagsterDev, dagster_dev
from tests.dagster_kit import (
    plane_in,
)
from tests.patience import eventually

pytestmark = pytest.mark.kill

_SAVEPOINT: Final = f"{JOB}/savepoint"
_STEP: Final = f"{JOB}__savepoint"
_UNDER_WAY: Final = r"savepoint (\d+): "
_ID: Final = "coord_control/checkpoint_id"
_SENSOR: Final = "streaming_jobs_sensor"
_RETRIES: Final = "dagster/max_retries"
#: A deployment whose users let savepoints be retried.
_CODE: Final = f"""
    import dagster as dg
    from coord_control.dagster import ControlPlaneSpec, StreamingJobSpec, StreamingJobTranslator
    from coord_control.dagster import build_streaming_definitions

    class Patient(StreamingJobTranslator):
        def retry_policy(self, job, purpose):
            return dg.RetryPolicy(max_retries=1000) if purpose == "savepoint" else None

    defs = build_streaming_definitions(
        ControlPlaneSpec(jobs=[StreamingJobSpec(name="{JOB}", queries=[])]), translator=Patient()
    )
"""


@dataclass
class DeploymentRig:
    """A deployment of Dagster, a control database, and a job that does what the test says."""

    dagster: DagsterDev
    client: ControlClient
    driver: ScriptedDriver
    counted: set[int] = field(default_factory=set)

    def savepoint_under_way(self, *, has_step: bool = False, retries: int = 0, **config: Any) -> tuple[str, int]:
        """Launch a run, which Dagster may retry, and wait until the job takes its savepoint.

        Args:
            has_step: whether the step runs in a separate process.
        """
        run = self.dagster.materialize(
            _SAVEPOINT, config=_config(has_step=has_step, **config), **{_RETRIES: str(retries)}
        )
        return run, int(self.dagster.wait_message(run, _UNDER_WAY)[1])

    def lose(self, run: str) -> None:
        """Kill the worker of a run that has no other process, and wait until Dagster has found that."""
        os.kill(self.dagster.worker(run), signal.SIGKILL)
        assert self.dagster.wait_run(run).status == "FAILURE"

    def savepoints(self, *states: CheckpointState) -> list[CheckpointRecord]:
        """Those that have begun since the last time this was asked for, or that are given here."""
        found = self.client.checkpoints(JOB, kind=CheckpointKind.SAVEPOINT, limit=1000)
        return [record for record in found if record.id not in self.counted and (not states or record.state in states)]

    def made(self, run: str) -> list[int]:
        """The savepoints that a run has reported."""
        entries = self.dagster.materializations(_SAVEPOINT)
        return [int(entry.metadata[_ID]) for entry in entries if entry.run_id == run]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeploymentRig]:
    folder = tmp_path_factory.mktemp("dagster-runs")
    with plane_in(folder) as plane:
        driver = plane.driver(is_automatic=False)
        (folder / "dagster").mkdir()
        environment = {"COORD_CONTROL": plane.settings.url, "COORD_CONTROL_RETRY_SECONDS": "1"}
        with dagster_dev(folder / "dagster", _CODE, environment) as server:
            yield DeploymentRig(server, plane.client(), driver)


@pytest.fixture
def rig(deployment: DeploymentRig) -> DeploymentRig:
    deployment.counted |= {record.id for record in deployment.client.checkpoints(JOB, limit=1000)}
    return deployment


def test_a_run_that_is_terminated_gives_its_savepoint_up(rig: DeploymentRig) -> None:
    run, savepoint = rig.savepoint_under_way(has_step=True)
    rig.dagster.terminate(run)
    assert rig.dagster.wait_run(run).status == "CANCELED"

    [record] = rig.savepoints()
    assert (record.id, record.state, record.reason) == (savepoint, CheckpointState.FAILED, "aborted")
    [command] = _commands(rig, run)
    assert command == (CommandKind.TRIGGER_SAVEPOINT, CommandState.CANCELLED)
    assert rig.made(run) == []
    assert _folders(rig) == _complete(rig)


@pytest.mark.slow
def test_a_run_that_is_terminated_lets_its_savepoint_finish_when_it_was_told_to(rig: DeploymentRig) -> None:
    run, savepoint = rig.savepoint_under_way(has_step=True, on_cancel="finish")
    rig.dagster.terminate(run)
    rig.dagster.wait_message(run, "The run is being cancelled")
    rig.driver.complete(savepoint)
    assert rig.dagster.wait_run(run).status == "CANCELED"

    _check_one(rig, savepoint, run)
    assert rig.made(run) == [savepoint]


# In every run: the retry that Dagster starts, below, and dagster/test_idempotency.py, which executes all steps again.
@pytest.mark.slow
def test_a_run_whose_worker_is_killed_goes_on_when_it_is_re_executed_from_failure(rig: DeploymentRig) -> None:
    """Its savepoint is complete by then; one under way is found by the retry that Dagster starts, below."""
    run, savepoint = rig.savepoint_under_way()
    rig.lose(run)
    assert [record.state for record in rig.savepoints()] == [CheckpointState.IN_PROGRESS]
    rig.driver.complete(savepoint)

    again = rig.dagster.reexecute(run)
    rig.dagster.wait_message(again, "An earlier attempt has sent the request")
    assert rig.dagster.wait_run(again).status == "SUCCESS"

    _check_one(rig, savepoint, run)
    assert (rig.made(run), rig.made(again)) == ([], [savepoint])

    everything = rig.dagster.reexecute(again, "ALL_STEPS")
    second = int(rig.dagster.wait_message(everything, _UNDER_WAY)[1])
    rig.driver.complete(second)
    assert rig.dagster.wait_run(everything).status == "SUCCESS"
    assert second != savepoint, "to execute all steps is another request"
    assert rig.made(everything) == [second]


def test_a_run_whose_worker_is_killed_goes_on_in_the_retry_that_dagster_starts(rig: DeploymentRig) -> None:
    """Its own launcher cannot resume a run with another worker: a retry of the run is what it has instead."""
    run, savepoint = rig.savepoint_under_way(retries=1)
    rig.lose(run)
    retry = rig.dagster.wait(lambda: rig.dagster.run(run).tags.get("dagster/auto_retry_run_id"))
    rig.dagster.wait_message(retry, "An earlier attempt has sent the request")
    rig.driver.complete(savepoint)
    assert rig.dagster.wait_run(retry).status == "SUCCESS"

    _check_one(rig, savepoint, run)
    assert (rig.made(run), rig.made(retry)) == ([], [savepoint])


def test_dagster_refuses_to_resume_runs_with_its_own_launcher(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("run_monitoring: {enabled: true, max_resume_run_attempts: 1}")
    with pytest.raises(CheckError, match="launcher does not support resuming runs"):
        dg.DagsterInstance.from_config(str(tmp_path))


# In every run: the tests around this one kill workers that are the process of their step as well.
@pytest.mark.slow
def test_a_worker_that_is_killed_beside_its_step_leaves_one_savepoint(rig: DeploymentRig) -> None:
    """The step is a process of its own, and lives on: nobody waits for it, and it still does what it was to do."""
    run, savepoint = rig.savepoint_under_way(has_step=True)
    worker, step = _processes(rig, run)
    os.kill(worker, signal.SIGKILL)
    assert rig.dagster.wait_run(run).status == "FAILURE"
    rig.driver.complete(savepoint)
    eventually(lambda: not _lives(step))
    _check_one(rig, savepoint, run)


@pytest.mark.slow
def test_a_step_that_is_killed_leaves_its_savepoint_to_the_next_attempt(rig: DeploymentRig) -> None:
    run, savepoint = rig.savepoint_under_way(has_step=True)
    _, step = _processes(rig, run)
    os.kill(step, signal.SIGKILL)
    rig.dagster.wait_message(run, "An earlier attempt has sent the request")
    rig.driver.complete(savepoint)
    assert rig.dagster.wait_run(run).status == "SUCCESS"

    _check_one(rig, savepoint, run)
    assert rig.made(run) == [savepoint]


def test_the_sensor_reports_once_what_no_run_has_reported(rig: DeploymentRig) -> None:
    """The run is lost for good; and everything that the tests before this one have left is in Dagster once."""
    run, savepoint = rig.savepoint_under_way()
    rig.lose(run)
    rig.driver.complete(savepoint)
    eventually(lambda: [record.state for record in rig.savepoints()] == [CheckpointState.COMPLETED])

    def reported() -> list[int]:
        return [int(entry.metadata[_ID]) for entry in rig.dagster.materializations(_SAVEPOINT)]

    rig.dagster.wait(lambda: savepoint in reported())
    ticks = _ticks(rig)
    rig.dagster.wait(lambda: _ticks(rig) > ticks)  # one more looks at all of it again
    completed = rig.client.checkpoints(JOB, kind=CheckpointKind.SAVEPOINT, limit=1000)
    assert sorted(reported()) == sorted(each.id for each in completed if each.state is CheckpointState.COMPLETED)
    [entry] = [each for each in rig.dagster.materializations(_SAVEPOINT) if int(each.metadata[_ID]) == savepoint]
    assert (entry.run_id, entry.metadata["coord_control/reported_by"]) == ("", "sensor")


def _config(*, has_step: bool = False, **values: Any) -> dict[str, Any]:
    executor: dict[str, Any] = {"multiprocess": {}} if has_step else {"in_process": {}}
    return {"ops": {_STEP: {"config": values}}, "execution": {"config": executor}}


def _check_one(rig: DeploymentRig, savepoint: int, run: str) -> None:
    """One savepoint has come of what a run has asked for: its record, its command, its folder and the catalog agree."""
    [record] = rig.savepoints()
    assert (record.id, record.state) == (savepoint, CheckpointState.COMPLETED)
    assert _commands(rig, run) == [(CommandKind.TRIGGER_SAVEPOINT, CommandState.COMPLETED)]
    assert [kept.path for kept in rig.client.savepoints(JOB) if kept.checkpoint == savepoint] == [record.path]
    assert _folders(rig) == _complete(rig)


def _commands(rig: DeploymentRig, run: str) -> list[tuple[CommandKind, CommandState]]:
    found = rig.client.commands(JOB, limit=1000)
    return [(command.kind, command.state) for command in found if command.requested_by == f"dagster:run:{run}"]


def _processes(rig: DeploymentRig, run: str) -> tuple[int, int]:
    """The run worker, and the process of its step."""
    step = rig.dagster.wait_message(run, r"Capturing logs for process \(pid: (\d+)\)")
    return rig.dagster.worker(run), int(step[1])


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _ticks(rig: DeploymentRig) -> int:
    ticks = rig.dagster.ticks(_SENSOR)
    assert not [tick["error"] for tick in ticks if tick["error"]]
    return sum(tick["status"] in ("SUCCESS", "SKIPPED") for tick in ticks)


def _folders(rig: DeploymentRig) -> set[str]:
    """What lies where savepoints lie."""
    return set(rig.driver.files.list(f"{rig.driver.folder}/savepoints"))


def _complete(rig: DeploymentRig) -> set[str]:
    found = rig.client.checkpoints(JOB, kind=CheckpointKind.SAVEPOINT, state=CheckpointState.COMPLETED, limit=1000)
    return {record.path.rpartition("/")[2] for record in found if record.path is not None}
