"""``coordctl checkpoint``: checkpoints of running jobs, and the history of all.

Threads: the command's thread.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coord_control.cli.checkpoint_views import checkpoint_table, print_checkpoint, print_subtasks, print_summary
from coord_control.cli.options import By, Control, JobName, Json, Key, Label, Limit, Timeout, Wait
from coord_control.cli.output import console, print_json, say
from coord_control.cli.requests import connected, finish
from coord_control.storage.records import CheckpointKind, CheckpointState

__all__ = ["app"]

app = typer.Typer(help="Checkpoints: take, look at, give up; statistics over all of them.", no_args_is_help=True)

_Id = Annotated[int, typer.Argument(metavar="ID", min=1, help="The checkpoint's number.", show_default=False)]
_Kind = Annotated[
    CheckpointKind | None, typer.Option("--kind", envvar="COORD_KIND", help="Only of this kind.", show_default=False)
]


@app.command("trigger")
def trigger(
    job: JobName,
    label: Label = None,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Take a checkpoint of JOB now.

    When the job has as many checkpoints as it keeps (CheckpointOptions(retained=...), by default one), the oldest is
    removed. What has to stay is a savepoint.
    """
    with connected(control, as_json) as client:
        command = client.trigger_checkpoint(job, label=label, key=key)
        finish(client, command, wait=wait, timeout=timeout, as_json=as_json)


@app.command("list")
def list_(
    job: JobName,
    kind: _Kind = None,
    state: Annotated[
        CheckpointState | None,
        typer.Option("--state", envvar="COORD_STATE", help="Only in this state.", show_default=False),
    ] = None,
    requested_by: By = None,
    limit: Limit = 20,
    before: Annotated[
        int | None,
        typer.Option(metavar="ID", envvar="COORD_BEFORE", help="Only those with a smaller number: the next page."),
    ] = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """List the history of checkpoints and savepoints of JOB, also of those that failed or were removed."""
    with connected(control, as_json) as client:
        found = client.checkpoints(job, kind=kind, state=state, requested_by=requested_by, limit=limit, before=before)
        if as_json:
            print_json([each.to_json() for each in found])
        elif found:
            console().print(checkpoint_table("", found))
        else:
            say(f"job {job} has no such checkpoint in its history")


@app.command("show")
def show(
    job: JobName,
    checkpoint: _Id,
    subtasks: Annotated[
        bool, typer.Option("--subtasks", envvar="COORD_SUBTASKS", help="Also the part of every subtask.")
    ] = False,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Show one checkpoint or savepoint of JOB: times, sizes, blocked events, by query and operator."""
    with connected(control, as_json) as client:
        found = client.checkpoint(job, checkpoint)
        parts = client.subtasks(job, checkpoint) if subtasks else ()
        if as_json:
            more = {"subtask_parts": [part.to_json() for part in parts]} if subtasks else {}
            print_json({**found.to_json(), **more})
            return
        print_checkpoint(found)
        print_subtasks(parts)
        if subtasks and not parts:
            say("the parts of its subtasks are not kept any more")


@app.command("abort")
def abort(
    job: JobName,
    checkpoint: _Id,
    key: Key = None,
    wait: Wait = True,
    timeout: Timeout = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Give up a checkpoint or savepoint of JOB that is under way."""
    with connected(control, as_json) as client:
        command = client.abort(job, checkpoint=checkpoint, key=key)
        finish(client, command, wait=wait, timeout=timeout, as_json=as_json)


@app.command("summary")
def summary(
    job: JobName,
    kind: _Kind = None,
    window: Annotated[
        int,
        typer.Option(min=1, max=1_000_000, envvar="COORD_WINDOW", help="Percentiles over how many of the newest."),
    ] = 10_000,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Counts and percentiles of JOB's checkpoints: durations, sizes, blocked events."""
    with connected(control, as_json) as client:
        found = client.summary(job, kind=kind, window=window)
        if as_json:
            print_json(found.to_json())
        else:
            print_summary(job, found)
