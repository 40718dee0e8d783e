"""A command line of ``coordctl``, understood as ``coordctl`` does, without doing what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from typer.main import get_command

from coord_control.cli.main import app

__all__ = ["COMMAND", "parsed"]


def _parsing_only(command: Any) -> Any:
    """The command and those below it, as they parse and check their arguments, and give back what they have found."""
    command.callback = lambda **values: values
    for each in getattr(command, "commands", {}).values():
        _parsing_only(each)
    return command


COMMAND: Final = _parsing_only(get_command(app))


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The values of the parameters of the command that is meant.

    Args:
        arguments: without ``coordctl``.

    Raises:
        click's errors: they would not be understood.
    """
    found: dict[str, Any] = COMMAND.main(list(arguments), prog_name="coordctl", standalone_mode=False)
    return found
