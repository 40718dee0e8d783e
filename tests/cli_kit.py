"""coordctl in this process, on a control database of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from coord_control.cli.main import app


def invoke(folder: Path, *arguments: str, text: str | None = None, **environment: str) -> Result:
    """Run a command on the database in ``folder``."""
    url = f"sqlite:///{folder / 'control.db'}"
    runner = CliRunner(env={"COLUMNS": "300", "COORD_CONTROL": url, "COORD_ROOT": None, **environment})
    return runner.invoke(app, list(arguments), input=text)


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
