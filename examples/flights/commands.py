"""The commands for exploring a demo, while it runs and afterwards."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

__all__ = ["control_address", "show_job", "show_savepoint"]


def control_address(work: Path) -> str:
    """Return the URL of the demo's own control database, because the user may have a job with the same name."""
    return f"sqlite:///{work / 'control.db'}"


def show_job(control: str) -> str:
    """Return the command that shows the job with this control database, for any terminal."""
    return f"export {shlex.join([f'COORD_CONTROL={control}'])}; {_coordctl()} show flights"


def show_savepoint(path: str) -> str:
    """Return the command that shows a savepoint, which needs neither the job nor its database."""
    return f"{_coordctl()} savepoint show {shlex.quote(path)}"


def _coordctl() -> str:
    path = Path(sys.executable).with_name("coordctl")
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
