"""Cancelling the command of a task that a user has stopped."""

from __future__ import annotations

from collections.abc import Callable

from coord_control.control.client.control_client import ControlClient
from coord_control.errors import CommandNotCancellable, CoordControlError

__all__ = ["cancel"]


def cancel(client: ControlClient, command: str, tell: Callable[[str], object]) -> None:
    """Cancel a command, or log why that is not possible; nothing is raised.

    Args:
        tell: receives what was done.
    """
    try:
        record = client.cancel(command)
    except CommandNotCancellable:
        tell(f"Command {command} can no longer be aborted; it continues")
    except CoordControlError as error:
        tell(f"Command {command} was not aborted, and continues: {error}")
    else:
        tell(f"Command {command} was already {record.state}" if record.is_finished else f"Aborting command {command}")
