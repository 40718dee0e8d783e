"""``coordctl upgrade``: another program for a running job, with a check before, a watch after, and a rollback.

Threads: the command's thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.cli.options import Control, JobName, Json, Key
from coord_control.cli.output import plain, print_json, say
from coord_control.cli.requests import connected
from coord_control.cli.storage import storage_of
from coord_control.durable.job_folder.upgrade_record import UpgradeStep
from coord_control.exit_codes import ExitCode
from coord_control.launch.upgrade_request import UpgradeRequest, abandon_upgrade, said, upgrade_job

__all__ = ["upgrade"]

_EXIT_CODES: Final = {
    UpgradeStep.DONE: ExitCode.FINISHED,
    UpgradeStep.REFUSED: ExitCode.CONFIG,
    UpgradeStep.NOT_STOPPED: ExitCode.TEMPORARY,
    UpgradeStep.ROLLED_BACK: ExitCode.FAILED,
    UpgradeStep.LEFT: ExitCode.FAILED,
    UpgradeStep.STUCK: ExitCode.FAILED,
}


def upgrade(
    job: JobName,
    script: Annotated[
        Path | None,
        typer.Option(
            "--script",
            exists=True,
            dir_okay=False,
            readable=True,
            envvar="COORD_SCRIPT",
            metavar="PATH",
            help="The new program.",
        ),
    ] = None,
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the new program, behind --.")] = None,
    verify_for: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_VERIFY_FOR",
            help="How long the new program is watched before it counts as healthy.",
        ),
    ] = 600.0,
    start_within: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_START_WITHIN",
            help="How long a program may take until all of its queries run.",
        ),
    ] = 300.0,
    rollback: Annotated[
        bool,
        typer.Option(
            "--rollback/--no-rollback",
            envvar="COORD_ROLLBACK",
            help="Go back to the old program and the savepoint if the new one fails.",
        ),
    ] = True,
    accept_idle: Annotated[
        bool,
        typer.Option("--accept-idle", envvar="COORD_ACCEPT_IDLE", help="A query without input needs no new epoch."),
    ] = False,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state",
            envvar="COORD_ALLOW_NON_RESTORED_STATE",
            help="Allow queries and operators to be left behind, and new ones to begin empty.",
        ),
    ] = False,
    abandon: Annotated[
        bool,
        typer.Option(
            "--abandon",
            envvar="COORD_ABANDON",
            help="End an upgrade that cannot be continued, as after the loss of its machine. Changes nothing else.",
        ),
    ] = False,
    key: Key = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Replace the program of JOB, which runs under coordctl run --detach on this machine.

    The new program is compared with the newest checkpoint while the old one runs. Then the job is stopped with a
    savepoint, and the new program is started from it with the options of the old coordctl run, and watched: it must
    stay alive without restarts, every query must commit an epoch, and no backlog may grow. Otherwise the job and its
    sinks are set back to the savepoint, and the old program is started again.

    If this command is interrupted, the same command continues. With --key, it also returns the result of one that has
    ended; without, it begins another upgrade.

    Exit codes: 0 upgraded, 1 rolled back or needs you, 75 not stopped, 78 refused.
    """
    if abandon == (script is not None):
        raise typer.BadParameter("give --script with the new program, or --abandon to end an upgrade")
    with connected(control, as_json) as client:
        if script is None:
            record = abandon_upgrade(client, job, storage=storage_of)
        else:
            request = UpgradeRequest(
                script=str(script.resolve()),
                args=tuple(args or ()),
                verify_seconds=verify_for,
                start_seconds=start_within,
                rollback=rollback,
                accept_idle=accept_idle,
                allow_non_restored_state=allow_non_restored_state,
                key=key,
            )
            record = upgrade_job(client, job, request, storage=storage_of, tell=_tell)
    if as_json:
        print_json({"upgrade": record.model_dump(mode="json")})
    else:
        say(said(record))
    raise typer.Exit(ExitCode.FINISHED if abandon else _EXIT_CODES[record.step])


def _tell(text: str) -> None:
    typer.echo(plain(text), err=True)
