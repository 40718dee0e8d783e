"""``coordctl checkpoint``: checkpoints of running jobs, and their history.

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

app = typer.Typer(help="Take, list, show and abort checkpoints; statistics of all of them.", no_args_is_help=True)

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

    The oldest checkpoint is removed if there are more than the job retains (CheckpointOptions(retained=...), by default
    one). To keep one, take a savepoint instead.
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
        typer.Option(metavar="ID", envvar="COORD_BEFORE", help="Only smaller numbers: the next page."),
    ] = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """List checkpoints and savepoints of JOB, including those that failed or were removed."""
    with connected(control, as_json) as client:
        found = client.checkpoints(job, kind=kind, state=state, requested_by=requested_by, limit=limit, before=before)
        if as_json:
            print_json([each.to_json_row() for each in found])
        elif found:
            console().print(checkpoint_table("", found))
        else:
            say(f"job {job} has no such checkpoint in its history")


@app.command("show")
def show(
    job: JobName,
    checkpoint: _Id,
    subtasks: Annotated[
        bool, typer.Option("--subtasks", envvar="COORD_SUBTASKS", help="Include per-subtask details.")
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
            say("its per-subtask details are no longer kept")


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
    """Abort a checkpoint or savepoint of JOB that is in progress."""
    with connected(control, as_json) as client:
        command = client.abort(job, checkpoint=checkpoint, key=key)
        finish(client, command, wait=wait, timeout=timeout, as_json=as_json)


@app.command("summary")
def summary(
    job: JobName,
    kind: _Kind = None,
    window: Annotated[
        int,
        typer.Option(
            min=1, max=1_000_000, envvar="COORD_WINDOW", help="Number of newest checkpoints for the percentiles."
        ),
    ] = 10_000,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Show counts and percentiles of JOB's checkpoints: durations, sizes, blocked events."""
    with connected(control, as_json) as client:
        found = client.summary(job, kind=kind, window=window)
        if as_json:
            print_json(found.to_json())
        else:
            print_summary(job, found)
