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

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from coord_control.dagster.resource import ControlPlaneResource
from coord_control.dagster.runs.action_configs import ActionConfig, chosen_job, job_choice, with_job
from coord_control.dagster.runs.job_actions import ACTIONS, START, START_JOB, Action, Asking, nothing_done
from coord_control.dagster.runs.job_run import action_failure, actor_of
from coord_control.dagster.spec import StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import CoordControlError

__all__ = ["build_jobs", "start_run_config"]


def build_jobs(jobs: Sequence[StreamingJobSpec], translator: StreamingJobTranslator) -> list[dg.JobDefinition]:
    """Return the Dagster jobs that act on these streaming jobs; an empty list if there are no streaming jobs."""
    known = {job.name: job for job in jobs}
    startable = {name: job for name, job in known.items() if job.start is not None}
    made = []
    if startable:
        made.append(_job(START, startable, job_choice(list(startable), "StartableStreamingJob")))
    if known:
        choice = job_choice(list(known), "StreamingJob")
        made += [_job(action, known, choice) for action in ACTIONS]
    return made


def start_run_config(job: str) -> dict[str, Any]:
    """Return the config of a run that starts a streaming job."""
    return {"ops": {START_JOB: {"config": {"job": job}}}}


def _job(action: Action[Any], specs: Mapping[str, StreamingJobSpec], choice: Any) -> dg.JobDefinition:
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
        raise nothing_done(f"there is no job {name!r} here, only {sorted(specs)}")
    return specs[name]
