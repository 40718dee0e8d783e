"""The report at the end of the demo, as text and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.console import Console
from rich.text import Text

from examples.flights.commands import control_address, show_job, show_savepoint
from examples.flights.data import name_of_day
from examples.flights.demo import Outcome
from examples.flights.visit import Visit

__all__ = ["as_json", "is_ok", "print_summary"]


def is_ok(outcome: Outcome, visit: Visit | None = None) -> bool:
    """Return whether all checks passed and no savepoint failed."""
    return all(check.is_ok for check in outcome.checks) and not (visit is not None and visit.has_failed)


def print_summary(console: Console, outcome: Outcome, work: Path, visit: Visit | None = None) -> None:
    """Print what was done and what was checked."""
    facts = as_json(outcome, work, visit)
    done, events, thresholds = facts["alerts"], facts["events"], facts["thresholds"]
    until = f"1 Jan to {name_of_day(done['days'])}" if done["days"] else "nothing"
    how = "" if outcome.is_complete else ", stopped before the end"
    minutes = sorted(thresholds["minutes"].values()) or [0.0]
    restarts = ", ".join(f"{name} {facts[name]['restarts']}" for name in ("alerts", "airports"))
    lines = [
        ("flights", f"{done['flights']:,}, {until}, in {facts['seconds']:.0f} s{how}"),
        ("alerts", f"{done['alerts']:,}, {done['alerts_per_day']:.1f} a day"),
        ("thresholds", f"version {thresholds['version']}, {minutes[0]:g} to {minutes[-1]:g} minutes"),
        ("airports", f"{facts['airports']['airports']}, {facts['airports']['days']} days"),
        ("epochs", f"alerts {done['epochs']}, airports {facts['airports']['epochs']}; restarts: {restarts}"),
        ("events", f"{events['up']:,} up, {events['down']:,} down"),
        ("files", f"{work}, which stays"),
    ]
    if visit is not None and visit.result is not None:
        lines.append(("savepoint", f"{visit.result.id}, by Dagster's run {visit.result.run_id}: {visit.result.path}"))
    for name, text in lines:
        _print(console, Text.assemble((f"{name:<12}", "bold"), text))
    console.print()
    for check in outcome.checks:
        mark = ("ok       ", "green") if check.is_ok else ("WRONG    ", "bold red")
        _print(console, Text.assemble(mark, check.name, f": {check.problem}" if check.problem else ""))
    if visit is not None and visit.has_failed:
        _print(console, Text.assemble(("WRONG    ", "bold red"), f"Dagster's savepoint: {visit.problem}"))
    last = "No flight is lost or counted twice." if is_ok(outcome) else "The results do not agree with the input."
    console.print()
    _print(console, Text(last, "bold green" if is_ok(outcome) else "bold red"))
    console.print()
    _print(console, Text("What it has left can be looked at:", "dim"))
    for command in facts["next_steps"].values():
        _print(console, Text(f"  {command}"))
    _print(console, Text("README.md goes through a job of your own; docs/dagster.md through Dagster's part.", "dim"))


def as_json(outcome: Outcome, work: Path, visit: Visit | None = None) -> dict[str, Any]:
    """Return the report as JSON; events and restarts count from the start of this driver, everything else from the
    start of the job."""
    last, plan, airports = outcome.last, outcome.results.plan, outcome.results.airports
    operator = last.status.operators[0]
    queries = {query.name: query for query in last.status.queries}
    return {
        "ok": is_ok(outcome, visit),
        "complete": outcome.is_complete,
        "seconds": round(last.seconds, 1),
        "generation": last.status.generation,
        "work": str(work),
        "control": control_address(work),
        "next_steps": _next_steps(work, visit),
        "alerts": {
            "epochs": outcome.epochs["alerts"],
            "restarts": queries["alerts"].restarts,
            "days": plan.last_day,
            "flights": plan.flights,
            "alerts": plan.alerts,
            "alerts_per_day": round(plan.alerts / plan.last_day, 2) if plan.last_day else 0.0,
        },
        "airports": {
            "epochs": outcome.epochs["airports"],
            "restarts": queries["airports"].restarts,
            "days": pc.count_distinct(airports["day"]).as_py(),
            "airports": pc.count_distinct(airports["airport"]).as_py(),
            "departures": pc.sum(airports["departures"], min_count=0).as_py(),
            "arrivals": pc.sum(airports["arrivals"], min_count=0).as_py(),
        },
        "events": {
            "up": operator.totals.events_up,
            "down": operator.totals.events_down,
            "reports": plan.reports,
        },
        "attempts_failed": operator.totals.attempts_failed,
        "thresholds": {
            "version": plan.version,
            "budget": plan.budget,
            "minutes": {carrier: seen.minutes for carrier, seen in sorted(plan.carriers.items())},
        },
        "dagster": None if visit is None else visit.facts(),
        "checks": [{"name": check.name, "ok": check.is_ok, "problem": check.problem} for check in outcome.checks],
    }


def _next_steps(work: Path, visit: Visit | None) -> dict[str, str]:
    """Return commands by their purpose; they need neither the job nor Dagster."""
    steps = {"show_job": show_job(control_address(work))}
    if visit is not None and visit.result is not None:
        steps["show_savepoint"] = show_savepoint(visit.result.path)
    return steps


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
