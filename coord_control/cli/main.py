"""The application: puts the commands together."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from coord_control.cli import (
    checkpoint,
    command,
    db,
    doctor,
    event,
    exporter,
    history,
    jobs,
    lifecycle,
    logs,
    restore,
    run,
    savepoint,
    ui,
)

__all__ = ["app"]

app = typer.Typer(
    help="Operate long-running PySpark Structured Streaming jobs.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # they may hold secrets
)
# The script's own options stand behind it and are not ours to read.
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("doctor")(doctor.doctor)
app.command("jobs")(jobs.jobs)
app.command("show")(jobs.show)
app.command("watch")(jobs.watch)
app.command("logs")(logs.logs)
app.command("ui")(ui.ui)
app.command("stop")(lifecycle.stop)
app.command("restart")(lifecycle.restart)
app.command("restore")(restore.restore)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(savepoint.app, name="savepoint")
app.add_typer(event.app, name="event")
app.add_typer(command.app, name="command")
app.command("recoveries")(history.recoveries)
app.command("generations")(history.generations)
app.command("audit")(history.audit)
app.command("forget")(history.forget)
app.command("exporter")(exporter.exporter)
app.add_typer(db.app, name="db")


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        version = importlib.metadata.version("coord-control")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown (run from a source tree that is not installed)"
    typer.echo(f"coordctl {version}")
    raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass  # its option does the work
