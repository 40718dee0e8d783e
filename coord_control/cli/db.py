"""``coordctl db``: maintains the control database.

Threads: the command's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

import typer

from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.cli.options import Control, Json
from coord_control.cli.output import print_json, reported, say, warn
from coord_control.control.settings import ControlSettings
from coord_control.storage.database import Database
from coord_control.storage.grants import grants
from coord_control.storage.jobs import Jobs
from coord_control.storage.retention import prune

__all__ = ["app"]

app = typer.Typer(help="Maintain the control database: tables, history, users.", no_args_is_help=True)


@app.command("upgrade")
def upgrade(control: Control = None, as_json: Json = False) -> None:
    """Upgrade the tables to the version of this release, in one transaction; create them if there are none.

    Jobs keep running. But a driver of an older release cannot use newer tables: nothing is recorded, and commands wait,
    until the job is restarted with this release. The affected jobs are listed.
    """
    with _opened(control, as_json) as database:
        before = database.schema_version()
        database.upgrade()
        after = database.schema_version()
        left_behind = [] if before == after else [job.name for job in Jobs(database).list() if job.is_alive]
        if left_behind:
            warn(
                "running with a driver of an older release, which cannot use the new tables: "
                f"{', '.join(left_behind)}; nothing is recorded, and commands wait, until these jobs are restarted "
                "with this release. Restart them now; before the next upgrade, stop the jobs first"
            )
        if as_json:
            print_json({"database": database.display_url, "before": before, "after": after, "left_behind": left_behind})
        elif before == after:
            say(f"{database.display_url} already has version {after} of the tables")
        else:
            say(f"{database.display_url}: tables upgraded from {before or 'none'} to version {after}")


@app.command("check")
def check(control: Control = None, as_json: Json = False) -> None:
    """Check that the database is reachable and has the tables of this release. Exit code 0 if so."""
    with _opened(control, as_json) as database:
        database.check_schema()
        version = database.schema_version()
        if as_json:
            print_json({"database": database.display_url, "version": version, "ok": True})
        else:
            say(f"{database.display_url}: version {version} of the tables, as this release requires")


@app.command("prune")
def prune_(
    older_than: Annotated[
        float | None,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_OLDER_THAN",
            help="Remove history older than this. Default: COORD_CONTROL_HISTORY_DAYS.",
        ),
    ] = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Remove old history now, as drivers do periodically.

    Checkpoints that are on the storage and unfinished commands are never removed.
    """
    with _opened(control, as_json) as database:
        policy = ControlSettings.load(control).retention()
        if older_than is not None:
            policy = replace(policy, history=timedelta(seconds=older_than))
        report = prune(database, policy)
        if as_json:
            print_json(report.to_json())
        elif not report.is_leader:
            say("another process is removing old history now")
        else:
            removed = [f"{count} {what.replace('_', ' ')}" for what, count in report.removed.items() if count]
            say(f"removed: {', '.join(removed) or 'nothing'}")


@app.command("grants")
def grants_(
    user: Annotated[str, typer.Argument(metavar="USER", help="The dashboard's user in PostgreSQL.")],
    create: Annotated[
        bool, typer.Option("--create", envvar="COORD_CREATE", help="Include the statement that creates the user.")
    ] = False,
    payloads: Annotated[
        bool,
        typer.Option("--payloads", envvar="COORD_PAYLOADS", help="Also grant access to the payloads of commands."),
    ] = False,
    schema: Annotated[
        str, typer.Option(envvar="COORD_SCHEMA", metavar="NAME", help="The schema of the tables.")
    ] = "public",
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Print SQL that grants USER read-only access to the tables; run it as their owner: ... | psql."""
    with _opened(control, as_json) as database:
        statements = grants(database, user, with_payloads=payloads, schema=schema, create=create)
        if as_json:
            print_json(list(statements))
        else:
            say("\n".join(f"{statement};" for statement in statements))


@contextmanager
def _opened(control: str | None, as_json: bool) -> Iterator[Database]:
    with (
        reported(as_json),
        closing(ControlSettings.load(control).open_database("coordctl db")) as database,
    ):
        yield database
