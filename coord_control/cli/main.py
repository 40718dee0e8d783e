"""The command-line application, with all its commands."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

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
    init,
    jobs,
    lifecycle,
    live,
    logs,
    mailbox,
    promote,
    restore,
    run,
    savepoint,
    ui,
    upgrade,
)

__all__ = ["app"]


class _Group(TyperGroup):
    """Shows its commands in sections, each with its whole first sentence."""

    def sections(self) -> Mapping[str, Iterable[str]]:
        return {"Commands": self.commands}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        longest = max(map(len, self.commands))
        for title, names in self.sections().items():
            with formatter.section(title):
                rows = [(name.ljust(longest), self.commands[name].get_short_help_str(limit=1000)) for name in names]
                formatter.write_dl(rows)


class _Commands(_Group):
    """Reports where an option belongs if it was put before its command."""

    def sections(self) -> Mapping[str, Iterable[str]]:
        return _SECTIONS

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


#: All commands, as --help shows them.
_SECTIONS: Final[Mapping[str, Mapping[str, Callable[..., None] | typer.Typer]]] = {
    "Run a job": {
        "init": init.init,
        "run": run.run,
        "upgrade": upgrade.upgrade,
        "promote": promote.promote,
        "stop": lifecycle.stop,
        "restart": lifecycle.restart,
        "logs": logs.logs,
        "doctor": doctor.doctor,
    },
    "Save and restore it": {
        "savepoint": savepoint.app,
        "checkpoint": checkpoint.app,
        "restore": restore.restore,
    },
    "Control it": {
        "set": live.set_,
        "get": live.get,
        "ask": ask.ask,
        "event": event.app,
        "mailbox": mailbox.app,
    },
    "Look at it": {
        "watch": jobs.watch,
        "show": jobs.show,
        "jobs": jobs.jobs,
        "ui": ui.ui,
        "recoveries": history.recoveries,
        "generations": history.generations,
    },
    "Control database": {
        "command": command.app,
        "audit": history.audit,
        "exporter": exporter.exporter,
        "forget": history.forget,
        "db": db.app,
    },
}
_FIRST: Final = """\
coordctl operates long-running PySpark Structured Streaming jobs.

  coordctl run --detach SCRIPT           run a job, and restart it when it fails
  coordctl watch JOB                     see its queries, checkpoints and blocked events
  coordctl savepoint create JOB          save it while it runs
  coordctl restore JOB REF               go back to a checkpoint or savepoint
  coordctl set JOB VALUE FIELD=CONTENT   change a live value while it runs

All commands: coordctl --help. One of them: coordctl COMMAND --help."""

app = typer.Typer(
    cls=_Commands,
    help="Operate long-running PySpark Structured Streaming jobs.",
    invoke_without_command=True,
    rich_markup_mode=None,  # its tables cut long names
    pretty_exceptions_show_locals=False,  # they may hold secrets
)
for _name, _command in (each for commands in _SECTIONS.values() for each in commands.items()):
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name, cls=_Group)
    else:
        # Options after the script of coordctl run belong to the script.
        app.command(_name, context_settings={"allow_interspersed_args": _name != "run"})(_command)


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
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(_FIRST)
