"""What all commands print alike: tables, JSON, times, errors with their exit codes.

Whatever users wrote (names, labels, payloads, paths, messages) may hold rich's markup, and characters that a terminal
obeys: everything goes through :func:`plain` or :func:`marked` on its way out.

Threading: the command's thread.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coord_control.durable.checks import Check, Verdict
from coord_control.errors import CommandFailed, CoordControlError
from coord_control.exit_codes import exit_code_of

__all__ = [
    "checks_table",
    "console",
    "human_bytes",
    "human_seconds",
    "human_time",
    "marked",
    "plain",
    "print_json",
    "print_table",
    "reported",
    "say",
    "text_table",
]

_PIPE_WIDTH: Final = 140
#: What a terminal obeys instead of showing it: controls (but line feed and tab), and what turns the writing around.
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
_COLOURS: Final = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.REFUSED: "red"}


@contextlib.contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Print an error of ours as what it is, and end with its exit code."""
    try:
        yield
    except CoordControlError as error:
        if as_json:
            print_json({"error": _error_json(error)})
        typer.secho(plain(error), fg=typer.colors.RED, err=True)
        raise typer.Exit(exit_code_of(error)) from error


def _error_json(error: CoordControlError) -> dict[str, Any]:
    document = {"type": type(error).__name__, "message": str(error), "retry": error.retry}
    if isinstance(error, CommandFailed):
        document |= {"command": error.command, "code": error.code, "fields": list(error.fields)}
    return document


def plain(value: object) -> str:
    """Text with every character that a terminal would obey written as what it is, ``\\x1b``; lines and tabs stay."""
    return _CONTROLS.sub(_spelled, str(value))


def marked(value: object) -> str:
    """As :func:`plain`, for a place where rich reads markup."""
    return escape(plain(value))


def say(text: object) -> None:
    """Print one text as it is."""
    typer.echo(plain(text))


def print_json(value: Any, *, indent: int | None = 2) -> None:
    # What JSON itself does not escape, and a terminal obeys, stands in strings only.
    typer.echo(_CONTROLS.sub(_spelled_json, json.dumps(value, indent=indent, default=str, ensure_ascii=False)))


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _spelled_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows of values, of which only the last may take several lines; nothing without rows."""
    table = text_table(title, columns, rows)
    if table.row_count:
        console().print(table)


def text_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Rows of values as they are; only the last column may take several lines."""
    table = Table(title=marked(title) or None, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column != columns[-1])
    for row in rows:
        table.add_row(*("" if value is None else marked(value) for value in row))
    return table


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
        table.add_row(marked(check.name), marked(check.subject), verdict, marked(check.found))
    out.print(table)
    for check in checks:
        if check.way_out and check.verdict is not Verdict.OK:
            subject = f"{check.name} of {check.subject}" if check.subject else check.name
            out.print(f"[{_COLOURS[check.verdict]}]{marked(subject)}[/]: {marked(check.way_out)}", soft_wrap=True)


def human_bytes(size: int) -> str:
    """1234567 -> ``1.2 MB``."""
    value, units = float(size), ["bytes", "kB", "MB", "GB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{size} bytes" if units[0] == "bytes" else f"{value:.1f} {units[0]}"


def human_seconds(seconds: float | None) -> str:
    """0.0123 -> ``12 ms``, 75 -> ``1m 15s``; nothing for None."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h" if days else f"{hours}h {minutes}m" if hours else f"{minutes}m {rest}s"


def human_time(moment: datetime | None) -> str:
    """A time in UTC, to the second; nothing for None."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
