"""What can be done with jobs beside taking checkpoints, as jobs of Dagster: one set for all streaming jobs.

The launchpad asks which job, and for what else there is to say; the run follows the command, shows what became of it,
and fails with the cause and the next step. No run stays open while a job runs: starting one ends when it runs.

Each has one step, in the process of the run, named like its job:

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

#: The Dagster job that starts streaming jobs; there is none when there is none that can be started.
START_JOB: Final = "start_streaming_job"

_C = TypeVar("_C", bound=ActionConfig)


@dataclass(frozen=True, slots=True)
class _Action(Generic[_C]):
    """One of the Dagster jobs.

    Attributes:
        work: does it, and returns what the run shows.
    """

    name: str
    config: type[_C]
    work: Callable[[Asking, _C], Metadata]
    description: str


def build_jobs(jobs: Sequence[StreamingJobSpec], translator: StreamingJobTranslator) -> list[dg.JobDefinition]:
    """The Dagster jobs that act on these streaming jobs; none when there are none to act on."""
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
    """The config of a run that starts a streaming job."""
    return {"ops": {START_JOB: {"config": {"job": job}}}}


def _job(action: _Action[Any], specs: Mapping[str, StreamingJobSpec], choice: Any) -> dg.JobDefinition:
    model = with_job(action.config, choice, list(specs))

    # Definitions need names of their own; in the run, and in its config, the step is called like the job.
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

    # One short step: a process of its own would only cost time.
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
    "Starts the driver of a streaming job in the background, on the machine of this run, and waits until it runs.",
)
_ACTIONS: Final[tuple[_Action[Any], ...]] = (
    _Action(
        "stop_streaming_job",
        StopConfig,
        job_actions.stop,
        "Ends a streaming job after its running epochs, with a savepoint if wanted. Nobody starts it again.",
    ),
    _Action(
        "restart_streaming_job",
        ActionConfig,
        job_actions.restart,
        "Ends the driver of a streaming job and starts it again, with its script as it is now. Needs coordctl run "
        "around the driver, as start_streaming_job makes it.",
    ),
    _Action(
        "restore_streaming_job",
        RestoreConfig,
        job_actions.restore_job,
        "Lets a streaming job go on from a checkpoint or savepoint: through its driver when it runs, else on its "
        "storage. The check before it is shown in any case.",
    ),
    _Action(
        "fork_streaming_job",
        ForkConfig,
        job_actions.fork,
        "Lets a new streaming job go on from a checkpoint or savepoint, beside the original.",
    ),
    _Action(
        "send_control_event",
        SendConfig,
        job_actions.send_event,
        "Sends a control event to an operator, exactly once, and waits until its effect is durable.",
    ),
    _Action(
        "dispose_savepoint",
        RefConfig,
        job_actions.dispose,
        "Removes a checkpoint or savepoint for good; not the newest checkpoint, nor one that is being read.",
    ),
    _Action(
        "verify_savepoint",
        RefConfig,
        job_actions.verify,
        "Lets the driver read all files of a checkpoint or savepoint, and fails if one is not as it was.",
    ),
)
