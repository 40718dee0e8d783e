"""``coordctl promote``: a fork takes the place of its parent, which stops with a savepoint.

Threads: the command's thread.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coord_control.cli.completion import complete_job
from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.cli.options import Control, Json
from coord_control.cli.output import plain, print_json, say
from coord_control.cli.requests import connected
from coord_control.cli.storage import storage_of
from coord_control.exit_codes import ExitCode
from coord_control.launch.promotion import MAX_BACKLOG, READY_SECONDS, PromotionState, promote_fork

__all__ = ["promote"]


def promote(
    fork: Annotated[
        str,
        typer.Argument(metavar="FORK", help="The fork, which stays.", autocompletion=complete_job, show_default=False),
    ],
    parent: Annotated[
        str | None,
        typer.Option(
            "--parent",
            envvar="COORD_PARENT",
            metavar="JOB",
            help="The job that is to stop. Needed only if the control database does not know what FORK was restored "
            "from.",
        ),
    ] = None,
    ready_within: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_READY_WITHIN",
            help="How long to wait for FORK to be ready.",
        ),
    ] = READY_SECONDS,
    max_backlog: Annotated[
        int,
        typer.Option(
            min=0,
            envvar="COORD_MAX_BACKLOG",
            metavar="RECORDS",
            help="How many records may wait for a query that the parent has too, unless about as many wait for that.",
        ),
    ] = MAX_BACKLOG,
    check: Annotated[
        bool, typer.Option("--check", envvar="COORD_CHECK", help="Only look at FORK, once; change nothing.")
    ] = False,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Let FORK take the place of the job that it was forked from, which stops with a savepoint.

    FORK is ready when its queries run, it has completed a checkpoint since it was restored, and its backlog is small or
    about that of its parent. Then the parent is stopped with the savepoint promoted-FORK; if that fails it runs on.
    The result has the commands to go back.

    If this command is interrupted, the same command continues; if FORK was promoted already, it prints that result.

    Exit codes: 0 promoted (--check: ready), 75 not ready or not stopped, the parent runs on, 78 refused.
    """
    with connected(control, as_json) as client:
        try:
            done = promote_fork(
                client,
                fork,
                storage=storage_of,
                parent=parent,
                ready_seconds=ready_within,
                max_backlog=max_backlog,
                check_only=check,
                tell=_tell,
            )
        except KeyboardInterrupt:
            _tell("a stop of the parent that was requested continues: repeat this command to follow it")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        print_json({"promotion": done.to_json()})
    else:
        say(done.text())
    raise typer.Exit(ExitCode.TEMPORARY if done.state is PromotionState.NOT_READY else ExitCode.FINISHED)


def _tell(text: str) -> None:
    typer.echo(plain(text), err=True)
