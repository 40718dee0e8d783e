"""``coordctl db``: the control database itself.

Threads: the command's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

import typer

from coord_control.cli.duration_parser import parse_seconds
from coord_control.cli.options import Control, Json
from coord_control.cli.output import print_json, reported, say, warn
from coord_control.control.settings import ControlSettings
from coord_control.storage.database import Database
from coord_control.storage.grants import grants
from coord_control.storage.jobs import Jobs
from coord_control.storage.retention import prune

__all__ = ["app"]

app = typer.Typer(help="The control database: its tables, its history, its users.", no_args_is_help=True)


@app.command("upgrade")
def upgrade(control: Control = None, as_json: Json = False) -> None:
    """Bring the tables to the version of this release, in one transaction; make them if there are none.

    Jobs run on. But a driver of an older release cannot use newer tables: what happens is not written down, and
    commands wait, until the job is restarted with this release. The jobs with such a driver are named.
    """
    with _opened(control, as_json) as database:
        before = database.schema_version()
        database.upgrade()
        after = database.schema_version()
        left_behind = [] if before == after else [job.name for job in Jobs(database).list() if job.is_alive]
        if left_behind:
            warn(
                f"alive with a driver of an older release, which cannot use the new tables: {', '.join(left_behind)}; "
                "what happens there is not written down, and commands wait, until the job is restarted with this "
                "release. Restart it now; before the next upgrade, stop the jobs first"
            )
        if as_json:
            print_json({"database": database.display_url, "before": before, "after": after, "left_behind": left_behind})
        elif before == after:
            say(f"{database.display_url} has version {after} of the tables already")
        else:
            say(f"{database.display_url}: tables upgraded from {before or 'none'} to version {after}")


@app.command("check")
def check(control: Control = None, as_json: Json = False) -> None:
    """Check that the database can be reached and has the tables of this release. Exit code 0: it can and has."""
    with _opened(control, as_json) as database:
        database.check_schema()
        version = database.schema_version()
        if as_json:
            print_json({"database": database.display_url, "version": version, "ok": True})
        else:
            say(f"{database.display_url}: version {version} of the tables, as this release needs it")


@app.command("prune")
def prune_(
    older_than: Annotated[
        float | None,
        typer.Option(
            parser=parse_seconds,
            metavar="DURATION",
            envvar="COORD_OLDER_THAN",
            help="Remove history that is older than this. Default: COORD_CONTROL_HISTORY_DAYS.",
        ),
    ] = None,
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Remove old history now, as drivers do by themselves.

    Never what something refers to: checkpoints that are on storage, commands that are not finished.
    """
    with _opened(control, as_json) as database:
        policy = ControlSettings.load(control).retention()
        if older_than is not None:
            policy = replace(policy, history=timedelta(seconds=older_than))
        report = prune(database, policy)
        if as_json:
            print_json(report.to_json())
        elif not report.is_leader:
            say("another process is doing it at the moment")
        else:
            removed = [f"{count} {what.replace('_', ' ')}" for what, count in report.removed.items() if count]
            say(f"removed: {', '.join(removed) or 'nothing'}")


@app.command("grants")
def grants_(
    user: Annotated[str, typer.Argument(metavar="USER", help="The dashboard's user in PostgreSQL.")],
    create: Annotated[
        bool, typer.Option("--create", envvar="COORD_CREATE", help="Also the statement that makes the user.")
    ] = False,
    payloads: Annotated[
        bool,
        typer.Option("--payloads", envvar="COORD_PAYLOADS", help="Let it also read what people have sent to jobs."),
    ] = False,
    schema: Annotated[
        str, typer.Option(envvar="COORD_SCHEMA", metavar="NAME", help="The schema that the tables are in.")
    ] = "public",
    control: Control = None,
    as_json: Json = False,
) -> None:
    """Print the SQL that lets USER read the tables and nothing else; run it as their owner: ... | psql."""
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
