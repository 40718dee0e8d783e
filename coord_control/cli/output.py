"""Output of all commands: tables, JSON, times, errors with their exit codes.

Text from users (names, labels, payloads, paths, messages) may contain rich's markup and terminal control characters:
all output goes through :func:`plain` or :func:`marked`.

Threading: the command's thread.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coord_control.control.wording import CONTROLS, human_bytes, human_seconds, human_time, plain
from coord_control.durable.restore.checks import Check, Verdict
from coord_control.errors import CommandFailed, CoordControlError
from coord_control.exit_codes import exit_code_of

__all__ = [
    "checks_table",
    "confirm",
    "console",
    "human_bytes",
    "human_seconds",
    "human_time",
    "marked",
    "plain",
    "plain_table",
    "print_json",
    "print_table",
    "reported",
    "say",
    "text_table",
    "warn",
]

_PIPE_WIDTH: Final = 100_000  # never fold piped output, so that paths can be copied and searched
_COLOURS: Final = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.REFUSED: "red"}


@contextlib.contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Print an error of the package and end with its exit code."""
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


def marked(value: object) -> str:
    """As :func:`plain`, and escape rich's markup."""
    return escape(plain(value))


def say(text: object) -> None:
    """Print a text without markup."""
    typer.echo(plain(text))


def warn(text: object) -> None:
    """Print a warning to standard error."""
    typer.secho(plain(text), fg=typer.colors.YELLOW, err=True)


def confirm(question: object) -> None:
    """Ask a question, and return only if the answer is yes.

    Raises:
        typer.Abort: the answer is no, or there is no answer.
    """
    try:
        is_agreed = typer.confirm(plain(question), err=True)
    except typer.Abort:
        typer.echo("\naborted (no answer); use --yes to skip the question", err=True)
        raise
    if not is_agreed:
        raise typer.Abort


def print_json(value: Any, *, indent: int | None = 2) -> None:
    # Control characters that JSON does not escape occur in strings only.
    typer.echo(CONTROLS.sub(_spelled_json, json.dumps(value, indent=indent, default=str, ensure_ascii=False)))


def _spelled_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows of values; only the last column may wrap. Print nothing without rows."""
    table = text_table(title, columns, rows)
    if table.row_count:
        console().print(table)


def text_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table of values without markup; only the last column may wrap."""
    table = plain_table(title)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column != columns[-1])
    for row in rows:
        table.add_row(*("" if value is None else marked(value) for value in row))
    return table


def plain_table(title: str = "") -> Table:
    """Return an empty table; with a line below its head on a terminal, where no cell makes it too long."""
    line = box.SIMPLE_HEAD if Console().is_terminal else None
    return Table(title=marked(title) or None, title_justify="left", box=line)


class _Pipe(io.StringIO):
    """Standard output without blanks at the ends of lines: tables are padded to their longest path or message."""

    def __init__(self) -> None:
        super().__init__()
        self._out = sys.stdout  # not looked up later: a live screen replaces it

    def write(self, text: str) -> int:
        self._out.write(re.sub(r" +$", "", text, flags=re.MULTILINE))
        return len(text)

    def flush(self) -> None:
        self._out.flush()


def console() -> Console:
    """Return a console as wide as the terminal, or as wide as its output if it is piped."""
    found = Console()
    return found if found.is_terminal else Console(file=_Pipe(), width=_PIPE_WIDTH)


def checks_table(checks: Sequence[Check]) -> None:
    """Print the checks before a restore, and what to do about those that failed."""
    out = console()
    table = plain_table()
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
