"""Moves coordctl to the background: a new session, output to a log file, and a hint on the terminal.

It forks instead of starting a new process, so that options need not be passed on and the process list shows what the
user typed. That is safe because coordctl has only one thread at that time. Log files are not rotated: a renamed log
grows under its new name, but logrotate's ``copytruncate`` works, because all writers append.

Threads: the command's thread, before any other is started.
"""

from __future__ import annotations

import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import typer

from coord_control.control.settings import state_folder

__all__ = ["default_log_file", "detach"]


def default_log_file(script: Path) -> Path:
    """Return a new file below the user's state folder, named after the script and the time."""
    now = datetime.now(UTC)
    return state_folder() / "logs" / f"{script.stem}-{now:%Y%m%dT%H%M%S}-{os.getpid()}.log"


def detach(log_file: Path) -> None:
    """Continue in the background; the foreground process prints how to watch the job, and exits with 0.

    Raises:
        typer.BadParameter: the log file cannot be written.
    """
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise typer.BadParameter(f"cannot write the log file {log_file}: {error.strerror}") from error
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.close(log)
        _tell(child, log_file)
        raise typer.Exit
    os.setsid()
    _redirect(log)


def _redirect(log: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for descriptor in {nothing, log} - {0, 1, 2}:
        os.close(descriptor)


def _tell(child: int, log_file: Path) -> None:
    typer.echo(f"running in the background: process {child}")
    typer.echo(f"its log: {log_file}")
    typer.echo("watch:   coordctl jobs; coordctl watch JOB; coordctl logs JOB -f")
    typer.echo(f"         tail -f {shlex.quote(str(log_file))}")
    typer.echo(f"stop:    coordctl stop JOB, or: kill {child}")
