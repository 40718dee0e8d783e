"""The exit codes of ``coordctl`` and of the drivers that it starts: one table, read by both sides.

A driver's exit code tells ``coordctl run`` whether a restart can help. The numbers follow sysexits.h where it has a
fitting name, and the shell's 128 + signal where a signal was the reason.

| code | name        | meaning                                                              | ``coordctl run``     |
| ---- | ----------- | -------------------------------------------------------------------- | -------------------- |
| 0    | FINISHED    | the script has ended: the job is finished                            | ends                 |
| 1    | FAILED      | an error of the script, Spark or the JVM                             | restarts             |
| 2    | USAGE       | invalid command line (coordctl's or the script's)                    | ends                 |
| 65   | DATA        | records are damaged, missing or too new: needs an operator           | ends                 |
| 70   | INTERNAL    | a bug of this package; the durable records are intact                | restarts             |
| 75   | TEMPORARY   | an error that is marked as retryable                                 | restarts             |
| 76   | RESTART     | requests a new driver: a restart or a restore on request             | restarts at once     |
| 77   | FENCED      | another driver owns the job: a restart would fence that one in turn  | ends                 |
| 78   | CONFIG      | invalid declaration, data model or syntax, missing module or Java    | ends                 |
| 130  | INTERRUPTED | stopped on request (SIGINT), cleanly                                 | ends, as requested   |
| 137  | KILLED      | did not stop within the grace period and was killed                  | ends, as requested   |
| 143  | STOPPED     | stopped on request (SIGTERM), cleanly                                | ends if requested    |

A stop on request is not 0, so that the caller of ``coordctl run`` can tell a finished job from an interrupted one:
a Kubernetes Job must not count an evicted driver as done. If a command has ended the driver's jobs the command
decides, whatever signal came as well: the driver ends with 0 after ``stop``, because with 143 a supervisor that was
not asked would start again what was stopped for good, and with 76 after ``restart`` and ``restore``. Under systemd
set ``SuccessExitStatus=143`` and ``RestartPreventExitStatus=2 65 77 78``.
"""

from __future__ import annotations

import enum
from typing import Final

from coord_control.errors import CoordControlError, Fault, Fenced, QueryFailed

__all__ = ["NO_RESTART", "ExitCode", "exit_code_of"]


class ExitCode(enum.IntEnum):
    """The table of this module."""

    FINISHED = 0
    FAILED = 1
    USAGE = 2
    DATA = 65
    INTERNAL = 70
    TEMPORARY = 75
    RESTART = 76
    FENCED = 77
    CONFIG = 78
    INTERRUPTED = 130
    KILLED = 137
    STOPPED = 143


#: A driver that ends with one of these is not restarted: it would end in the same way, or do harm (FENCED).
NO_RESTART: Final = frozenset({ExitCode.USAGE, ExitCode.DATA, ExitCode.FENCED, ExitCode.CONFIG})


def exit_code_of(error: BaseException, *, is_start: bool = False) -> int:
    """Return the exit code for an error that ended a driver.

    Args:
        is_start: whether the script had no job yet. Then the next driver could not import the missing module either;
            later, a failed import may be temporary, like other errors of a machine in trouble.

    The first error of this package in the chain of explicit causes decides, because its fields tell whose fault it is
    and whether a retry can help; a ``QueryFailed`` only wraps the error that ended the query.
    """
    if isinstance(error, SyntaxError) or (is_start and isinstance(error, ImportError)):
        return ExitCode.CONFIG
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    ours = _ours(error)
    return ExitCode.FAILED if ours is None else _by_fields(ours)


def _ours(error: BaseException) -> CoordControlError | None:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, CoordControlError) and not isinstance(current, QueryFailed):
            return current
        seen.add(id(current))
        current = current.__cause__
    return None


def _by_fields(error: CoordControlError) -> ExitCode:
    if isinstance(error, Fenced):
        return ExitCode.FENCED
    if error.retry:
        return ExitCode.TEMPORARY
    by_fault = {Fault.USER: ExitCode.CONFIG, Fault.EXTERNAL: ExitCode.DATA, Fault.INTERNAL: ExitCode.INTERNAL}
    return by_fault[error.fault]
