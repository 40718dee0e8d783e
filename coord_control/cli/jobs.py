"""``coordctl jobs``, ``show`` and ``watch``: the state of jobs.

Threads: the command's thread; rich refreshes the live screen on its own thread.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.live import Live

from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.cli.job_views import job_screen, job_table
from coord_control.cli.options import Control, JobName, Json
from coord_control.cli.output import console, print_json, say
from coord_control.cli.requests import connected
from coord_control.control.client.control_client import ControlClient
from coord_control.exit_codes import ExitCode

__all__ = ["jobs", "show", "watch"]

_AllGateways = Annotated[
    bool,
    typer.Option("--all-gateways", envvar="COORD_ALL_GATEWAYS", help="Include gateways without blocked events."),
]


def jobs(control: Control = None, as_json: Json = False) -> None:
    """List all jobs in the control database."""
    with connected(control, as_json) as client:
        found = client.jobs()
        if as_json:
            print_json([job.to_json_row() for job in found])
        elif found:
            console().print(job_table(found))
        else:
            say(f"no job has used {client.url} yet")


def show(job: JobName, all_gateways: _AllGateways = False, control: Control = None, as_json: Json = False) -> None:
    """Show JOB: its driver, queries, operators, gateways, newest checkpoints and commands."""
    with connected(control, as_json) as client:
        _print(client, job, all_gateways=all_gateways, as_json=as_json)


def watch(
    job: JobName,
    interval: Annotated[
        float,
        typer.Option(parser=parse_seconds, metavar=DURATION, envvar="COORD_INTERVAL", help="Refresh interval."),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", envvar="COORD_ONCE", help="Print once and exit.")] = False,
    all_gateways: _AllGateways = False,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Watch JOB: epochs, rows per second, lag, checkpoints with their progress, gateways with blocked events.

    With --json it prints one line per refresh. Press Ctrl-C to exit.
    """
    with connected(control, as_json) as client:
        try:
            if once:
                _print(client, job, all_gateways=all_gateways, as_json=as_json, indent=None)
            elif as_json:
                for snapshot in client.watch(job, interval=interval):
                    print_json(snapshot.to_json(), indent=None)
            else:
                _live(client, job, interval, all_gateways=all_gateways)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _print(client: ControlClient, job: str, *, all_gateways: bool, as_json: bool, indent: int | None = 2) -> None:
    snapshot = client.snapshot(job)
    if as_json:
        print_json(snapshot.to_json(), indent=indent)
    else:
        console().print(job_screen(snapshot, all_gateways=all_gateways))


def _live(client: ControlClient, job: str, interval: float, *, all_gateways: bool) -> None:
    out = console()
    first = job_screen(
        client.snapshot(job), all_gateways=all_gateways
    )  # raises for an unknown name before the screen changes
    with Live(first, console=out, screen=out.is_terminal, auto_refresh=False, vertical_overflow="crop") as live:
        for snapshot in client.watch(job, interval=interval):
            live.update(job_screen(snapshot, all_gateways=all_gateways), refresh=True)
