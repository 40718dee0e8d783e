"""Waiting for a command: how often to poll, and what its outcome means.

The client polls because it lives for seconds, reads one row by its key, and does not need an extra connection for
notifications. It polls often at first, because an answer takes milliseconds and most commands less than a second, and
less often later.

Threads: a ``CommandWait`` belongs to one caller; the functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coord_control.control.commands import CommandProgress, CommandResult, Refusal, parse_result
from coord_control.errors import (
    CommandCancelled,
    CommandExpired,
    CommandFailed,
    CommandRefused,
    CommandTimeout,
    ControlEventRefused,
    Fault,
    JobNotRunning,
)
from coord_control.storage.records import CommandError, CommandRecord, CommandState

__all__ = ["WAITING", "CommandWait", "OnProgress", "progress_text", "raise_if_not_running", "result_of"]

#: Called with a command whenever it has changed.
OnProgress = Callable[[CommandRecord], None]

#: The progress of a command that no driver has claimed yet.
WAITING: Final = "waiting for the job's driver"

_FIRST_PAUSE_SECONDS: Final = 0.003
_LONGEST_PAUSE_SECONDS: Final = 0.5
_GROWTH: Final = 1.1
_NO_ERROR: Final = CommandError(code=Refusal.INTERNAL, message="the driver gave no reason", fault="internal")
_ERRORS: Final[dict[CommandState, type[CommandFailed]]] = {
    CommandState.FAILED: CommandFailed,
    CommandState.REFUSED: CommandRefused,
    CommandState.EXPIRED: CommandExpired,
    CommandState.CANCELLED: CommandCancelled,
}


class CommandWait:
    """One wait for one command.

    Args:
        timeout: how long to wait, in seconds, or None for no limit.
        now: the time by a monotonic clock.
    """

    def __init__(self, timeout: float | None, on_progress: OnProgress | None, now: float) -> None:
        self._timeout = timeout
        self._deadline = None if timeout is None else now + timeout
        self._on_progress = on_progress
        self._last: CommandRecord | None = None
        self._pause = _FIRST_PAUSE_SECONDS

    def pause_after(self, command: CommandRecord, now: float) -> float | None:
        """Report a change; return the seconds until the next poll, or None if the command has finished.

        Raises:
            CommandTimeout: the command has not finished in time.
        """
        if self._on_progress is not None and command != self._last:
            self._on_progress(command)
        self._last = command
        if command.is_finished:
            return None
        if self._deadline is not None and now >= self._deadline:
            raise CommandTimeout(command.id, command.kind, command.state, self._timeout or 0.0)
        pause = self._pause
        self._pause = min(pause * _GROWTH, _LONGEST_PAUSE_SECONDS)
        return pause if self._deadline is None else min(pause, self._deadline - now)


def progress_text(command: CommandRecord) -> str:
    """Describe the progress of a command: ``3 of 4 subtasks, 12 events blocked``."""
    found = CommandProgress.model_validate(command.progress or {})
    parts = [found.message] if found.message else []
    if found.subtasks is not None:
        passed = f"{found.passed_subtasks or 0} of {found.subtasks} subtasks"
        parts += [passed] if passed not in found.message else []
    if found.blocked_events:
        parts.append(f"{found.blocked_events} events blocked")
    if parts:
        return ", ".join(parts)
    return WAITING if command.claimed_at is None else "in progress"


def result_of(command: CommandRecord) -> CommandResult:
    """Return the result of a finished command.

    Raises:
        CommandFailed: it was not completed; the subclass tells how it ended.
        JobNotRunning: the job had no live driver.
    """
    if command.state is CommandState.COMPLETED:
        return parse_result(command.kind, command.result or {})
    raise_if_not_running(command)
    error = command.error or _NO_ERROR
    kind = ControlEventRefused if error.code == Refusal.EVENT_INVALID else _ERRORS[command.state]
    raise kind(
        command.id,
        command.kind,
        error.code,
        error.message,
        fault=Fault(error.fault),
        retry=error.retry,
        fields=error.fields,
    )


def raise_if_not_running(command: CommandRecord) -> None:
    """Raise JobNotRunning if a command was refused because the job has no live driver."""
    error = command.error
    if command.state is CommandState.REFUSED and error is not None and error.code == Refusal.JOB_NOT_RUNNING:
        known = error.fields[0] if error.fields else {}
        raise JobNotRunning(command.job, known.get("since", "an unknown time"), known.get("reason", ""), command.id)
