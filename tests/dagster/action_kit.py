"""Actions as Dagster runs them: real runs of a real instance, of definitions that are loaded anew for each run."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import dagster as dg

from coord_control.control.agent.agent_run import Input
from coord_control.dagster.definitions.action_jobs import build_jobs
from coord_control.dagster.definitions.component import refreshed_facts
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.spec import ControlPlaneSpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder
from coord_control.durable.job_folder.lineage import open_lineage
from coord_control.durable.offline.offline_savepoint import save
from coord_control.ids import QueryName
from tests.agent_kit import ScriptedDriver
from tests.dagster_kit import Plane
from tests.patience import SECONDS
from tests.unit.durable.restore_kit import run_spark

FLIGHTS: Final = StreamingJobSpec(name="flights")

_FROM_FAILURE: Final = {"dagster/is_resume_retry": "true"}


@functools.cache
def load(action: str, jobs: str, database: str) -> dg.JobDefinition:
    """The Dagster job of an action; what a run's process does first, and once, though Dagster asks four times."""
    spec = ControlPlaneSpec.model_validate_json(jobs)
    resource = ControlPlaneResource(database=database, retry_seconds=1.0)
    made = build_jobs(spec.jobs, StreamingJobTranslator(), refreshed_facts(database, seconds=SECONDS))
    definitions = dg.Definitions(jobs=made, resources={RESOURCE_KEY: resource})
    return definitions.resolve_job_def(action)


@dataclass
class Ended:
    """A run that is over."""

    run: str
    is_success: bool
    metadata: dict[str, Any]  #: of the output, or of the failure; by short names
    description: str  #: of the failure
    log: list[str] = field(default_factory=list)

    def has_said(self, text: str) -> bool:
        return any(text in line for line in self.log)


@dataclass
class Actions:
    """Runs actions."""

    plane: Plane
    instance: dg.DagsterInstance
    jobs: tuple[StreamingJobSpec, ...] = (FLIGHTS,)

    def run(self, action: str, *, again: Ended | None = None, from_failure: bool = True, **config: Any) -> Ended:
        """Run one.

        Args:
            again: re-execute this one.
            from_failure: from where it failed; otherwise all of it.
        """
        load.cache_clear()  # as in a new process
        options, tags = None, {}
        if again is not None:
            # What the webserver does; without the tag it is all of it anew.
            options = dg.ReexecutionOptions(parent_run_id=again.run)
            tags = _FROM_FAILURE if from_failure else {}
        with dg.execute_job(
            self._job(action),
            instance=self.instance,
            run_config={"ops": {action: {"config": {"timeout_seconds": 60.0, **config}}}},
            reexecution_options=options,
            tags=tags,
        ) as result:
            return self._ended(result)

    def _job(self, action: str) -> Any:
        jobs = ControlPlaneSpec(jobs=list(self.jobs)).model_dump_json()
        arguments = {"action": action, "jobs": jobs, "database": self.plane.settings.url}
        return dg.build_reconstructable_job(__name__, load.__name__, reconstructable_kwargs=arguments)

    def _ended(self, result: dg.JobExecutionResult) -> Ended:
        found: dict[str, Any] = {}
        description = ""
        for event in result.all_events:
            if event.is_successful_output:
                found = dict(event.step_output_data.metadata)
            elif event.is_step_failure:
                failure = event.step_failure_data
                data = failure.user_failure_data
                if data is None:  # no failure of ours: it was interrupted, or something is wrong
                    description = str(failure.error)
                else:
                    found, description = dict(data.metadata), data.description or ""
        values = {name.removeprefix("coord_control/"): value.value for name, value in found.items()}
        lines = [each.user_message for each in self.instance.all_logs(result.run_id) if each.dagster_event is None]
        return Ended(result.run_id, result.success, values, description, lines)


def saved_job(root: Path, name: str) -> str:
    """A job of one query that has run and has stopped, and a savepoint of it; returns the savepoint's folder."""
    files, folder = LocalFiles(), join(str(root), name)
    claim = generations.claim(files, join(folder, "generations"), Holder.of([os.getpid()]))
    has_run(root, name, "counts")
    claim.release()
    return save(files, folder, label="end").path


def silence(driver: ScriptedDriver) -> None:
    """Its process is killed: it says nothing more, and counts as alive until its lease is over."""
    agent: Any = getattr(driver.closing, "__self__")  # noqa: B009 - whoever closes it is its agent
    agent._happened(Input.CLOSE)
    agent._closing.set()
    agent._signal.close()
    agent._wake_up()
    driver.claim.release()  # the process is this one, and lives; the storage is not to see that


def has_run(root: Path, name: str, query: str) -> None:
    """A query of a job has run, up to epoch 3."""
    files = LocalFiles()
    lineage = open_lineage(files, join(str(root), name, "queries", query), QueryName(query), {})
    run_spark(files, lineage.checkpoint, 3)


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Let a thread do something while the block runs; what goes wrong in it fails the test."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not errors, errors
