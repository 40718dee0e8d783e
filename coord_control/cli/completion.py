"""Shell completion: names from the control database, quickly or not at all.

Threads: the command's thread.
"""

from __future__ import annotations

import typer

from coord_control.errors import CoordControlError

__all__ = ["complete_job"]

_PATIENCE_SECONDS = 0.2


def complete_job(context: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs whose names start with ``incomplete``, or none on an error: it must not disturb the prompt."""
    # The shell waits for this, and other commands do not need these imports.
    from coord_control.control.client.reader import ControlReader
    from coord_control.control.settings import ControlSettings

    try:
        settings = ControlSettings.load(context.params.get("control"), retry_seconds=_PATIENCE_SECONDS)
        with ControlReader(settings=settings) as reader:
            return [job.name for job in reader.jobs() if job.name.startswith(incomplete)]
    except CoordControlError:
        return []
