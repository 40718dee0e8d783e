"""The commands that a client sends to a driver: a module for each kind, and the table in which they are found.

A module has everything about its kind: the payload and the result (used on both sides), how a driver carries it out,
what the next driver does if the first one dies, and the texts.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from coord_control.control.commands.abort import Abort, AbortResult
from coord_control.control.commands.ask import MAX_REQUEST_BYTES, Ask, AskResult
from coord_control.control.commands.dispose import Dispose, DisposeResult
from coord_control.control.commands.get_live import GetLive
from coord_control.control.commands.restart import Restart, RestartResult
from coord_control.control.commands.restore import Restore, RestoreResult
from coord_control.control.commands.send_event import (
    MAX_EVENT_BYTES,
    EventStage,
    SendEvent,
    SendEventResult,
    event_so_far,
)
from coord_control.control.commands.set_live import LiveInQuery, LiveResult, SetLive
from coord_control.control.commands.stop import Stop, StopResult
from coord_control.control.commands.stop_with_savepoint import StopWithSavepoint
from coord_control.control.commands.trigger_checkpoint import TriggerCheckpoint
from coord_control.control.commands.trigger_savepoint import TriggerSavepoint
from coord_control.control.commands.verify import Verify, VerifyResult
from coord_control.control.execution.checkpoint_execution import CheckpointResult
from coord_control.control.execution.command import MAX_PATH, Again, Command, CommandProgress, Takeover, requested
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.outcomes import CommandResult, Refusal
from coord_control.ids import CheckpointKind
from coord_control.storage.records import CommandKind, CommandRecord

__all__ = [
    "CANCELLABLE",
    "COMMANDS",
    "MAX_EVENT_BYTES",
    "MAX_PATH",
    "MAX_REQUEST_BYTES",
    "Abort",
    "AbortResult",
    "Ask",
    "AskResult",
    "CheckpointResult",
    "Command",
    "CommandKind",
    "CommandProgress",
    "CommandResult",
    "Dispose",
    "DisposeResult",
    "EventStage",
    "GetLive",
    "LiveInQuery",
    "LiveResult",
    "Refusal",
    "Restart",
    "RestartResult",
    "Restore",
    "RestoreResult",
    "SendEvent",
    "SendEventResult",
    "SetLive",
    "Stop",
    "StopResult",
    "StopWithSavepoint",
    "TriggerCheckpoint",
    "TriggerSavepoint",
    "Verify",
    "VerifyResult",
    "command_payload",
    "ends_job",
    "event_so_far",
    "parse_command",
    "parse_result",
    "reads",
    "requested",
    "take_over",
    "takes",
]

#: All kinds of commands.
COMMANDS: Final[Mapping[CommandKind, type[Command[Any]]]] = {
    each.kind: each
    for each in (
        TriggerCheckpoint,
        TriggerSavepoint,
        Abort,
        Stop,
        StopWithSavepoint,
        Restart,
        Restore,
        Dispose,
        Verify,
        SendEvent,
        Ask,
        SetLive,
        GetLive,
    )
}


#: The commands that can be cancelled while a driver carries them out.
CANCELLABLE: Final = frozenset(kind for kind, each in COMMANDS.items() if each.takes is not None)


def command_payload(command: Command[Any]) -> dict[str, Any]:
    """Return what the database stores of a command in addition to its kind."""
    return command.model_dump(mode="json")


def parse_command(kind: str, payload: Mapping[str, Any]) -> Command[Any]:
    """Parse the command of a database row.

    Raises:
        pydantic.ValidationError: it is not a valid command of this release.
    """
    return _model(kind).model_validate(payload)


def parse_result(kind: str, result: Mapping[str, Any]) -> CommandResult:
    """Parse the result of a completed command.

    Raises:
        ValueError: it is not a valid result of this release.
    """
    return _model(kind).result.model_validate(result)


def take_over(command: CommandRecord, port: DriverPort, now: datetime.datetime) -> Takeover:
    """Decide what to do with a command that an older driver had claimed.

    Args:
        now: the time by the clock of the database.

    Raises:
        StoreUnavailable: the storage cannot be read; try again later.
    """
    try:
        payload = parse_command(command.kind, command.payload)
    except ValidationError:
        return Again()  # which refuses it
    return payload.take_over(command, port, now)


def takes(kind: CommandKind) -> CheckpointKind | None:
    """Return what commands of a kind take, if they take a checkpoint or savepoint."""
    return COMMANDS[kind].takes if kind in COMMANDS else None


def ends_job(command: CommandRecord) -> bool:
    """Return whether the job ends for a command."""
    try:
        return parse_command(command.kind, command.payload).ends_job
    except ValidationError:  # it is refused
        return False


def reads(kind: CommandKind) -> bool:
    """Return whether commands of a kind need the files of the checkpoint that they name until they end."""
    return kind in COMMANDS and COMMANDS[kind].reads


def _model(kind: str) -> type[Command[Any]]:
    if (found := COMMANDS.get(CommandKind(kind))) is None:
        unknown = PydanticCustomError("unknown_kind", "this release does not know this kind of command")
        raise ValidationError.from_exception_data(kind, [{"type": unknown, "loc": ("kind",), "input": kind}])
    return found
