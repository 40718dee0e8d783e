"""A step of Dagster that asks a job for something and waits for it: progress, failures, and being cancelled.

A run that is cancelled must not leave behind what nobody wants any more, and must not lose what could not be stopped.
Dagster interrupts a step with an exception that may be raised anywhere, even between a request and its answer; so what
was asked for is looked up again by its key, given up or awaited as the config says, and its outcome is awaited for a
bounded time, because whoever runs the worker kills it soon:

    interrupted, and nothing was asked for    -> the run is cancelled
    interrupted, and the command is given up  -> the run is cancelled, and there is no checkpoint
    interrupted, but it was too late          -> the result is reported, and the run is cancelled all the same

Threads: the step's own; everything here blocks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import dagster as dg

import coord_control as cc
from coord_control.control.client.command_wait import progress_text
from coord_control.control.commands import CommandProgress, CommandResult
from coord_control.dagster.metadata import NAMESPACE
from coord_control.dagster.runs.own_runs import RUN_ACTOR, SCHEDULE_TAG, schedule_actor
from coord_control.dagster.runs.reattach import StepContext, Submit, ask_once, attempt_key, newest_request
from coord_control.errors import (
    CommandFailed,
    CommandNotCancellable,
    CommandTimeout,
    CoordControlError,
    Fault,
    JobNotRunning,
    KeyReused,
)
from coord_control.storage.records import CommandKind, CommandRecord

__all__ = ["Followed", "OnCancel", "action_failure", "actor_of", "attend", "follow"]

#: What becomes of a command when the run is cancelled: it is given up, or awaited.
OnCancel: TypeAlias = Literal["abort", "finish"]

#: How long a run that is cancelled waits for the outcome. Dagster gives up on such a run after 180 s.
_ABORT_SECONDS: Final = 60.0
_FINISH_SECONDS: Final = 150.0
#: Blocked events come all the time; a line for each would bury the rest of the log.
_AGAIN_SECONDS: Final = 5.0
_TAKES: Final = {
    CommandKind.TRIGGER_CHECKPOINT: "checkpoint",
    CommandKind.TRIGGER_SAVEPOINT: "savepoint",
    CommandKind.STOP_WITH_SAVEPOINT: "savepoint",
}
_CANCELLED: Final = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)


@dataclass(frozen=True, slots=True)
class Followed:
    """A command that was completed.

    Attributes:
        is_cancelled: the run was cancelled meanwhile, too late. Report the result, then raise
            ``DagsterExecutionInterruptedError``, so that the run ends as cancelled.
    """

    result: CommandResult
    is_cancelled: bool = False


def actor_of(context: StepContext) -> str:
    """Who asks, for the audit trail: the schedule that made the run, or the run."""
    schedule = context.run.tags.get(SCHEDULE_TAG)
    return f"{RUN_ACTOR}{context.run.run_id}" if schedule is None else schedule_actor(schedule)


def follow(
    context: StepContext,
    client: cc.ControlClient,
    submit: Submit,
    *,
    job: str,
    timeout_seconds: float | None,
    on_cancel: OnCancel = "abort",
) -> CommandResult:
    """Ask a job for something once, however often the step is run, and wait for it.

    Args:
        submit: sends the request under the idempotency key that it is given.
        job: the one that is asked.
        timeout_seconds: None: as long as it takes. What is not done by then goes on, and a retry waits for it again.
        on_cancel: what becomes of it when the run is cancelled.

    Raises:
        Failure: it cannot be done, or was not; with the cause and the next step.
        DagsterExecutionInterruptedError: the run was cancelled.
    """
    followed = attend(context, client, submit, job=job, timeout_seconds=timeout_seconds, on_cancel=on_cancel)
    if followed.is_cancelled:
        raise dg.DagsterExecutionInterruptedError("the run was cancelled, too late to give up what it had asked for")
    return followed.result


def attend(
    context: StepContext,
    client: cc.ControlClient,
    submit: Submit,
    *,
    job: str,
    timeout_seconds: float | None,
    on_cancel: OnCancel = "abort",
) -> Followed:
    """As :func:`follow`, for steps that report what was completed although the run had been cancelled."""
    _check_wanted(context)
    base = attempt_key(context)
    try:
        asked = ask_once(client, job, base, submit)
        _say_asked(context, asked.command, was_known=asked.was_known)
        return Followed(client.wait(asked.command, timeout_seconds, on_progress=_Lines(context)))
    except dg.DagsterExecutionInterruptedError:
        context.log.info("The run is being cancelled")
        return Followed(_settled(context, client, job, base, on_cancel), is_cancelled=True)
    except CoordControlError as error:
        raise action_failure(error) from error


def action_failure(error: CoordControlError) -> dg.Failure:
    """An error of ours as the failure of a step: what happened, what to do next, and whether a retry makes sense."""
    metadata: dict[str, Any] = {
        f"{NAMESPACE}error": type(error).__name__,
        f"{NAMESPACE}fault": error.fault.value,
        f"{NAMESPACE}retry": error.retry,
    }
    if isinstance(error, CommandFailed):
        metadata[f"{NAMESPACE}reason"] = error.code
        if error.fields:
            metadata[f"{NAMESPACE}problems"] = dg.MetadataValue.json([dict(each) for each in error.fields])
    if isinstance(error, CommandFailed | CommandTimeout | JobNotRunning) and error.command is not None:
        metadata[f"{NAMESPACE}command"] = error.command
    return dg.Failure(f"{error}. {_next_step(error)}", metadata=metadata, allow_retries=error.retry)


def _next_step(error: CoordControlError) -> str:
    if isinstance(error, CommandTimeout):
        return "Re-execute the run from failure to go on waiting for it."
    if isinstance(error, JobNotRunning):
        return "Here that is start_streaming_job, if its script is known. Then re-execute this run."
    if isinstance(error, KeyReused):
        return "A run that is re-executed from failure asks for the same again: launch a new run for anything else."
    if error.retry:
        return "It may succeed when the run is re-executed."
    if error.fault is Fault.INTERNAL:
        return "This is a bug of coord-control; please report it."
    return "Executing the run again without a change cannot help."


def _check_wanted(context: StepContext) -> None:
    # With a retry policy Dagster runs an interrupted step again, if it executes steps within the run's process.
    run = context.instance.get_run_by_id(context.run.run_id)
    if run is not None and run.status in _CANCELLED:
        raise dg.DagsterExecutionInterruptedError("the run was cancelled")


def _say_asked(context: StepContext, command: CommandRecord, *, was_known: bool) -> None:
    what = command.kind.value.replace("_", " ")
    if was_known:
        context.log.info(f"An earlier attempt has asked for it: command {command.id} ({what}) is {command.state}")
    else:
        context.log.info(f"Asked job {command.job} for it: command {command.id} ({what})")


class _Lines:
    """How far a command is, in the log of the run: a line whenever it has come further, and every few seconds one more
    when only the number of blocked events has changed."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._last = ""
        self._last_step: object = None
        self._again_at = 0.0

    def __call__(self, command: CommandRecord) -> None:
        if command.is_finished:
            return
        progress = CommandProgress.model_validate(command.progress or {})
        how_many = 1 if progress.blocked_events else 0
        step = (command.claimed_at is None, progress.model_copy(update={"blocked_events": how_many}))
        text = _line(command, progress)
        if text == self._last or (step == self._last_step and time.monotonic() < self._again_at):
            return
        self._context.log.info(text)
        self._last, self._last_step, self._again_at = text, step, time.monotonic() + _AGAIN_SECONDS


def _line(command: CommandRecord, progress: CommandProgress) -> str:
    text = progress_text(command)
    kind = _TAKES.get(command.kind)
    if kind is None or progress.checkpoint is None:
        return text
    return f"{kind} {progress.checkpoint}: {text}"


def _settled(context: StepContext, client: cc.ControlClient, job: str, base: str, on_cancel: OnCancel) -> CommandResult:
    """The result of what could not be given up any more.

    Raises:
        DagsterExecutionInterruptedError: there is none, or not yet; also when somebody interrupts once more.
    """
    try:
        command = newest_request(client, job, base)
        if command is None:
            raise dg.DagsterExecutionInterruptedError("the run was cancelled before it had asked for anything")
        is_given_up = on_cancel == "abort" and _give_up(context, client, command)
        seconds = _ABORT_SECONDS if is_given_up else _FINISH_SECONDS
        result = client.wait(command, seconds, on_progress=_Lines(context))
    except (CommandFailed, JobNotRunning) as error:
        context.log.info(f"Nothing is left of it: {error}")
    except CoordControlError as error:  # it may still be completed; the sensor shows it then
        context.log.warning(f"What becomes of it is not known yet: {error}")
    else:
        context.log.info("It was complete before it could be given up" if is_given_up else "It is complete")
        return result
    raise dg.DagsterExecutionInterruptedError("the run was cancelled")


def _give_up(context: StepContext, client: cc.ControlClient, command: CommandRecord) -> bool:
    """Ask for it to be given up; False: that is not possible half-way, and it is awaited."""
    try:
        client.cancel(command)
    except CommandNotCancellable:
        if command.kind is not CommandKind.STOP_WITH_SAVEPOINT:
            context.log.info(f"Command {command.id} cannot be given up half-way; waiting for its end")
            return False
        # Its savepoint can be: then the job runs on.
        client.abort(command.job, command=command.id, key=f"{command.key}:abort")
    context.log.info(f"Gave up command {command.id}; waiting for its outcome")
    return True
