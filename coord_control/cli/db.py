"""``coordctl db``: the control database itself.

Threads: the command's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import typer

from coord_control.cli.options import Control, Json
from coord_control.cli.output import print_json, reported, say
from coord_control.control.settings import ControlSettings
from coord_control.storage.database import Database

__all__ = ["app"]

app = typer.Typer(help="The control database: its tables, its history, its users.", no_args_is_help=True)


@app.command("upgrade")
def upgrade(control: Control = None, as_json: Json = False) -> None:
    """Bring the tables to the version of this release, in one transaction; make them if there are none.

    Stop nothing for it: drivers of the older release keep running and write down later what they cannot write now.
    """
    with _opened(control, as_json) as database:
        before = database.schema_version()
        database.upgrade()
        after = database.schema_version()
        if as_json:
            print_json({"database": database.display_url, "before": before, "after": after})
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


@contextmanager
def _opened(control: str | None, as_json: bool) -> Iterator[Database]:
    with (
        reported(as_json),
        closing(ControlSettings.load(control).open_database("coordctl db")) as database,
    ):
        yield database
