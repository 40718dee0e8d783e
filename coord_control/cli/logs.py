"""``coordctl logs``: the log file of a job that runs in the background.

Threads: the command's thread.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from coord_control.cli.options import Control, JobName
from coord_control.cli.output import plain
from coord_control.cli.requests import connected
from coord_control.exit_codes import ExitCode
from coord_control.storage.records import JobRecord

__all__ = ["logs"]

_POLL_SECONDS: Final = 0.3


def logs(
    job: JobName,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", envvar="COORD_FOLLOW", help="Keep printing new lines until Ctrl-C."),
    ] = False,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=0, envvar="COORD_LINES", help="Number of last lines to print."),
    ] = 50,
    control: Control = None,
) -> None:
    """Print the log of JOB, if coordctl run --detach started it on this machine.

    Control characters are escaped; the file itself contains them unchanged.
    """
    with connected(control, as_json=False) as client:
        path = _log_file(client.job(job))
    try:
        with path.open("rb") as log:
            for line in deque(log, maxlen=lines):
                if follow and not line.endswith(b"\n"):  # still being written; it is the last one
                    log.seek(-len(line), os.SEEK_CUR)
                else:
                    _print(line)
            while follow:
                _print_new(path, log)
                time.sleep(_POLL_SECONDS)
    except OSError as error:
        typer.secho(f"cannot read {path}: {error.strerror}", fg=typer.colors.RED, err=True)
        raise typer.Exit(ExitCode.DATA) from error
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _log_file(job: JobRecord) -> Path:
    if job.log_file is None:
        raise typer.BadParameter(
            f"job {job.name} has no known log file: its output went to where its driver was started; coordctl run "
            "--detach writes one"
        )
    if job.host != socket.gethostname() and not Path(job.log_file).exists():
        raise typer.BadParameter(f"the log of job {job.name} is on {job.host}: {plain(job.log_file)}")
    return Path(job.log_file)


def _print_new(path: Path, log: BinaryIO) -> None:
    position = log.tell()
    if path.stat().st_size < position:  # it was truncated
        position = 0
    log.seek(position)
    for line in log:
        if not line.endswith(b"\n"):  # still being written
            log.seek(position)
            return
        position += len(line)
        _print(line)


def _print(line: bytes) -> None:
    typer.echo(plain(line.decode(errors="replace").rstrip("\r\n")))
