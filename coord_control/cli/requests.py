"""The common part of commands that use the control database: client, waiting with progress, results.

Threads: the command's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from coord_control.cli.output import checks_table, marked, plain, print_json, reported, say
from coord_control.control.client.command_wait import WAITING, OnProgress, progress_text
from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import CommandProgress, CommandResult, EventStage, RestoreResult
from coord_control.durable.restore.checks import Check
from coord_control.exit_codes import ExitCode
from coord_control.storage.records import CommandRecord

__all__ = ["connected", "finish"]


@contextlib.contextmanager
def connected(control: str | None, as_json: bool) -> Iterator[ControlClient]:
    """Open a client for the block; an error of the package ends the command with its message and exit code."""
    with reported(as_json), ControlClient(control) as client:
        yield client


def finish(
    client: ControlClient,
    command: CommandRecord,
    *,
    wait: bool,
    timeout: float | None,
    as_json: bool,
    until: EventStage | None = None,
) -> CommandResult | None:
    """Wait for a command, show its progress and print its result; without ``wait`` only print its id.

    Args:
        until: of a control event: how far it has to be; None for the end of the command.

    Raises:
        CommandFailed, CommandTimeout, JobNotRunning: as ``ControlClient.wait``.
        typer.Exit: Ctrl-C was pressed; the command continues.
    """
    if not wait:
        if as_json:
            print_json(command.to_json())
        else:
            say(f"command {command.id} is {command.state}; check it with: coordctl command show {command.id}")
        return None
    result = _wait(command, _waiting(client, command, timeout, until), is_quiet=as_json)
    if as_json:
        print_json(client.command(command.id).to_json())
    else:
        if isinstance(result, RestoreResult) and result.checks:
            checks_table([Check.of_json(fields) for fields in result.checks])
        say(result.text(command.job))
    return result


def _waiting(
    client: ControlClient, command: CommandRecord, timeout: float | None, until: EventStage | None
) -> Callable[[OnProgress | None], CommandResult]:
    if until is None:
        return lambda on_progress: client.wait(command, timeout, on_progress=on_progress)
    return lambda on_progress: client.wait_event(command, until, timeout, on_progress=on_progress)


def _wait(
    command: CommandRecord, wait: Callable[[OnProgress | None], CommandResult], *, is_quiet: bool
) -> CommandResult:
    shown = Console(stderr=True)
    try:
        if is_quiet:
            return wait(None)
        if not shown.is_terminal:
            return wait(_Lines())
        with _bar(shown) as bar:
            return wait(_Bar(bar, command))
    except KeyboardInterrupt:
        typer.echo(
            f"command {command.id} continues: check it with coordctl command show {command.id}, or cancel it with "
            f"coordctl command cancel {command.id}",
            err=True,
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None


class _Lines:
    """Progress without a terminal: one line for each change."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, command: CommandRecord) -> None:
        text = progress_text(command)
        if text != self._last and not command.is_finished:
            typer.echo(plain(text), err=True)
        self._last = text


class _Bar:
    """Progress on a terminal: a bar of the subtasks that have passed the boundary."""

    def __init__(self, bar: Progress, command: CommandRecord) -> None:
        self._bar = bar
        self._task = bar.add_task(command.kind.words, total=None, detail=WAITING)

    def __call__(self, command: CommandRecord) -> None:
        found = _progress(command)
        self._bar.update(
            self._task,
            total=found.subtasks,
            completed=found.passed_subtasks or 0,
            detail=marked(progress_text(command)),
        )


def _bar(shown: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=shown,
        transient=True,
    )


def _progress(command: CommandRecord) -> CommandProgress:
    return CommandProgress.model_validate(command.progress or {})
