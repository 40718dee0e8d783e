"""What the shell offers when somebody presses Tab: names from the control database, at once or not at all.

Threads: the command's thread.
"""

from __future__ import annotations

import typer

from coord_control.errors import CoordControlError

__all__ = ["complete_job"]

_PATIENCE_SECONDS = 0.2


def complete_job(context: typer.Context, incomplete: str) -> list[str]:
    """The jobs whose names begin with what was typed. No error is worth spoiling somebody's prompt: then there are
    none."""
    # A shell waits for this: what it needs is imported when it is needed, and never for another command.
    from coord_control.control.client.reader import ControlReader
    from coord_control.control.settings import ControlSettings

    try:
        settings = ControlSettings.load(context.params.get("control"), retry_seconds=_PATIENCE_SECONDS)
        with ControlReader(settings=settings) as reader:
            return [job.name for job in reader.jobs() if job.name.startswith(incomplete)]
    except CoordControlError:
        return []
