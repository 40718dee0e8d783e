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

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import dagster as dg

from coord_control.control.client import ControlClient
from coord_control.control.commands import (
    CommandResult,
    RestartResult,
    SendEventResult,
    StopResult,
    VerifyResult,
)
from coord_control.errors import ControlEventRefused, CoordControlError
from coord_control.storage.records import CommandRecord
from dagster_defs import markdown
from dagster_defs.action_configs import (
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
from dagster_defs.metadata import NAMESPACE, Metadata, entries
from dagster_defs.reattach import Submit
from dagster_defs.resource import ControlPlaneResource
from dagster_defs.restoring import Wish, restore
from dagster_defs.running import action_failure, actor_of, follow
from dagster_defs.spec import StreamingJobSpec
from dagster_defs.starting import start_job
from dagster_defs.translator import StreamingJobTranslator

__all__ = ["START_JOB", "build_jobs", "start_run_config"]

#: The Dagster job that starts streaming jobs; there is none when there is none that can be started.
START_JOB: Final = "start_streaming_job"

_C = TypeVar("_C", bound=ActionConfig)


@dataclass(frozen=True, slots=True)
class _Asking:
    """A step that does one of the actions: its context, a client, and the job that is meant."""

    context: dg.OpExecutionContext
    client: ControlClient
    spec: StreamingJobSpec

    @property
    def job(self) -> str:
        return self.spec.name

    def follow(self, config: ActionConfig, submit: Submit) -> CommandResult:
        seconds = config.timeout_seconds
        return follow(self.context, self.client, submit, job=self.job, timeout_seconds=seconds)

    def tell(self, line: str) -> None:
        self.context.log.info(line)


@dataclass(frozen=True, slots=True)
class _Action(Generic[_C]):
    """One of the Dagster jobs.

    Attributes:
        work: does it, and returns what the run shows.
    """

    name: str
    config: type[_C]
    work: Callable[[_Asking, _C], Metadata]
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
                asking = _Asking(context, client, _chosen(specs, config))
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
        raise _wrong(f"there is no job {name!r} here, only {sorted(specs)}")
    return specs[name]


# --- the actions


def _start(asking: _Asking, config: StartConfig) -> Metadata:
    assert asking.spec.start is not None, "only those can be chosen"
    seconds = config.timeout_seconds
    return start_job(asking.client, asking.job, asking.spec.start, timeout_seconds=seconds, tell=asking.tell).metadata()


def _stop(asking: _Asking, config: StopConfig) -> Metadata:
    if config.savepoint and config.grace_seconds is not None:
        raise _wrong("grace_seconds does not go with savepoint, which lets the running epochs end: leave it out")
    if not config.savepoint and (config.label is not None or config.target is not None):
        raise _wrong("label and target are of the savepoint: say savepoint: true too, or leave them out")

    def submit(key: str) -> CommandRecord:
        client, job, seconds = asking.client, asking.job, config.timeout_seconds
        if config.savepoint:
            return client.stop_with_savepoint(
                job, target=config.target, label=config.label, key=key, expires_seconds=seconds
            )
        return client.stop(job, grace_seconds=config.grace_seconds, key=key, expires_seconds=seconds)

    result = asking.follow(config, submit)
    assert isinstance(result, StopResult), "it was a stop that was asked for"
    made = result.savepoint
    asking.tell(f"job {asking.job} has stopped" + (f" after savepoint {made.checkpoint}: {made.path}" if made else ""))
    if made is None:
        return {}
    return entries(
        {
            "checkpoint_id": made.checkpoint,
            "path": dg.MetadataValue.path(made.path),
            "label": made.label,
            "size_bytes": made.state_bytes,
            "duration_seconds": made.duration_seconds,
        }
    )


def _restart(asking: _Asking, config: ActionConfig) -> Metadata:
    def submit(key: str) -> CommandRecord:
        return asking.client.restart(asking.job, key=key, expires_seconds=config.timeout_seconds)

    result = asking.follow(config, submit)
    assert isinstance(result, RestartResult), "it was a restart that was asked for"
    asking.tell(f"job {asking.job} runs again, generation {result.generation}")
    return entries({"generation": result.generation})


def _restore(asking: _Asking, config: RestoreConfig) -> Metadata:
    start = asking.spec.start
    if config.start and start is None:
        raise _wrong(f"it is not known how job {asking.job} is started: add start to its definition, or start it later")
    wish = Wish(
        asking.job,
        config.ref,
        allow_non_restored_state=config.allow_non_restored_state,
        verify=config.verify,
        force=config.force,
        timeout_seconds=config.timeout_seconds,
    )
    shown = restore(asking.context, asking.client, wish)
    asking.context.add_output_metadata(shown)  # it has taken place, whatever becomes of the start
    if not config.start or start is None:
        return {}
    seconds = config.timeout_seconds
    started = start_job(asking.client, asking.job, start, timeout_seconds=seconds, tell=asking.tell)
    return started.metadata()


def _fork(asking: _Asking, config: ForkConfig) -> Metadata:
    if config.as_name == asking.job:
        raise _wrong("a fork needs a name of its own; to set the job itself back, use restore_streaming_job")
    wish = Wish(
        asking.job,
        config.ref,
        config.as_name,
        config.allow_non_restored_state,
        config.verify,
        config.force,
        config.timeout_seconds,
    )
    shown = restore(asking.context, asking.client, wish)
    asking.tell(f"start a driver with a job named {config.as_name} and the same root: it goes on from there")
    return shown


def _send(asking: _Asking, config: SendConfig) -> Metadata:
    payload = _payload(config.payload)

    def submit(key: str) -> CommandRecord:
        return asking.client.send_event(
            asking.job,
            config.operator,
            config.event_type,
            payload,
            subtask=config.subtask,
            key=key,
            expires_seconds=config.timeout_seconds,
        )

    try:
        result = asking.follow(config, submit)
    except dg.Failure as failure:
        raise _with_fields(failure, config) from failure.__cause__
    assert isinstance(result, SendEventResult), "it was an event that was sent"
    asking.tell(f"event {result.number} of operator {config.operator} has taken effect")
    return entries({"number": result.number, "operator": config.operator, "event_type": config.event_type})


def _dispose(asking: _Asking, config: RefConfig) -> Metadata:
    def submit(key: str) -> CommandRecord:
        return asking.client.dispose(asking.job, config.ref, key=key, expires_seconds=config.timeout_seconds)

    result: Any = asking.follow(config, submit)
    asking.tell(f"{result.path} does not exist any more")
    return entries({"checkpoint_id": result.checkpoint, "path": dg.MetadataValue.path(result.path)})


def _verify(asking: _Asking, config: RefConfig) -> Metadata:
    def submit(key: str) -> CommandRecord:
        return asking.client.verify(asking.job, config.ref, key=key, expires_seconds=config.timeout_seconds)

    result = asking.follow(config, submit)
    assert isinstance(result, VerifyResult), "it was a look at its files that was asked for"
    columns = ("path", "kind", "detail", "fatal")
    rows = [[problem.get(column, "") for column in columns] for problem in result.problems]
    shown = entries(
        {
            "checkpoint_id": result.checkpoint,
            "path": dg.MetadataValue.path(result.path),
            "files": result.files,
            "size_bytes": result.size,
            "intact": dg.MetadataValue.bool(result.is_intact),
            "problems": dg.MetadataValue.md(markdown.table(columns, rows)) if rows else None,
        }
    )
    if not result.is_intact:
        raise dg.Failure(
            f"{result.path} is damaged: {len(rows)} of its {result.files} files are not as they were. Restore another "
            "one, or put the files back from a copy of the storage",
            metadata=shown,
            allow_retries=False,
        )
    asking.tell(f"{result.path}: {result.files} files, all as they were")
    return shown


_START: Final = _Action(
    START_JOB,
    StartConfig,
    _start,
    "Starts the driver of a streaming job in the background, on the machine of this run, and waits until it runs.",
)
_ACTIONS: Final[tuple[_Action[Any], ...]] = (
    _Action(
        "stop_streaming_job",
        StopConfig,
        _stop,
        "Ends a streaming job after its running epochs, with a savepoint if wanted. Nobody starts it again.",
    ),
    _Action(
        "restart_streaming_job",
        ActionConfig,
        _restart,
        "Ends the driver of a streaming job and starts it again, with its script as it is now. Needs coordctl run "
        "around the driver, as start_streaming_job makes it.",
    ),
    _Action(
        "restore_streaming_job",
        RestoreConfig,
        _restore,
        "Lets a streaming job go on from a checkpoint or savepoint: through its driver when it runs, else on its "
        "storage. The check before it is shown in any case.",
    ),
    _Action(
        "fork_streaming_job",
        ForkConfig,
        _fork,
        "Lets a new streaming job go on from a checkpoint or savepoint, beside the original.",
    ),
    _Action(
        "send_control_event",
        SendConfig,
        _send,
        "Sends a control event to an operator, exactly once, and waits until its effect is durable.",
    ),
    _Action(
        "dispose_savepoint",
        RefConfig,
        _dispose,
        "Removes a checkpoint or savepoint for good; not the newest checkpoint, nor one that is being read.",
    ),
    _Action(
        "verify_savepoint",
        RefConfig,
        _verify,
        "Lets the driver read all files of a checkpoint or savepoint, and fails if one is not as it was.",
    ),
)


# --- parts


def _wrong(problem: str) -> dg.Failure:
    return dg.Failure(f"{problem}. Nothing was done", allow_retries=False)


def _payload(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise _wrong(f"payload is text, and as such must be JSON: {error}") from error


def _with_fields(failure: dg.Failure, config: SendConfig) -> dg.Failure:
    """What is wrong with each field of the payload, so that people can read it."""
    error = failure.__cause__
    if not isinstance(error, ControlEventRefused) or not error.fields:
        return failure
    rows = [[_place(field), field.get("msg", "")] for field in error.fields]
    said = "; ".join(f"{place}: {problem}" for place, problem in rows)
    metadata = {name: value for name, value in failure.metadata.items() if name != f"{NAMESPACE}problems"}
    return dg.Failure(
        f"the payload is no {config.event_type} of operator {config.operator}: {said}. Nothing was sent",
        metadata={**metadata, f"{NAMESPACE}problems": dg.MetadataValue.md(markdown.table(("field", "problem"), rows))},
        allow_retries=False,
    )


def _place(field: Mapping[str, Any]) -> str:
    path: Iterable[Any] = field.get("loc") or ()
    return ".".join(map(str, path)) or "all of it"
