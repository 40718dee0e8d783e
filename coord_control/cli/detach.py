"""Moves coordctl to the background: a new session, output to a log file, and a hint on the terminal.

It forks instead of starting a new process, so that options need not be passed on and the process list shows what the
user typed. That is safe because coordctl has only one thread at that time. Log files are not rotated: a renamed log
grows under its new name, but logrotate's ``copytruncate`` works, because all writers append.

Threads: the command's thread, before any other is started.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from coord_control.cli.output import plain, say, warn
from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings, default_url, state_folder
from coord_control.errors import CoordControlError
from coord_control.log_tail import log_tail
from coord_control.storage.records import JobRecord, JobState

__all__ = ["default_log_file", "detach"]


_POLL_SECONDS: Final = 0.2
_SHOWN_LINES: Final = 20


def default_log_file(script: Path) -> Path:
    """Return a new file below the user's state folder, named after the script and the time."""
    now = datetime.now(UTC)
    return state_folder() / "logs" / f"{script.stem}-{now:%Y%m%dT%H%M%S}-{os.getpid()}.log"


def detach(log_file: Path, wait_seconds: float) -> None:
    """Continue in the background; the foreground process prints how to watch the job, waits for it, and exits.

    Args:
        wait_seconds: how long the foreground process waits until the job runs. It exits with 0, or with the exit code
            of a background process that ends meanwhile.

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
        raise typer.Exit(_await_job(child, log_file, wait_seconds) if wait_seconds else 0)
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
    typer.echo(f"control: {_database()}")


def _database() -> str:
    """Name the control database, and who can see the job there."""
    try:
        settings = ControlSettings.load()
        with ControlClient(settings=settings) as client:
            if settings.url == default_url():
                return f"{client.url}, visible only to you on this machine; set COORD_CONTROL to share one"
            return client.url
    except CoordControlError as error:
        return str(error)


def _await_job(child: int, log_file: Path, seconds: float) -> int:
    """Wait until the control database has a running job with this log; return the exit code of the command."""
    # Spark alone takes seconds to start. A log may be that of an earlier driver as well.
    earlier, deadline = {job.name: job.generation for job in _jobs_of(log_file)}, time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            lines = map(plain, log_tail(log_file, _SHOWN_LINES).splitlines())
            warn("\n".join([f"it has ended with exit code {code}; the end of its log:", *lines]))
            return code if code >= 0 else 128 - code
        for job in _jobs_of(log_file):
            if job.is_alive and job.state is JobState.RUNNING and job.generation > earlier.get(job.name, 0):
                say(f"job {job.name} runs")
                return 0
        time.sleep(_POLL_SECONDS)
    warn(f"the script has not started a job within {seconds:g} s; see its log, and coordctl jobs")
    return 0


def _jobs_of(log_file: Path) -> list[JobRecord]:
    # Without a database there may be one soon, or the job uses none.
    with contextlib.suppress(CoordControlError), ControlClient() as client:
        return [job for job in client.jobs() if job.log_file == str(log_file)]
    return []
