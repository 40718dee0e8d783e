"""The commands that a client sends to a driver, and their results: one model per kind, used on both sides.

A client sends a payload; the driver reports progress, and a result once the command is completed. Lengths are limited
here, before anything is written to the database, and checked again when it is read: a table that others can write to is
untrusted input.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, TypeAdapter, model_validator

from coord_control.ids import MAX_LABEL
from coord_control.storage.records import CommandKind

__all__ = [
    "MAX_EVENT_BYTES",
    "MAX_PATH",
    "Abort",
    "AbortResult",
    "CheckpointResult",
    "Command",
    "CommandKind",
    "CommandProgress",
    "CommandResult",
    "Dispose",
    "DisposeResult",
    "Refusal",
    "Restart",
    "RestartResult",
    "Restore",
    "RestoreResult",
    "SendEvent",
    "SendEventResult",
    "Stop",
    "StopResult",
    "StopWithSavepoint",
    "TriggerCheckpoint",
    "TriggerSavepoint",
    "Verify",
    "VerifyResult",
    "command_payload",
    "parse_command",
    "parse_result",
]

MAX_PATH: Final = 4096
MAX_NAME: Final = 256
MAX_EVENT_BYTES: Final = 256 * 1024  #: of the JSON text of a control event

_Label: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_LABEL)]
_Path: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATH)]
_Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]
_Index: TypeAlias = Annotated[int, Field(ge=0)]
_Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Refusal(enum.StrEnum):
    """The code of a command that was not carried out; a failed checkpoint has its failure reason instead."""

    JOB_NOT_RUNNING = "JOB_NOT_RUNNING"  #: the job has no live driver
    NOT_SUPERVISED = "NOT_SUPERVISED"  #: no supervisor would restart the driver
    UNKNOWN_OPERATOR = "UNKNOWN_OPERATOR"
    UNKNOWN_EVENT_TYPE = "UNKNOWN_EVENT_TYPE"
    UNKNOWN_SUBTASK = "UNKNOWN_SUBTASK"
    EVENT_INVALID = "EVENT_INVALID"  #: the payload does not match the event's model; the fields list the problems
    CHECKPOINT_NOT_FOUND = "CHECKPOINT_NOT_FOUND"
    CHECKPOINT_IN_USE = "CHECKPOINT_IN_USE"
    NOTHING_TO_ABORT = "NOTHING_TO_ABORT"  #: the checkpoint has already finished
    RESTORE_REFUSED = "RESTORE_REFUSED"  #: the preflight checks have failed
    JOB_CLOSED = "JOB_CLOSED"  #: the job was ending
    PAYLOAD_INVALID = "PAYLOAD_INVALID"  #: not written by a client of this release
    STORAGE = "STORAGE"  #: the job's storage is not available
    INTERNAL = "INTERNAL"  #: a bug of this package


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TriggerCheckpoint(_Value):
    """Take a checkpoint now."""

    kind: Literal[CommandKind.TRIGGER_CHECKPOINT] = CommandKind.TRIGGER_CHECKPOINT
    label: _Label | None = None


class TriggerSavepoint(_Value):
    """Take a savepoint: a checkpoint that needs nothing outside its folder, and is never removed automatically."""

    kind: Literal[CommandKind.TRIGGER_SAVEPOINT] = CommandKind.TRIGGER_SAVEPOINT
    target: _Path | None = None  #: the folder to create, or None for one in the job's folder
    label: _Label | None = None


class Abort(_Value):
    """Abort a checkpoint in progress, given by its id or by the command that requested it."""

    kind: Literal[CommandKind.ABORT] = CommandKind.ABORT
    checkpoint: Annotated[int, Field(ge=1)] | None = None
    command: _Name | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.checkpoint is None) == (self.command is None):
            raise ValueError("name either the checkpoint or the command that requested it")
        return self


class Stop(_Value):
    """Stop the queries after their current epochs, and end the driver with exit code 0."""

    kind: Literal[CommandKind.STOP] = CommandKind.STOP
    grace_seconds: _Seconds | None = None  #: how long the current epochs may take, or None for the job's setting


class StopWithSavepoint(_Value):
    """Take a savepoint, plan no epoch after it, and end the driver with exit code 0."""

    kind: Literal[CommandKind.STOP_WITH_SAVEPOINT] = CommandKind.STOP_WITH_SAVEPOINT
    target: _Path | None = None
    label: _Label | None = None


class Restart(_Value):
    """Restart the driver; it resumes where it stopped."""

    kind: Literal[CommandKind.RESTART] = CommandKind.RESTART


class Restore(_Value):
    """Restore the job from a checkpoint or savepoint; with ``as_name``, fork a new job instead."""

    kind: Literal[CommandKind.RESTORE] = CommandKind.RESTORE
    ref: _Path  #: an id, a label, latest, or a path
    allow_non_restored_state: bool = False
    allow_missing_input: bool = False
    verify: bool = True  #: read all files and compare their checksums, not only their sizes
    force: bool = False  #: proceed even if another host that cannot be checked may run a driver of the restored job
    as_name: _Name | None = None


class Dispose(_Value):
    """Remove a checkpoint or savepoint permanently."""

    kind: Literal[CommandKind.DISPOSE] = CommandKind.DISPOSE
    ref: _Path


class Verify(_Value):
    """Read all files of a checkpoint or savepoint, and compare them with its manifest."""

    kind: Literal[CommandKind.VERIFY] = CommandKind.VERIFY
    ref: _Path


class SendEvent(_Value):
    """Send a control event to an operator, exactly once."""

    kind: Literal[CommandKind.SEND_EVENT] = CommandKind.SEND_EVENT
    operator: _Name
    event_type: _Name
    payload: JsonValue
    subtask: _Index | None = None  #: None for all subtasks

    @model_validator(mode="after")
    def _size(self) -> Self:
        size = len(json.dumps(self.payload, ensure_ascii=False, allow_nan=False).encode(errors="surrogatepass"))
        if size > MAX_EVENT_BYTES:
            raise ValueError(f"the event takes {size} bytes, the limit is {MAX_EVENT_BYTES}; send a reference instead")
        return self


Command: TypeAlias = (
    TriggerCheckpoint
    | TriggerSavepoint
    | Abort
    | Stop
    | StopWithSavepoint
    | Restart
    | Restore
    | Dispose
    | Verify
    | SendEvent
)


class CommandProgress(BaseModel):
    """The progress of a command. Any field may be missing, depending on the kind and the phase."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    message: str = ""  #: one human-readable sentence
    checkpoint: int | None = None
    subtasks: int | None = None
    passed_subtasks: int | None = None  #: those that have passed the boundary
    blocked_events: int | None = None


class _Result(BaseModel):
    # A newer driver may send fields that this client does not know.
    model_config = ConfigDict(frozen=True, extra="ignore")


class CheckpointResult(_Result):
    """A completed checkpoint or savepoint."""

    checkpoint: int
    kind: str  #: checkpoint or savepoint
    path: str
    duration_seconds: float
    state_bytes: int
    label: str | None = None
    epochs: dict[str, int] = Field(default_factory=dict)  #: by query


class AbortResult(_Result):
    """An aborted checkpoint."""

    checkpoint: int


class StopResult(_Result):
    """A stopped job."""

    savepoint: CheckpointResult | None = None


class RestartResult(_Result):
    """A job whose next driver is running."""

    generation: int


class RestoreResult(_Result):
    """A job that was restored from a checkpoint or savepoint."""

    path: str
    checkpoint: int
    job: str  #: the restored job: the new one after a fork
    linked_bytes: int = 0
    copied_bytes: int = 0
    checks: tuple[dict[str, Any], ...] = ()  #: the preflight checks


class DisposeResult(_Result):
    """A removed checkpoint or savepoint."""

    path: str
    checkpoint: int


class VerifyResult(_Result):
    """The result of a verification of all files."""

    path: str
    checkpoint: int
    files: int
    size: int  #: bytes
    problems: tuple[dict[str, Any], ...] = ()  #: path, kind, detail, fatal

    @property
    def is_intact(self) -> bool:
        """Return whether the checkpoint can be restored."""
        return not any(problem.get("fatal", True) for problem in self.problems)


class SendEventResult(_Result):
    """A control event that has taken effect."""

    number: int  #: its position in the sequence of the operator's events


CommandResult: TypeAlias = (
    CheckpointResult
    | AbortResult
    | StopResult
    | RestartResult
    | RestoreResult
    | DisposeResult
    | VerifyResult
    | SendEventResult
)

_RESULTS: Final[Mapping[CommandKind, type[CommandResult]]] = {
    CommandKind.TRIGGER_CHECKPOINT: CheckpointResult,
    CommandKind.TRIGGER_SAVEPOINT: CheckpointResult,
    CommandKind.ABORT: AbortResult,
    CommandKind.STOP: StopResult,
    CommandKind.STOP_WITH_SAVEPOINT: StopResult,
    CommandKind.RESTART: RestartResult,
    CommandKind.RESTORE: RestoreResult,
    CommandKind.DISPOSE: DisposeResult,
    CommandKind.VERIFY: VerifyResult,
    CommandKind.SEND_EVENT: SendEventResult,
}
_COMMAND: Final[TypeAdapter[Command]] = TypeAdapter(Annotated[Command, Field(discriminator="kind")])


def command_payload(command: Command) -> dict[str, Any]:
    """Return what the database stores of a command in addition to its kind."""
    return command.model_dump(mode="json", exclude={"kind"})


def parse_command(kind: str, payload: Mapping[str, Any]) -> Command:
    """Parse the command of a database row.

    Raises:
        pydantic.ValidationError: it is not a valid command of this release.
    """
    return _COMMAND.validate_python({**payload, "kind": kind})


def parse_result(kind: str, result: Mapping[str, Any]) -> CommandResult:
    """Parse the result of a completed command.

    Raises:
        ValueError: it is not a valid result of this release.
    """
    return _RESULTS[CommandKind(kind)].model_validate(result)
