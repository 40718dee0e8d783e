"""coordctl in this process, on a control database of its own."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import typer.testing
from typer.testing import CliRunner, Result

from coord_control.cli.main import app

# The runner makes the commands of an application again for each call, which takes longer than most of them do.
typer.testing._get_command = functools.cache(typer.main.get_command)  # type: ignore[attr-defined]


def call(*arguments: str, text: str | None = None, **environment: str | None) -> Result:
    """Run a command on what the environment says."""
    return CliRunner(env={"COLUMNS": "300", "COORD_ROOT": None, **environment}).invoke(app, list(arguments), input=text)


def invoke(folder: Path, *arguments: str, text: str | None = None, **environment: str) -> Result:
    """Run a command on the database in ``folder``."""
    return call(*arguments, text=text, COORD_CONTROL=f"sqlite:///{folder / 'control.db'}", **environment)


def run(folder: Path, *arguments: str, code: int = 0, text: str | None = None) -> str:
    """Run it, and return what it printed, also to standard error."""
    result = invoke(folder, *arguments, text=text)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def run_json(folder: Path, *arguments: str, code: int = 0, text: str | None = None) -> Any:
    """Run it with --json, and return what that means."""
    result = invoke(folder, *arguments, "--json", text=text)
    assert result.exit_code == code, (result.output, result.exception)
    return json.loads(result.stdout)
