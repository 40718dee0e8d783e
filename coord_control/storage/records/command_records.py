"""Commands to jobs, and their results.

Values; any thread.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from coord_control.storage.records.record import Record

__all__ = [
    "FINISHED_COMMAND_STATES",
    "CommandError",
    "CommandKind",
    "CommandRecord",
    "CommandRequest",
    "CommandState",
    "Outcome",
]


class CommandKind(enum.StrEnum):
    """What can be requested of a job.

    The database may contain commands of a newer release: their kinds are not members, but values of this type.
    """

    TRIGGER_CHECKPOINT = "trigger_checkpoint"
    TRIGGER_SAVEPOINT = "trigger_savepoint"
    ABORT = "abort"
    STOP = "stop"
    STOP_WITH_SAVEPOINT = "stop_with_savepoint"
    RESTART = "restart"
    RESTORE = "restore"
    DISPOSE = "dispose"
    VERIFY = "verify"
    SEND_EVENT = "send_event"
    ASK = "ask"
    SET_LIVE = "set_live"
    GET_LIVE = "get_live"

    @classmethod
    def _missing_(cls, value: object) -> CommandKind | None:
        if not isinstance(value, str):
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown

    @property
    def words(self) -> str:
        """The kind as text for people."""
        return self.value.replace("_", " ")


class CommandState(enum.StrEnum):
    """The state of a command; it only moves forward, and ends with exactly one outcome."""

    PENDING = "pending"  #: recorded, not yet claimed by a driver
    CLAIMED = "claimed"  #: a driver is executing it
    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"  #: not executed; nothing was changed
    EXPIRED = "expired"  #: no driver claimed it in time
    CANCELLED = "cancelled"


#: The final states.
FINISHED_COMMAND_STATES: Final = (
    CommandState.COMPLETED,
    CommandState.FAILED,
    CommandState.REFUSED,
    CommandState.EXPIRED,
    CommandState.CANCELLED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandError(Record):
    """Why a command did not succeed.

    Attributes:
        code: a stable name in capitals, for programs.
        fault: whose fault it is: user, external or internal.
        retry: whether the same command may succeed later.
        fields: errors of single fields of the payload.
    """

    code: str
    message: str
    fault: str = "external"
    retry: bool = False
    fields: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest(Record):
    """A request to a job.

    Attributes:
        key: idempotency key: the same key means the same command; None to generate one.
        operator: the operator that it is addressed to, if any.
        expires_seconds: how long it waits for a driver.
    """

    job: str
    kind: CommandKind
    payload: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    operator: str | None = None
    requested_by: str = ""
    requested_from: str = ""
    expires_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord(Record):
    """A command and its result.

    Attributes:
        id: sorts by the time of the request.
        generation: generation of the driver that claimed it.
        number: position of a control event among those of its operator; None if it is not accepted yet.
        checkpoint: the id of the checkpoint that it made.
    """

    id: str
    job: str
    kind: CommandKind
    key: str
    payload: dict[str, Any]
    state: CommandState
    requested_by: str
    requested_from: str
    requested_at: datetime
    expires_at: datetime
    operator: str | None = None
    generation: int | None = None
    claimed_at: datetime | None = None
    number: int | None = None
    checkpoint: int | None = None
    progress: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    error: CommandError | None = None
    finished_at: datetime | None = None
    cancel_requested: bool = False

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED_COMMAND_STATES

    @property
    def stands(self) -> bool:
        """Whether it is in progress or completed, so that a repeated request finds it instead of being sent again."""
        return not self.is_finished or self.state is CommandState.COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Record):
    """The end of a command that was claimed: completed, failed, refused or cancelled."""

    state: CommandState
    result: dict[str, Any] | None = None
    error: CommandError | None = None
    checkpoint: int | None = None
