"""A Dagster step that sends a request to a job and waits for it: progress, failures and cancellation.

A cancelled run must neither leave an unwanted request active nor lose the result of one that could not be stopped.
Dagster interrupts a step with an exception that may be raised anywhere, even between a request and its answer. So the
command is looked up by its key, aborted or awaited as configured, and its outcome is awaited for a bounded time, since
the worker is killed soon after:

    interrupted before the request          -> the run is cancelled
    interrupted, and the command is aborted -> the run is cancelled, and there is no checkpoint
    interrupted, but too late to abort      -> the result is reported, and the run is still cancelled

Threads: blocks the step's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, cast

import dagster as dg

import coord_control as cc
from coord_control.control.client.progress_lines import ProgressLines
from coord_control.control.client.request_once import ask_once, newest_request
from coord_control.control.commands import Command, CommandResult
from coord_control.dagster.metadata import NAMESPACE
from coord_control.dagster.runs.idempotency import StepContext, attempt_key
from coord_control.dagster.runs.own_runs import RUN_ACTOR, SCHEDULE_TAG, schedule_actor
from coord_control.errors import (
    CommandFailed,
    CommandNotCancellable,
    CommandTimeout,
    CoordControlError,
    Fault,
    JobNotRunning,
    KeyReused,
)
from coord_control.storage.records import CommandRecord

__all__ = ["Followed", "OnCancel", "action_failure", "actor_of", "attend", "follow"]

#: Whether to abort a command when the run is cancelled, or to wait until it has finished.
OnCancel: TypeAlias = Literal["abort", "finish"]

#: How long a cancelled run waits for the outcome. Dagster kills such a run after 180 s.
_ABORT_SECONDS: Final = 60.0
_FINISH_SECONDS: Final = 150.0
_CANCELLED: Final = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)

_R = TypeVar("_R", bound=CommandResult)


@dataclass(frozen=True, slots=True)
class Followed(Generic[_R]):
    """A completed command.

    Attributes:
        is_cancelled: whether the run was cancelled, but too late to abort the command. Report the result, then raise
            ``DagsterExecutionInterruptedError``, so that the run ends as cancelled.
    """

    result: _R
    is_cancelled: bool = False


def actor_of(context: StepContext) -> str:
    """Return the requester for the audit trail: the schedule that launched the run, or the run itself."""
    schedule = context.run.tags.get(SCHEDULE_TAG)
    return f"{RUN_ACTOR}{context.run.run_id}" if schedule is None else schedule_actor(schedule)


def follow(
    context: StepContext,
    client: cc.ControlClient,
    job: str,
    command: Command[_R],
    *,
    timeout_seconds: float,
    on_cancel: OnCancel = "abort",
) -> _R:
    """Send a request to a job once, no matter how often the step runs, and wait for the result.

    Args:
        timeout_seconds: how long to wait, and how long the request waits for a driver. A request that a driver has
            begun continues after that; a retry waits for it.
        on_cancel: what to do with the request if the run is cancelled.

    Raises:
        Failure: the request was refused or failed; with the cause and the next step.
        DagsterExecutionInterruptedError: the run was cancelled.
    """
    followed = attend(context, client, job, command, timeout_seconds=timeout_seconds, on_cancel=on_cancel)
    if followed.is_cancelled:
        raise dg.DagsterExecutionInterruptedError("the run was cancelled, too late to abort its request")
    return followed.result


def attend(
    context: StepContext,
    client: cc.ControlClient,
    job: str,
    command: Command[_R],
    *,
    timeout_seconds: float,
    on_cancel: OnCancel = "abort",
) -> Followed[_R]:
    """Do the same as :func:`follow`, for steps that report a result that was completed after the cancellation."""
    _check_wanted(context)
    base = attempt_key(context)
    is_cancelled = False
    try:
        asked = ask_once(client, job, base, command, timeout_seconds)
        _say_asked(context, asked.command, was_known=asked.was_known)
        result = client.wait(asked.command, timeout_seconds, on_progress=ProgressLines(context.log.info))
    except dg.DagsterExecutionInterruptedError:
        context.log.info("The run is being cancelled")
        result, is_cancelled = _settled(context, client, job, base, on_cancel), True
    except CoordControlError as error:
        raise action_failure(error) from error
    assert isinstance(result, command.result), "it is the result of this command"
    return Followed(cast("_R", result), is_cancelled=is_cancelled)


def action_failure(error: CoordControlError) -> dg.Failure:
    """Return an error as the failure of a step: what happened, what to do next, and whether a retry makes sense."""
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
        return "Re-execute the run from failure to keep waiting for it."
    if isinstance(error, JobNotRunning):
        return "In Dagster, use start_streaming_job if the job's definition has start. Then re-execute this run."
    if isinstance(error, KeyReused):
        return "A run that is re-executed from failure repeats the same request: launch a new run for a different one."
    if error.retry:
        return "It may succeed when the run is re-executed."
    if error.fault is Fault.INTERNAL:
        return "This is a bug in coord-control; please report it."
    return "Re-executing the run without a change will not help."


def _check_wanted(context: StepContext) -> None:
    # With a retry policy and the in-process executor, Dagster retries an interrupted step.
    run = context.instance.get_run_by_id(context.run.run_id)
    if run is not None and run.status in _CANCELLED:
        raise dg.DagsterExecutionInterruptedError("the run was cancelled")


def _say_asked(context: StepContext, command: CommandRecord, *, was_known: bool) -> None:
    what = command.kind.words
    if was_known:
        context.log.info(f"An earlier attempt has sent the request: command {command.id} ({what}) is {command.state}")
    else:
        context.log.info(f"Sent the request to job {command.job}: command {command.id} ({what})")


def _settled(context: StepContext, client: cc.ControlClient, job: str, base: str, on_cancel: OnCancel) -> CommandResult:
    """Abort or await the command of a cancelled run, and return its result if it completed nevertheless.

    Raises:
        DagsterExecutionInterruptedError: there is no result (yet), or the run was interrupted once more.
    """
    try:
        command = newest_request(client, job, base)
        if command is None:
            raise dg.DagsterExecutionInterruptedError("the run was cancelled before it sent its request")
        is_aborted = on_cancel == "abort" and _abort(context, client, command)
        seconds = _ABORT_SECONDS if is_aborted else _FINISH_SECONDS
        result = client.wait(command, seconds, on_progress=ProgressLines(context.log.info))
    except (CommandFailed, JobNotRunning) as error:
        context.log.info(f"The request was not carried out: {error}")
    except CoordControlError as error:  # it may still be completed; the sensor shows it then
        context.log.warning(f"The outcome is not known yet: {error}")
    else:
        context.log.info("It was complete before it could be aborted" if is_aborted else "It is complete")
        return result
    raise dg.DagsterExecutionInterruptedError("the run was cancelled")


def _abort(context: StepContext, client: cc.ControlClient, command: CommandRecord) -> bool:
    """Request the abort of a command. Return False if it can no longer be aborted and must be awaited."""
    try:
        client.cancel(command)
    except CommandNotCancellable:
        context.log.info(f"Command {command.id} can no longer be aborted; waiting for its end")
        return False
    context.log.info(f"Aborted command {command.id}; waiting for its outcome")
    return True
