"""What to type to look at a demo, while it runs and afterwards.

Threads: functions of their arguments, and of the current folder.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

__all__ = ["control_address", "show_job", "show_savepoint"]


def control_address(work: Path) -> str:
    """A control database of the demo's own: a job of the user's may have the same name."""
    return f"sqlite:///{work / 'control.db'}"


def show_job(control: str | None) -> str:
    """Look at the job, also from another terminal.

    Args:
        control: address of its control database; None: the one that ``coordctl`` takes by itself.
    """
    show = f"{_coordctl()} show flights"
    return show if control is None else f"export {shlex.join([f'COORD_CONTROL={control}'])}; {show}"


def show_savepoint(path: str) -> str:
    """Look at a savepoint, which needs neither the job nor its database."""
    return f"{_coordctl()} savepoint show {shlex.quote(path)}"


def _coordctl() -> str:
    path = Path(sys.executable).with_name("coordctl")
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
