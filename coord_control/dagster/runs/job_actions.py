"""The actions of the Dagster jobs: one function each, which returns the metadata that the run shows.

A request is sent to the driver once, no matter how often the step runs (:mod:`.job_run`). A request that cannot be
carried out is a failure with its cause and the next step.

Threads: blocks the step's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import dagster as dg

from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.request_input import absolute_reference, changed_fields, parsed
from coord_control.control.commands import (
    Ask,
    Command,
    CommandResult,
    Dispose,
    Restart,
    Restore,
    SendEvent,
    SetLive,
    Stop,
    StopWithSavepoint,
    Verify,
    requested,
)
from coord_control.dagster import markdown
from coord_control.dagster.metadata import NAMESPACE, Metadata, entries
from coord_control.dagster.runs.action_configs import (
    ActionConfig,
    AskConfig,
    ForkConfig,
    PromoteConfig,
    RefConfig,
    RestoreConfig,
    SendConfig,
    SetConfig,
    StartConfig,
    StopConfig,
    UpgradeConfig,
)
from coord_control.dagster.runs.driver_start import start_job
from coord_control.dagster.runs.idempotency import attempt_key
from coord_control.dagster.runs.job_run import follow
from coord_control.dagster.runs.promote_run import promote
from coord_control.dagster.runs.restore_run import check_only, restore
from coord_control.dagster.runs.upgrade_run import upgrade
from coord_control.dagster.spec import StartSpec, StreamingJobSpec
from coord_control.errors import CommandRefused

__all__ = ["ACTIONS", "SEND_EVENT", "SET_LIVE", "STARTS", "START_JOB", "Action", "Asking", "nothing_done"]

#: The Dagster job that starts streaming jobs.
START_JOB: Final = "start_streaming_job"


_R = TypeVar("_R", bound=CommandResult)
_C = TypeVar("_C", bound=ActionConfig)


@dataclass(frozen=True, slots=True)
class Asking:
    """The step that performs an action: its context, a client, and the streaming job."""

    context: dg.OpExecutionContext
    client: ControlClient
    spec: StreamingJobSpec

    @property
    def job(self) -> str:
        return self.spec.name

    def submit(self, config: ActionConfig, command: Command[_R]) -> _R:
        return follow(self.context, self.client, self.job, command, timeout_seconds=config.timeout_seconds)

    def start(self, config: ActionConfig, spec: StartSpec) -> Metadata:
        request, seconds = attempt_key(self.context), config.timeout_seconds
        found = start_job(self.client, self.job, spec, request=request, timeout_seconds=seconds, tell=self.tell)
        return found.metadata()

    def tell(self, line: str) -> None:
        self.context.log.info(line)


def nothing_done(problem: str) -> dg.Failure:
    """Return the failure of a step that found a problem before it did anything."""
    return dg.Failure(f"{problem}. Nothing was done", allow_retries=False)


def start(asking: Asking, config: StartConfig) -> Metadata:
    """``start_streaming_job``."""
    assert asking.spec.start is not None, "only those can be chosen"
    return asking.start(config, asking.spec.start)


def upgrade_streaming_job(asking: Asking, config: UpgradeConfig) -> Metadata:
    """``upgrade_streaming_job``."""
    assert asking.spec.start is not None, "only those can be chosen"
    return upgrade(asking.context, asking.client, asking.job, asking.spec.start, config)


def stop(asking: Asking, config: StopConfig) -> Metadata:
    """``stop_streaming_job``."""
    if config.savepoint and config.grace_seconds is not None:
        raise nothing_done("grace_seconds cannot be combined with savepoint, which waits for the epochs: leave it out")
    if not config.savepoint and (config.label is not None or config.target is not None or config.drain):
        raise nothing_done("label, target and drain apply to the savepoint: set savepoint: true too, or leave them out")

    if config.savepoint:
        command = requested(StopWithSavepoint, target=config.target, label=config.label, drain=config.drain)
        result = asking.submit(config, command)
    else:
        result = asking.submit(config, requested(Stop, grace_seconds=config.grace_seconds))
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


def restart(asking: Asking, config: ActionConfig) -> Metadata:
    """``restart_streaming_job``."""
    result = asking.submit(config, Restart())
    asking.tell(f"job {asking.job} is running again, generation {result.generation}")
    return entries({"generation": result.generation})


def restore_streaming_job(asking: Asking, config: RestoreConfig) -> Metadata:
    """``restore_streaming_job``."""
    if config.check_only:
        return check_only(asking.context, asking.client, asking.job, _restore_request(config))
    spec = asking.spec.start
    if config.start and spec is None:
        raise nothing_done(
            f"Dagster cannot start job {asking.job}: add start to its definition, or leave start out here and start "
            "the job yourself afterwards"
        )
    shown = _restored(asking, config)
    if not config.start or spec is None:
        return shown
    try:
        return shown | asking.start(config, spec)
    except dg.Failure as failure:
        raise dg.Failure(
            f"job {asking.job} was restored, but not started: {failure.description}. To start it, re-execute this run "
            "from failure, which does not repeat the restore",
            metadata={**shown, **failure.metadata},
            allow_retries=failure.allow_retries,
        ) from failure


def fork(asking: Asking, config: ForkConfig) -> Metadata:
    """``fork_streaming_job``."""
    shown = _restored(asking, config, config.as_name)
    asking.tell(f"start a driver with a job named {config.as_name} and the same root: it resumes from there")
    return shown


def promote_streaming_job(asking: Asking, config: PromoteConfig) -> Metadata:
    """``promote_streaming_job``."""
    return promote(asking.context, asking.client, asking.job, config)


def send_event(asking: Asking, config: SendConfig) -> Metadata:
    """``send_control_event``."""
    payload = parsed(config.payload)
    try:
        command = requested(
            SendEvent, operator=config.operator, event_type=config.event_type, payload=payload, subtask=config.subtask
        )
        result = asking.submit(config, command)
    except dg.Failure as failure:
        what = f"{config.event_type} of operator {config.operator}"
        raise _with_fields(failure, what, "Nothing was sent") from failure.__cause__
    asking.tell(f"event {result.number} of operator {config.operator} has taken effect")
    return entries({"number": result.number, "operator": config.operator, "event_type": config.event_type})


def set_live(asking: Asking, config: SetConfig) -> Metadata:
    """``set_live_value``."""
    fields = changed_fields(config.fields)
    try:
        result = asking.submit(config, requested(SetLive, name=config.name, fields=fields, expect=config.expect))
    except dg.Failure as failure:
        raise _with_fields(failure, f"live value {config.name}", "Nothing was changed") from failure.__cause__
    for line in result.text(asking.job).splitlines():
        asking.tell(line)
    value = dg.MetadataValue.json(result.value)
    return entries({"live_value": result.name, "version": result.version, "value": value, "by": result.by})


def ask(asking: Asking, config: AskConfig) -> Metadata:
    """``ask_operator``."""
    payload = parsed(config.payload)
    try:
        found = asking.submit(config, requested(Ask, operator=config.operator, request=config.request, payload=payload))
    except dg.Failure as failure:
        what = f"{config.request} of operator {config.operator}"
        raise _with_fields(failure, what, "Nothing was asked") from failure.__cause__
    asking.tell(f"operator {config.operator} has answered")
    answer = dg.MetadataValue.json(found.answer)  # type: ignore[arg-type] # any JSON
    return entries({"answer": answer, "operator": config.operator, "request": config.request})


def dispose(asking: Asking, config: RefConfig) -> Metadata:
    """``dispose_savepoint``."""
    result = asking.submit(config, requested(Dispose, ref=absolute_reference(config.ref)))
    asking.tell(f"removed {result.path}")
    return entries({"checkpoint_id": result.checkpoint, "path": dg.MetadataValue.path(result.path)})


def verify(asking: Asking, config: RefConfig) -> Metadata:
    """``verify_savepoint``."""
    result = asking.submit(config, requested(Verify, ref=absolute_reference(config.ref)))
    columns = ("path", "kind", "detail", "fatal")
    rows = [[problem.get(column, "") for column in columns] for problem in result.problems]
    shown = entries(
        {
            "checkpoint_id": result.checkpoint,
            "path": dg.MetadataValue.path(result.path),
            "files": result.files,
            "file_bytes": result.size,
            "intact": dg.MetadataValue.bool(result.is_intact),
            "problems": dg.MetadataValue.md(markdown.table(columns, rows)) if rows else None,
        }
    )
    if not result.is_intact:
        raise dg.Failure(
            f"{result.path} is damaged: {len(rows)} of its {result.files} files are missing or have changed. Restore "
            "another one, or put the files back from a backup of the storage",
            metadata=shown,
            allow_retries=False,
        )
    asking.tell(f"{result.path}: {result.files} files, all intact")
    return shown


def _restored(asking: Asking, config: RestoreConfig | ForkConfig, as_name: str | None = None) -> Metadata:
    request = _restore_request(config, as_name)
    return restore(asking.context, asking.client, asking.job, request, timeout_seconds=config.timeout_seconds)


def _restore_request(config: RestoreConfig | ForkConfig, as_name: str | None = None) -> Restore:
    return requested(
        Restore,
        ref=absolute_reference(config.ref),
        allow_non_restored_state=config.allow_non_restored_state,
        allow_missing_input=config.allow_missing_input,
        roll_back_sinks=isinstance(config, RestoreConfig) and config.roll_back_sinks,
        accept_skipped_epochs=isinstance(config, RestoreConfig) and config.accept_skipped_epochs,
        verify=config.verify,
        force=config.force,
        as_name=as_name,
    )


def _with_fields(failure: dg.Failure, what: str, consequence: str) -> dg.Failure:
    """Return the failure with a readable list of the problems in the fields of the payload."""
    error = failure.__cause__
    if not isinstance(error, CommandRefused) or not error.fields:
        return failure
    rows = [[_place(field), field.get("msg", "")] for field in error.fields]
    said = "; ".join(f"{place}: {problem}" for place, problem in rows)
    metadata = {name: value for name, value in failure.metadata.items() if name != f"{NAMESPACE}problems"}
    return dg.Failure(
        f"the payload is not a valid {what}: {said}. {consequence}",
        metadata={**metadata, f"{NAMESPACE}problems": dg.MetadataValue.md(markdown.table(("field", "problem"), rows))},
        allow_retries=False,
    )


def _place(field: Mapping[str, Any]) -> str:
    path: Iterable[Any] = field.get("loc") or ()
    return ".".join(map(str, path)) or "the whole payload"


@dataclass(frozen=True, slots=True)
class Action(Generic[_C]):
    """One of the Dagster jobs.

    Attributes:
        work: performs the action and returns the metadata that the run shows.
    """

    name: str
    config: type[_C]
    work: Callable[[Asking, _C], Metadata]
    description: str


#: Those for jobs whose definition says how to start them.
STARTS: Final[tuple[Action[Any], ...]] = (
    Action(
        START_JOB,
        StartConfig,
        start,
        "Start the driver of a streaming job in the background, on the machine of this run, and wait until it is "
        "running.",
    ),
    Action(
        "upgrade_streaming_job",
        UpgradeConfig,
        upgrade_streaming_job,
        "Replace the program of a running streaming job by the one that start in its definition names now: check it, "
        "stop the job with a savepoint, start the new program from there, watch it, and go back if it fails.",
    ),
)
SEND_EVENT: Final = Action(
    "send_control_event",
    SendConfig,
    send_event,
    "Send a control event to an operator, exactly once, and wait until its effect is durable.",
)
SET_LIVE: Final = Action(
    "set_live_value",
    SetConfig,
    set_live,
    "Change fields of a live value, exactly once, and wait until the change is accepted: it is durable, and in force "
    "from the next epoch of each query.",
)
ACTIONS: Final[tuple[Action[Any], ...]] = (
    Action(
        "stop_streaming_job",
        StopConfig,
        stop,
        "Stop a streaming job after its current epochs, optionally with a savepoint. It stays stopped until you "
        "start it.",
    ),
    Action(
        "restart_streaming_job",
        ActionConfig,
        restart,
        "Restart the driver of a streaming job, with the current version of its script. The driver must run under "
        "coordctl run, as it does when started by start_streaming_job.",
    ),
    Action(
        "restore_streaming_job",
        RestoreConfig,
        restore_streaming_job,
        "Restore a streaming job from a checkpoint or savepoint: through its driver if the job is running, otherwise "
        "directly on its storage. Shows the preflight checks in either case.",
    ),
    Action(
        "fork_streaming_job",
        ForkConfig,
        fork,
        "Fork a new streaming job from a checkpoint or savepoint. The original job is not affected.",
    ),
    Action(
        "promote_streaming_job",
        PromoteConfig,
        promote_streaming_job,
        "Let a fork take the place of the job that it was forked from, which stops with a savepoint. Waits until the "
        "fork is ready: it runs, has completed a checkpoint, and is about as far as its parent.",
    ),
    SEND_EVENT,
    SET_LIVE,
    Action(
        "ask_operator",
        AskConfig,
        ask,
        "Ask an operator something; its answer is metadata of the run. It changes nothing. Every operator answers "
        "CommittedStates.",
    ),
    Action(
        "dispose_savepoint",
        RefConfig,
        dispose,
        "Delete a checkpoint or savepoint permanently. Refused for the newest checkpoint, and while it is being read.",
    ),
    Action(
        "verify_savepoint",
        RefConfig,
        verify,
        "Let the driver read all files of a checkpoint or savepoint and verify their checksums. Fails if one is "
        "missing or damaged.",
    ),
)
