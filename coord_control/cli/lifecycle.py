"""``coordctl stop`` and ``restart``: end a job's driver.

Threads: the command's thread.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.cli.options import Control, JobName, Json, Key, Label, Target, Timeout, Wait
from coord_control.cli.requests import connected, finish

__all__ = ["restart", "stop"]


def stop(
    job: JobName,
    savepoint: Annotated[
        bool,
        typer.Option(
            "--savepoint", envvar="COORD_SAVEPOINT", help="Take a savepoint first, and process nothing after it."
        ),
    ] = False,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain", envvar="COORD_DRAIN", help="Before the savepoint, read everything that the sources have now."
        ),
    ] = False,
    target: Target = None,
    label: Label = None,
    grace: Annotated[
        float | None,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_STOP_GRACE",
            help="Time limit for the running epochs; not with --savepoint, which lets them end.",
        ),
    ] = None,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Stop JOB after its running epochs. It is not restarted, and coordctl run exits with 0.

    If the savepoint fails, the job keeps running. With --drain it keeps running until it has read what its sources have
    now; coordctl command cancel ends that. A source that never pauses and does not report its end is never drained.
    """
    if not savepoint and (target is not None or label is not None or drain):
        raise typer.BadParameter("--target, --label and --drain belong to a savepoint: add --savepoint")
    if savepoint and grace is not None:
        raise typer.BadParameter("--grace cannot be combined with --savepoint, which lets the running epochs end")
    with connected(control, as_json) as client:
        if savepoint:
            command = client.stop_with_savepoint(job, target=target, label=label, drain=drain, key=key)
        else:
            command = client.stop(job, grace_seconds=grace, key=key)
        finish(client, command, wait=wait, timeout=timeout, as_json=as_json)


def restart(
    job: JobName,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Restart JOB's driver with its current script; the job resumes where it stopped.

    The driver must run under coordctl run.
    """
    with connected(control, as_json) as client:
        command = client.restart(job, key=key)
        finish(client, command, wait=wait, timeout=timeout, as_json=as_json)
