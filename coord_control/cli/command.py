"""``coordctl command``: commands to jobs, and their results.

Threads: the command's thread.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from coord_control.cli.job_views import command_table
from coord_control.cli.options import Control, Json, Limit, OptionalJob
from coord_control.cli.output import console, human_time, print_json, say
from coord_control.cli.requests import connected
from coord_control.control.client.command_wait import progress_text
from coord_control.storage.records import CommandKind, CommandRecord, CommandState

__all__ = ["app"]

app = typer.Typer(help="List, show and cancel commands to jobs.", no_args_is_help=True)

_Id = Annotated[str, typer.Argument(metavar="COMMAND", help="The command's id.", show_default=False)]


@app.command("list")
def list_(
    job: OptionalJob = None,
    state: Annotated[
        CommandState | None,
        typer.Option("--state", envvar="COORD_STATE", help="Only in this state.", show_default=False),
    ] = None,
    kind: Annotated[
        CommandKind | None,
        typer.Option("--kind", envvar="COORD_KIND", help="Only of this kind.", show_default=False),
    ] = None,
    limit: Limit = 20,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """List the commands to JOB, or to all jobs, newest first."""
    with connected(control, as_json) as client:
        if job is not None:
            client.job(job)  # raises for an unknown name, instead of printing an empty list
        found = client.commands(job, state=state, kind=kind, limit=limit)
        if as_json:
            print_json([each.to_json() for each in found])
        elif found:
            console().print(command_table("", found))
        else:
            say("there is no such command")


@app.command("show")
def show(command: _Id, control: Control = None, as_json: Json = False) -> None:
    """Show a command: who requested it, its progress, its result."""
    with connected(control, as_json) as client:
        _show(client.command(command), as_json)


@app.command("cancel")
def cancel(command: _Id, control: Control = None, as_json: Json = False) -> None:
    """Cancel a command that no driver has picked up yet, or abort the checkpoint or savepoint that it takes."""
    with connected(control, as_json) as client:
        _show(client.cancel(command), as_json)


def _show(command: CommandRecord, as_json: bool) -> None:
    if as_json:
        print_json(command.to_json())
        return
    say(f"command {command.id}: {command.kind.words} of job {command.job}, {command.state}")
    say(f"requested {human_time(command.requested_at)} UTC by {command.requested_by} on {command.requested_from}")
    say(f"with {json.dumps(command.payload, ensure_ascii=False)}, key {command.key}")
    if command.claimed_at is not None:
        say(f"picked up {human_time(command.claimed_at)} UTC by generation {command.generation}")
    if command.finished_at is not None:
        say(f"finished {human_time(command.finished_at)} UTC")
    elif command.cancel_requested:
        say("is being cancelled")
    else:
        say(f"{progress_text(command)}; expires {human_time(command.expires_at)} UTC unless a driver picks it up")
    if command.error is not None:
        say(f"{command.error.code}: {command.error.message}")
    if command.result is not None:
        say(json.dumps(command.result, ensure_ascii=False, indent=2))
