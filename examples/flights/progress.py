"""The progress display while the job runs: live in a terminal, one line every few seconds elsewhere.

What it shows of the thresholds it asks the running coordinator, like any other program on any machine.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

import coord_control as cc
from coord_control.protocol.status import QueryStatus
from examples.flights.alerts import Current, Plan
from examples.flights.data import name_of_day
from examples.flights.demo import JOB, OPERATOR, Moment

__all__ = ["Progress"]

_LINE_SECONDS: Final = 3.0
_ASK_SECONDS: Final = 1.0
_CARRIERS_PER_LINE: Final = 4
_STATE_STYLES: Final = {"running": "green", "restarting": "yellow", "paused": "yellow", "failed": "bold red"}


class Progress:
    """Displays moments; a context manager, so that the terminal is always restored.

    Args:
        control: the URL of the job's control database.
    """

    def __init__(self, console: Console, control: str) -> None:
        self._console = console
        self._client = cc.ControlClient(control)
        self._plan, self._next_ask = Plan(), 0.0
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Restore the terminal; may be called again, from any thread."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, moment: Moment) -> None:
        """Display the current state of the job."""
        if self._live is not None:
            self._live.update(_display(moment, self._asked(moment)))
        elif moment.seconds >= self._next_line:
            self._next_line = moment.seconds + _LINE_SECONDS
            self.say(_line(moment, self._asked(moment)))

    def _asked(self, moment: Moment) -> Plan:
        if moment.seconds >= self._next_ask and not moment.is_stopping:
            self._next_ask = moment.seconds + _ASK_SECONDS
            with contextlib.suppress(cc.CoordControlError):  # it restarts, or ends: the last answer stays
                self._plan = self._client.ask(JOB, OPERATOR, Current(), timeout=_ASK_SECONDS)
        return self._plan


def _display(moment: Moment, plan: Plan) -> RenderableType:
    parts = [_head(moment), _queries(moment, plan), _subtasks(moment), _thresholds(plan)]
    spaced = [item for part in parts for item in (part, Text())]
    return Group(*spaced[:-1])


def _head(moment: Moment) -> RenderableType:
    totals = moment.status.operators[0].totals
    line = Text.assemble(("flights of 2013", "bold"), f"  {moment.seconds:.0f} s")
    if moment.status.generation > 1:
        line.append(f"  generation {moment.status.generation}")
    line.append(f"  events: {totals.events_up:,} up, {totals.events_down:,} down")
    if totals.attempts_failed:
        line.append(f"  failed attempts: {totals.attempts_failed}", "yellow")
    line.append(f"  {_what_next(moment)}", "dim")
    return line


def _what_next(moment: Moment) -> str:
    if moment.is_stopping:
        return "stopping at the end of the epochs"
    return "idle; Ctrl-C ends it" if moment.is_idle else "Ctrl-C stops"


def _queries(moment: Moment, plan: Plan) -> RenderableType:
    table = _table("", "day", "", "state", ">epochs", ">rows", ">last epoch", ">restarts")
    table.add_row("feeder", name_of_day(moment.days_fed), _bar(moment.days_fed, moment.days), "", "", "", "", "")
    reached = {"alerts": plan.last_day, "airports": moment.airports_day}
    rows = {"alerts": moment.status.operators[0].totals.rows_in, "airports": moment.airports_flights}
    for query in moment.status.queries:
        table.add_row(
            query.name,
            name_of_day(reached[query.name]),
            _bar(reached[query.name], moment.days),
            Text(query.state, _STATE_STYLES.get(query.state, "")),
            f"{query.committed + 1}",
            f"{rows[query.name]:,}",
            f"{_epoch_seconds(query):.1f} s",
            Text(str(query.restarts), "yellow" if query.restarts else ""),
        )
    return table


def _subtasks(moment: Moment) -> RenderableType:
    table = _table(
        moment.status.operators[0].uid, "gateway", ">events waiting", ">blocked now", ">blocked", ">blocked time"
    )
    for gateway in moment.status.operators[0].gateways:  # none while the query is restarting
        table.add_row(
            f"subtask {gateway.subtask}",
            Text("open", "green") if gateway.is_open else Text("closed", "yellow"),
            str(gateway.mailbox),
            Text(str(gateway.blocked), "yellow" if gateway.blocked else ""),
            f"{gateway.blocked_total:,}",
            f"{gateway.blocked_seconds:.2f} s",
        )
    return table


def _thresholds(plan: Plan) -> RenderableType:
    per_day = plan.alerts / plan.last_day if plan.last_day else 0.0
    head = Text.assemble(
        ("thresholds", "bold"),
        f"  version {plan.version}  budget now {plan.budget:g} alerts a day, so far {per_day:.1f} ({plan.alerts:,})",
    )
    grid = Table.grid(padding=(0, 4))
    carriers = sorted(plan.carriers.items())
    texts = [Text.assemble((name, "bold"), f" {seen.minutes:6.1f} min") for name, seen in carriers]
    for first in range(0, len(texts), _CARRIERS_PER_LINE):
        grid.add_row(*texts[first : first + _CARRIERS_PER_LINE])
    return Group(head, grid)


def _table(*columns: str) -> Table:
    """Return an empty table; a column whose name starts with ``>`` is aligned to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table


def _bar(day: int, days: int) -> ProgressBar:
    return ProgressBar(total=days, completed=day, width=24)


def _epoch_seconds(query: QueryStatus) -> float:
    return float(query.progress.get("batchDuration", 0)) / 1000


def _epoch(query: QueryStatus) -> str:
    return "no epoch yet" if query.committed < 0 else f"epoch {query.committed}"


def _line(moment: Moment, plan: Plan) -> str:
    operator = moment.status.operators[0]
    reached = {"alerts": plan.last_day, "airports": moment.airports_day}
    queries = "; ".join(
        f"{query.name} {query.state}, {_epoch(query)}, day {reached[query.name]}, {query.restarts} restarts"
        for query in moment.status.queries
    )
    return (
        f"{moment.seconds:.0f} s: day {moment.days_fed} of {moment.days} fed; {queries}; "
        f"events {operator.totals.events_up} up, {operator.totals.events_down} down, "
        f"thresholds version {plan.version}, {plan.alerts} alerts"
    )
