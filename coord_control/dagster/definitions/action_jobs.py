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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from coord_control.control.client.request_input import InputUnusable
from coord_control.dagster.facts import DatabaseFacts, KnownJob
from coord_control.dagster.resource import ControlPlaneResource
from coord_control.dagster.runs.action_configs import ActionConfig, chosen_job, job_choice, with_job
from coord_control.dagster.runs.form_configs import FormChoice, event_choice, live_choice
from coord_control.dagster.runs.job_actions import (
    ACTIONS,
    SEND_EVENT,
    SET_LIVE,
    START_JOB,
    STARTS,
    Action,
    Asking,
    nothing_done,
)
from coord_control.dagster.runs.job_run import action_failure, actor_of
from coord_control.dagster.spec import StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import CoordControlError

__all__ = ["build_jobs", "start_run_config"]


def build_jobs(
    jobs: Sequence[StreamingJobSpec], translator: StreamingJobTranslator, facts: DatabaseFacts | None = None
) -> list[dg.JobDefinition]:
    """Return the Dagster jobs that act on these streaming jobs; an empty list if there are no streaming jobs.

    Args:
        facts: what is known about the database; without it, there are no forms.
    """
    known = {job.name: job for job in jobs}
    startable = {name: job for name, job in known.items() if job.start is not None}
    made = []
    if startable:
        choice = job_choice(list(startable), "StartableStreamingJob")
        made += [_job(action, startable, choice) for action in STARTS]
    if known:
        choice = job_choice(list(known), "StreamingJob")
        made += [_job(action, known, choice) for action in ACTIONS]
        declared = [job for job in (() if facts is None else facts.jobs) if job.name in known]
        made += [_form_job(action, known, form) for action, form in _forms(declared, choice, list(known))]
    return made


def start_run_config(job: str) -> dict[str, Any]:
    """Return the config of a run that starts a streaming job."""
    return {"ops": {START_JOB: {"config": {"job": job}}}}


def _forms(jobs: Sequence[KnownJob], choice: Any, names: Sequence[str]) -> Iterator[tuple[Action[Any], FormChoice]]:
    if (live := live_choice(jobs, choice, names)) is not None:
        text = "Change fields of a live value, with a form for each. " + SET_LIVE.description
        yield replace(SET_LIVE, name=f"{SET_LIVE.name}_form", description=text), live
    if (event := event_choice(jobs, choice, names)) is not None:
        text = "Send a control event, with a form for each. " + SEND_EVENT.description
        yield replace(SEND_EVENT, name=f"{SEND_EVENT.name}_form", description=text), event


def _job(action: Action[Any], specs: Mapping[str, StreamingJobSpec], choice: Any) -> dg.JobDefinition:
    return _with_step(
        action, with_job(action.config, choice, list(specs)), lambda config: (chosen_job(config), config), specs
    )


def _form_job(action: Action[Any], specs: Mapping[str, StreamingJobSpec], form: FormChoice) -> dg.JobDefinition:
    return _with_step(action, form.config, form.plain, specs)


def _with_step(
    action: Action[Any],
    model: type[ActionConfig],
    chosen: Callable[[Any], tuple[str, Any]],
    specs: Mapping[str, StreamingJobSpec],
) -> dg.JobDefinition:
    # Definitions need distinct names; in the run and its config, the step has the name of the Dagster job.
    @dg.op(name=f"{action.name}_step", description=action.description)
    def op(
        context: dg.OpExecutionContext,
        config: model,  # type: ignore[valid-type] # made of the jobs that there are
        control_plane: ControlPlaneResource,
    ) -> None:
        name, options = chosen(config)
        try:
            with control_plane.client(actor_of(context)) as client:
                asking = Asking(context, client, _spec(specs, name))
                context.add_output_metadata(action.work(asking, options))
        except InputUnusable as error:
            raise nothing_done(str(error)) from error
        except CoordControlError as error:
            raise action_failure(error) from error

    # One short step: a separate process would only cost time.
    @dg.job(name=action.name, description=action.description, executor_def=dg.in_process_executor)
    def job() -> None:
        op.alias(action.name)()

    return job


def _spec(specs: Mapping[str, StreamingJobSpec], name: str) -> StreamingJobSpec:
    if name not in specs:
        raise nothing_done(f"there is no job {name!r} here, only {sorted(specs)}")
    return specs[name]
