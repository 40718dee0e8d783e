"""What a client can ask a driver for, and what it gets back: one model per kind, the same on both sides.

Payloads are what a client sends, results what the driver answers when a command is completed, progress what it says
meanwhile. Lengths are limited here, before anything reaches the database, and again by whoever reads it back: an entry
in a table that others can write is input.

Threads: values; any thread.
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
    """Why a command ended without having been done, as a code; a checkpoint that failed has its failure reason."""

    JOB_NOT_RUNNING = "JOB_NOT_RUNNING"  #: nobody is there to do it
    NOT_SUPERVISED = "NOT_SUPERVISED"  #: nobody would start the driver again
    UNKNOWN_OPERATOR = "UNKNOWN_OPERATOR"
    UNKNOWN_EVENT_TYPE = "UNKNOWN_EVENT_TYPE"
    UNKNOWN_SUBTASK = "UNKNOWN_SUBTASK"
    EVENT_INVALID = "EVENT_INVALID"  #: the payload does not fit the event's model; the fields say where
    CHECKPOINT_NOT_FOUND = "CHECKPOINT_NOT_FOUND"
    CHECKPOINT_IN_USE = "CHECKPOINT_IN_USE"
    NOTHING_TO_ABORT = "NOTHING_TO_ABORT"  #: it is over already
    RESTORE_REFUSED = "RESTORE_REFUSED"  #: the check before it says that it cannot work
    JOB_CLOSED = "JOB_CLOSED"  #: the job was ending when it was to be done
    PAYLOAD_INVALID = "PAYLOAD_INVALID"  #: written by something that is no client of this release
    STORAGE = "STORAGE"  #: the job's storage cannot be used
    INTERNAL = "INTERNAL"  #: a bug of this package


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TriggerCheckpoint(_Value):
    """Take a checkpoint now."""

    kind: Literal[CommandKind.TRIGGER_CHECKPOINT] = CommandKind.TRIGGER_CHECKPOINT
    label: _Label | None = None


class TriggerSavepoint(_Value):
    """Take a savepoint: a checkpoint that needs nothing outside its folder, and that nobody removes but a user."""

    kind: Literal[CommandKind.TRIGGER_SAVEPOINT] = CommandKind.TRIGGER_SAVEPOINT
    target: _Path | None = None  #: the new folder; None: below the job's
    label: _Label | None = None


class Abort(_Value):
    """Give up a checkpoint that is under way, named by its id or by the command that asked for it."""

    kind: Literal[CommandKind.ABORT] = CommandKind.ABORT
    checkpoint: Annotated[int, Field(ge=1)] | None = None
    command: _Name | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.checkpoint is None) == (self.command is None):
            raise ValueError("name one of the two: the checkpoint, or the command that asked for it")
        return self


class Stop(_Value):
    """Stop the queries after their current epochs, and end the driver with exit code 0."""

    kind: Literal[CommandKind.STOP] = CommandKind.STOP
    grace_seconds: _Seconds | None = None  #: how long the current epochs may take; None: the job's own


class StopWithSavepoint(_Value):
    """Take a savepoint, plan no epoch after it, and end the driver with exit code 0."""

    kind: Literal[CommandKind.STOP_WITH_SAVEPOINT] = CommandKind.STOP_WITH_SAVEPOINT
    target: _Path | None = None
    label: _Label | None = None


class Restart(_Value):
    """End the driver and start it again; it goes on where it stood."""

    kind: Literal[CommandKind.RESTART] = CommandKind.RESTART


class Restore(_Value):
    """Let the job go on from a checkpoint or savepoint; with ``as_name`` another job, beside this one."""

    kind: Literal[CommandKind.RESTORE] = CommandKind.RESTORE
    ref: _Path  #: an id, a label, latest, or a path
    allow_non_restored_state: bool = False
    allow_missing_input: bool = False
    verify: bool = True  #: read all files and compare their checksums, not only their sizes
    force: bool = False  #: also when a driver of the job that is restored may run where this one cannot look
    as_name: _Name | None = None


class Dispose(_Value):
    """Remove a checkpoint or savepoint for good."""

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
    subtask: _Index | None = None  #: None: all of them

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
    """How far a command is. Every field may be missing: what is known depends on the kind and on the phase."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    message: str = ""  #: one sentence, for people
    checkpoint: int | None = None
    subtasks: int | None = None
    passed_subtasks: int | None = None  #: those that have passed the boundary
    blocked_events: int | None = None


class _Result(BaseModel):
    # A newer driver may say more than this client knows.
    model_config = ConfigDict(frozen=True, extra="ignore")


class CheckpointResult(_Result):
    """A checkpoint or savepoint that is complete."""

    checkpoint: int
    kind: str  #: checkpoint or savepoint
    path: str
    duration_seconds: float
    state_bytes: int
    label: str | None = None
    epochs: dict[str, int] = Field(default_factory=dict)  #: by query


class AbortResult(_Result):
    """A checkpoint that was given up."""

    checkpoint: int


class StopResult(_Result):
    """A job that has stopped."""

    savepoint: CheckpointResult | None = None


class RestartResult(_Result):
    """A job whose next driver runs."""

    generation: int


class RestoreResult(_Result):
    """A job that goes on from a checkpoint or savepoint."""

    path: str
    checkpoint: int
    job: str  #: the one that goes on: another one after a fork
    linked_bytes: int = 0
    copied_bytes: int = 0
    checks: tuple[dict[str, Any], ...] = ()  #: what was looked at before


class DisposeResult(_Result):
    """A checkpoint or savepoint that is gone."""

    path: str
    checkpoint: int


class VerifyResult(_Result):
    """What a look at every file has found."""

    path: str
    checkpoint: int
    files: int
    size: int  #: bytes
    problems: tuple[dict[str, Any], ...] = ()  #: path, kind, detail, fatal

    @property
    def is_intact(self) -> bool:
        """Whether it can be restored."""
        return not any(problem.get("fatal", True) for problem in self.problems)


class SendEventResult(_Result):
    """A control event that has taken effect."""

    number: int  #: its place in the order of the operator's events


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
    """What the database keeps of a command beside its kind."""
    return command.model_dump(mode="json", exclude={"kind"})


def parse_command(kind: str, payload: Mapping[str, Any]) -> Command:
    """The command of a row.

    Raises:
        pydantic.ValidationError: it is none that this release knows.
    """
    return _COMMAND.validate_python({**payload, "kind": kind})


def parse_result(kind: str, result: Mapping[str, Any]) -> CommandResult:
    """The typed result of a completed command.

    Raises:
        ValueError: it is none that this release knows.
    """
    return _RESULTS[CommandKind(kind)].model_validate(result)
