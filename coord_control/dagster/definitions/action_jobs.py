"""Actions on streaming jobs, other than taking checkpoints, as Dagster jobs: one set for all streaming jobs.

Choose the streaming job and the options in the launchpad; the run follows the command, shows its result, and if it
fails, names the cause and the next step. No run stays open while a job runs: starting a job ends once it is running.

Each Dagster job has a single step of the same name, in the process of the run:

    ops:
      start_streaming_job:
        config: {job: flights}

Threads: the step's.
"""

# Without "from __future__ import annotations": Dagster reads the types of a step's arguments, and not as text.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import dagster as dg

from coord_control.dagster.metadata import Metadata
from coord_control.dagster.resource import ControlPlaneResource
from coord_control.dagster.runs import job_actions
from coord_control.dagster.runs.action_configs import (
    ActionConfig,
    ForkConfig,
    RefConfig,
    RestoreConfig,
    SendConfig,
    StartConfig,
    StopConfig,
    chosen_job,
    job_choice,
    with_job,
)
from coord_control.dagster.runs.job_actions import Asking
from coord_control.dagster.runs.job_run import action_failure, actor_of
from coord_control.dagster.spec import StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import CoordControlError

__all__ = ["START_JOB", "build_jobs", "start_run_config"]

#: The Dagster job that starts streaming jobs; only defined if at least one of them can be started.
START_JOB: Final = "start_streaming_job"

_C = TypeVar("_C", bound=ActionConfig)


@dataclass(frozen=True, slots=True)
class _Action(Generic[_C]):
    """One of the Dagster jobs.

    Attributes:
        work: performs the action and returns the metadata that the run shows.
    """

    name: str
    config: type[_C]
    work: Callable[[Asking, _C], Metadata]
    description: str


def build_jobs(jobs: Sequence[StreamingJobSpec], translator: StreamingJobTranslator) -> list[dg.JobDefinition]:
    """Return the Dagster jobs that act on these streaming jobs; an empty list if there are no streaming jobs."""
    known = {job.name: job for job in jobs}
    startable = {name: job for name, job in known.items() if job.start is not None}
    made = []
    if startable:
        made.append(_job(_START, startable, job_choice(list(startable), "StartableStreamingJob")))
    if known:
        choice = job_choice(list(known), "StreamingJob")
        made += [_job(action, known, choice) for action in _ACTIONS]
    return made


def start_run_config(job: str) -> dict[str, Any]:
    """Return the config of a run that starts a streaming job."""
    return {"ops": {START_JOB: {"config": {"job": job}}}}


def _job(action: _Action[Any], specs: Mapping[str, StreamingJobSpec], choice: Any) -> dg.JobDefinition:
    model = with_job(action.config, choice, list(specs))

    # Definitions need distinct names; in the run and its config, the step has the name of the Dagster job.
    @dg.op(name=f"{action.name}_step", description=action.description)
    def op(
        context: dg.OpExecutionContext,
        config: model,  # type: ignore[valid-type] # made of the jobs that there are
        control_plane: ControlPlaneResource,
    ) -> None:
        try:
            with control_plane.client(actor_of(context)) as client:
                asking = Asking(context, client, _chosen(specs, config))
                context.add_output_metadata(action.work(asking, config))
        except CoordControlError as error:
            raise action_failure(error) from error

    # One short step: a separate process would only cost time.
    @dg.job(name=action.name, description=action.description, executor_def=dg.in_process_executor)
    def job() -> None:
        op.alias(action.name)()

    return job


def _chosen(specs: Mapping[str, StreamingJobSpec], config: ActionConfig) -> StreamingJobSpec:
    name = chosen_job(config)
    if name not in specs:
        raise job_actions.nothing_done(f"there is no job {name!r} here, only {sorted(specs)}")
    return specs[name]


_START: Final = _Action(
    START_JOB,
    StartConfig,
    job_actions.start,
    "Start the driver of a streaming job in the background, on the machine of this run, and wait until it is running.",
)
_ACTIONS: Final[tuple[_Action[Any], ...]] = (
    _Action(
        "stop_streaming_job",
        StopConfig,
        job_actions.stop,
        "Stop a streaming job after its current epochs, optionally with a savepoint. It stays stopped until you "
        "start it.",
    ),
    _Action(
        "restart_streaming_job",
        ActionConfig,
        job_actions.restart,
        "Restart the driver of a streaming job, with the current version of its script. The driver must run under "
        "coordctl run, as it does when started by start_streaming_job.",
    ),
    _Action(
        "restore_streaming_job",
        RestoreConfig,
        job_actions.restore_job,
        "Restore a streaming job from a checkpoint or savepoint: through its driver if the job is running, otherwise "
        "directly on its storage. Shows the preflight checks in either case.",
    ),
    _Action(
        "fork_streaming_job",
        ForkConfig,
        job_actions.fork,
        "Fork a new streaming job from a checkpoint or savepoint. The original job is not affected.",
    ),
    _Action(
        "send_control_event",
        SendConfig,
        job_actions.send_event,
        "Send a control event to an operator, exactly once, and wait until its effect is durable.",
    ),
    _Action(
        "dispose_savepoint",
        RefConfig,
        job_actions.dispose,
        "Delete a checkpoint or savepoint permanently. Refused for the newest checkpoint, and while it is being read.",
    ),
    _Action(
        "verify_savepoint",
        RefConfig,
        job_actions.verify,
        "Let the driver read all files of a checkpoint or savepoint and verify their checksums. Fails if one is "
        "missing or damaged.",
    ),
)
