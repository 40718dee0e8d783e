"""The progress of a command as lines for a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from coord_control.control.client.command_wait import progress_text
from coord_control.control.commands import CommandProgress, takes
from coord_control.storage.records import CommandRecord

__all__ = ["ProgressLines"]

#: Events are blocked all the time; one line per event would bury the rest of the log.
_AGAIN_SECONDS: Final = 5.0


class ProgressLines:
    """Logs the progress of a command: a line for each step forward, and one every few seconds if only the number of
    blocked events has changed. To be passed as ``on_progress``.

    Args:
        tell: receives each line.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._last = ""
        self._last_step: object = None
        self._again_at = 0.0

    def __call__(self, command: CommandRecord) -> None:
        if command.is_finished:
            return
        progress = CommandProgress.model_validate(command.progress or {})
        how_many = 1 if progress.blocked_events else 0
        step = (command.claimed_at is None, progress.model_copy(update={"blocked_events": how_many}))
        text = _line(command, progress)
        if text == self._last or (step == self._last_step and time.monotonic() < self._again_at):
            return
        self._tell(text)
        self._last, self._last_step, self._again_at = text, step, time.monotonic() + _AGAIN_SECONDS


def _line(command: CommandRecord, progress: CommandProgress) -> str:
    text = progress_text(command)
    taken = takes(command.kind)
    if taken is None or progress.checkpoint is None:
        return text
    return f"{taken.value} {progress.checkpoint}: {text}"
