"""What all commands print alike: tables, JSON, errors with their exit codes.

Threading: the command's thread.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coord_control.durable.checks import Check, Verdict
from coord_control.errors import CoordControlError
from coord_control.exit_codes import exit_code_of

__all__ = ["checks_table", "human_bytes", "print_json", "print_table", "reported"]

_PIPE_WIDTH: Final = 140
_COLOURS: Final = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.REFUSED: "red"}


@contextlib.contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Print an error of ours as what it is, and end with its exit code."""
    try:
        yield
    except CoordControlError as error:
        if as_json:
            print_json({"error": {"type": type(error).__name__, "message": str(error), "retry": error.retry}})
        typer.secho(str(error), fg=typer.colors.RED, err=True)
        raise typer.Exit(exit_code_of(error)) from error


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows of values, of which only the last may take several lines; nothing without rows."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column != columns[-1])
    for row in rows:
        table.add_row(*("" if value is None else escape(str(value)) for value in row))
    if table.row_count:
        console().print(table)


def console() -> Console:
    """As wide as the terminal; wide enough for a table elsewhere."""
    found = Console()
    return found if found.is_terminal else Console(width=max(found.width, _PIPE_WIDTH))


def checks_table(checks: Sequence[Check]) -> None:
    """Print the checks before a restore, and below them the ways out."""
    out = console()
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("check", "of", "", "found"):
        table.add_column(title, overflow="fold")
    for check in checks:
        verdict = f"[{_COLOURS[check.verdict]}]{check.verdict.value}[/]"
        table.add_row(escape(check.name), escape(check.subject), verdict, escape(check.found))
    out.print(table)
    for check in checks:
        if check.way_out and check.verdict is not Verdict.OK:
            subject = f"{check.name} of {check.subject}" if check.subject else check.name
            out.print(f"[{_COLOURS[check.verdict]}]{escape(subject)}[/]: {escape(check.way_out)}", soft_wrap=True)


def human_bytes(size: int) -> str:
    """1234567 -> ``1.2 MB``."""
    value, units = float(size), ["bytes", "kB", "MB", "GB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{size} bytes" if units[0] == "bytes" else f"{value:.1f} {units[0]}"
