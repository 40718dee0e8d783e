"""The command-line application, with all its commands."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from coord_control.cli import (
    ask,
    checkpoint,
    command,
    db,
    doctor,
    event,
    exporter,
    history,
    jobs,
    lifecycle,
    live,
    logs,
    mailbox,
    restore,
    run,
    savepoint,
    ui,
    upgrade,
)

__all__ = ["app"]


class _Commands(TyperGroup):
    """Reports where an option belongs if it was put before its command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0].partition("=")[0] if args else ""
        behind = first.startswith("--") and first not in _names_of(self) and first != "--help"
        if behind and (name := _first_with(self, first)) is not None:
            raise typer.BadParameter(f"put {first} after the command, as in: coordctl {name} {first} ...")
        return super().parse_args(ctx, args)


def _first_with(group: Any, option: str) -> str | None:
    for name, below in group.commands.items():
        if option in _names_of(below):
            return str(name)
        inner = _first_with(below, option) if isinstance(below, TyperGroup) else None
        if inner is not None:
            return f"{name} {inner}"
    return None


def _names_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


app = typer.Typer(
    cls=_Commands,
    help="Operate long-running PySpark Structured Streaming jobs.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # they may hold secrets
)
# Options after the script belong to the script.
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("doctor")(doctor.doctor)
app.command("jobs")(jobs.jobs)
app.command("show")(jobs.show)
app.command("watch")(jobs.watch)
app.command("logs")(logs.logs)
app.command("ui")(ui.ui)
app.command("set")(live.set_)
app.command("get")(live.get)
app.command("stop")(lifecycle.stop)
app.command("restart")(lifecycle.restart)
app.command("upgrade")(upgrade.upgrade)
app.command("restore")(restore.restore)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(savepoint.app, name="savepoint")
app.add_typer(event.app, name="event")
app.command("ask")(ask.ask)
app.add_typer(mailbox.app, name="mailbox")
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
    pass  # the option is handled by its callback
