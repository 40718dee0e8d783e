"""The outcomes of commands: results, and errors as codes that never change."""

from __future__ import annotations

import abc
import enum
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from coord_control.errors import (
    CheckpointInUse,
    CheckpointNotCompleted,
    CheckpointNotFound,
    CoordControlError,
    EffectOfRequest,
    EventInvalid,
    Fault,
    ForkNameTaken,
    InvalidName,
    JobClosed,
    JobRunning,
    LiveValueInvalid,
    LiveValueNotFound,
    LiveVersionChanged,
    NoSuchSubtask,
    NotAnswered,
    OperatorNotFound,
    RequestFailed,
    RequestNotValid,
    RestoreRefused,
    StateNotPutBack,
    StoreError,
    UndeclaredEvent,
    UndeclaredRequest,
)
from coord_control.protocol.failures import FailureReason
from coord_control.storage.records import CommandError, CommandState, Outcome

__all__ = ["CommandResult", "Refusal", "cancelled", "completed", "failed", "outcome_of", "refused"]


class CommandResult(BaseModel, abc.ABC):
    """What a completed command has achieved."""

    # A newer driver may send fields that this client does not know.
    model_config = ConfigDict(frozen=True, extra="ignore")

    @abc.abstractmethod
    def text(self, job: str) -> str:
        """Describe the result in a sentence or two."""


class Refusal(enum.StrEnum):
    """The code of a command that was not carried out; a failed checkpoint has its failure reason instead."""

    JOB_NOT_RUNNING = "JOB_NOT_RUNNING"  #: the job has no live driver
    NOT_SUPERVISED = "NOT_SUPERVISED"  #: no supervisor would restart the driver
    UNKNOWN_OPERATOR = "UNKNOWN_OPERATOR"
    UNKNOWN_EVENT_TYPE = "UNKNOWN_EVENT_TYPE"
    UNKNOWN_SUBTASK = "UNKNOWN_SUBTASK"
    EVENT_INVALID = "EVENT_INVALID"  #: the payload does not match the event's model; the fields list the problems
    UNKNOWN_REQUEST = "UNKNOWN_REQUEST"  #: the operator answers no request of this name
    REQUEST_INVALID = "REQUEST_INVALID"  #: the payload does not match the request's model; the fields list the problems
    REQUEST_FAILED = "REQUEST_FAILED"  #: the coordinator raised, or its answer cannot be used
    NOT_ANSWERED = "NOT_ANSWERED"  #: not within the time: the coordinator is busy, or its query is being restarted
    UNKNOWN_LIVE_VALUE = "UNKNOWN_LIVE_VALUE"
    LIVE_VALUE_INVALID = "LIVE_VALUE_INVALID"  #: it would not match its model; the fields list the problems
    LIVE_VERSION_CHANGED = "LIVE_VERSION_CHANGED"  #: it has another version than the one that was expected
    CHECKPOINT_NOT_FOUND = "CHECKPOINT_NOT_FOUND"
    CHECKPOINT_IN_USE = "CHECKPOINT_IN_USE"
    NOTHING_TO_ABORT = "NOTHING_TO_ABORT"  #: the checkpoint has already finished
    RESTORE_REFUSED = "RESTORE_REFUSED"  #: the preflight checks have failed
    JOB_CLOSED = "JOB_CLOSED"  #: the job was ending
    PAYLOAD_INVALID = "PAYLOAD_INVALID"  #: not written by a client of this release
    STORAGE = "STORAGE"  #: the job's storage is not available
    INTERNAL = "INTERNAL"  #: a bug in this package


#: Errors after which nothing was changed; the first match counts.
_REFUSALS: Final[tuple[tuple[type[Exception], Refusal], ...]] = (
    (CheckpointNotFound, Refusal.CHECKPOINT_NOT_FOUND),
    (CheckpointInUse, Refusal.CHECKPOINT_IN_USE),
    (RestoreRefused, Refusal.RESTORE_REFUSED),
    (OperatorNotFound, Refusal.UNKNOWN_OPERATOR),
    (UndeclaredEvent, Refusal.UNKNOWN_EVENT_TYPE),
    (EventInvalid, Refusal.EVENT_INVALID),
    (LiveValueNotFound, Refusal.UNKNOWN_LIVE_VALUE),
    (LiveValueInvalid, Refusal.LIVE_VALUE_INVALID),
    (LiveVersionChanged, Refusal.LIVE_VERSION_CHANGED),
    (NoSuchSubtask, Refusal.UNKNOWN_SUBTASK),
    (UndeclaredRequest, Refusal.UNKNOWN_REQUEST),
    (RequestNotValid, Refusal.REQUEST_INVALID),
    (RequestFailed, Refusal.REQUEST_FAILED),
    (EffectOfRequest, Refusal.REQUEST_FAILED),
    (StateNotPutBack, Refusal.REQUEST_FAILED),
    (NotAnswered, Refusal.NOT_ANSWERED),
    (InvalidName, Refusal.PAYLOAD_INVALID),
    (ForkNameTaken, Refusal.PAYLOAD_INVALID),
    (ValidationError, Refusal.PAYLOAD_INVALID),
    (JobClosed, Refusal.JOB_CLOSED),
)
_MESSAGE_CHARACTERS: Final = 4000


def completed(result: CommandResult, checkpoint: int | None = None) -> Outcome:
    """Return the outcome of a command that succeeded."""
    document = result.model_dump(mode="json")
    return Outcome(state=CommandState.COMPLETED, result=document, checkpoint=checkpoint)


def cancelled(message: str, checkpoint: int | None = None) -> Outcome:
    """Return the outcome of a command that was cancelled on request."""
    error = CommandError(code=FailureReason.ABORTED.name, message=message, fault=Fault.USER.value, retry=True)
    return Outcome(state=CommandState.CANCELLED, error=error, checkpoint=checkpoint)


def refused(
    code: Refusal,
    message: str,
    *,
    fault: Fault = Fault.USER,
    retry: bool = False,
    fields: list[dict[str, Any]] | None = None,
) -> Outcome:
    """Return the outcome of a command that cannot be carried out and has changed nothing."""
    return _ended(CommandState.REFUSED, code.value, message, fault, retry, fields)


def failed(code: str, message: str, *, fault: Fault = Fault.EXTERNAL, retry: bool = False) -> Outcome:
    """Return the outcome of a command that was started and failed."""
    return _ended(CommandState.FAILED, code, message, fault, retry, None)


def outcome_of(error: Exception, checkpoint: int | None = None) -> Outcome:
    """Return the outcome of a command that raised an error."""
    if isinstance(error, CheckpointNotCompleted):
        return _of_checkpoint(error, checkpoint)
    for kind, code in _REFUSALS:
        if isinstance(error, kind):
            fault = error.fault if isinstance(error, CoordControlError) else Fault.USER
            retry = isinstance(error, CoordControlError) and error.retry
            return refused(code, str(error), fault=fault, retry=retry, fields=_fields(error))
    if isinstance(error, StoreError | OSError | JobRunning):
        return failed(Refusal.STORAGE.value, str(error), retry=True)
    if isinstance(error, CoordControlError):
        return failed(Refusal.INTERNAL.value, str(error), fault=error.fault, retry=error.retry)
    return failed(Refusal.INTERNAL.value, f"{type(error).__name__}: {error}", fault=Fault.INTERNAL)


def _of_checkpoint(error: CheckpointNotCompleted, checkpoint: int | None) -> Outcome:
    reason = FailureReason[error.reason.upper()]
    state = CommandState.REFUSED if reason.is_preflight else CommandState.FAILED
    fault = reason.fault or Fault.EXTERNAL
    found = CommandError(code=reason.name, message=_short(str(error)), fault=fault.value, retry=reason.retry)
    return Outcome(state=state, error=found, checkpoint=checkpoint)


def _ended(
    state: CommandState, code: str, message: str, fault: Fault, retry: bool, fields: list[dict[str, Any]] | None
) -> Outcome:
    error = CommandError(code=code, message=_short(message), fault=fault.value, retry=retry, fields=tuple(fields or ()))
    return Outcome(state=state, error=error)


def _short(message: str) -> str:
    return message if len(message) <= _MESSAGE_CHARACTERS else message[: _MESSAGE_CHARACTERS - 1] + "…"


def _fields(error: Exception) -> list[dict[str, Any]]:
    if isinstance(error, EventInvalid | LiveValueInvalid | RequestNotValid):
        return [dict(each) for each in error.fields]
    if isinstance(error, RestoreRefused):
        return [dict(each) for each in error.checks]
    if isinstance(error, ValidationError):
        return [{"loc": list(each["loc"]), "msg": each["msg"]} for each in error.errors()]
    return []
