"""The end: was every flight counted once, and is every alert right? Checked against the input, without Spark.

All checks are pure functions of tables. Each names what differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from examples.flights.alerts import Plan
from examples.flights.data import flights_until

__all__ = ["Check", "Results", "check"]

Key = TypeVar("Key", bound=Hashable)
Row = dict[str, Any]

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check; ``problem`` is None if it passed."""

    name: str
    problem: str | None

    @property
    def is_ok(self) -> bool:
        return self.problem is None


@dataclass(frozen=True, slots=True)
class Results:
    """The output of the job.

    Attributes:
        alerts: the rows in the sink of query ``alerts``, of committed epochs.
        airports: the rows in the result of query ``airports``, of committed epochs.
        plan: the state of the coordinator.
    """

    alerts: pa.Table
    airports: pa.Table
    plan: Plan


def check(flights: pa.Table, results: Results, days: int, is_complete: bool) -> list[Check]:
    """Compare the results with the input.

    Args:
        flights: the complete input.
        days: how many days were fed.
        is_complete: whether all days must be in the results; if the job was stopped, all days up to some day must be.
    """
    rows = results.alerts.to_pylist()
    tallies = [row for row in rows if row["kind"] == "tally"]
    alerts = [row for row in rows if row["kind"] == "alert"]
    alert_days = {row["day"] for row in tallies}
    airport_days = set(results.airports["day"].to_pylist())
    seen = flights_until(flights, len(alert_days)).to_pylist()
    visited = flights_until(flights, len(airport_days))
    found = [
        ("alerts: every day is there, none too many", _days(alert_days, days, is_complete)),
        ("alerts: flights per carrier and day", _flights(tallies, seen)),
        ("alerts: one version of the thresholds per epoch, in all subtasks", _versions(tallies)),
        ("alerts: each late flight once, and no other", _late_flights(tallies, alerts, seen)),
        ("events: reports add up to the flights and alerts of each carrier", _reports(results.plan, seen, alerts)),
        ("events: no report lost, doubled or out of step", _in_step(results.plan)),
        ("airports: every day is there, none too many", _days(airport_days, days, is_complete)),
        ("airports: departures and arrivals per airport and day", _airports(results.airports, visited)),
    ]
    return [Check(name, problem) for name, problem in found]


def _days(found: set[int], days: int, is_complete: bool) -> str | None:
    wanted = range(1, (days if is_complete else len(found)) + 1)
    missing, extra = sorted(set(wanted) - found), sorted(found - set(range(1, days + 1)))
    if missing or extra:
        return f"missing: {_some(missing)}; too many: {_some(extra)}"
    return None


def _flights(tallies: list[Row], seen: list[Row]) -> str | None:
    wanted = Counter((row["carrier"], row["day"]) for row in seen)
    found: Counter[tuple[str, int]] = Counter()
    for row in tallies:
        found[row["carrier"], row["day"]] += row["flights"]
    if twice := _twice((row["carrier"], row["day"]) for row in tallies):
        return f"tallied more than once: {_some(twice)}"
    return _differences(wanted, found)


def _versions(tallies: list[Row]) -> str | None:
    versions: dict[int, set[int]] = {}
    for row in tallies:
        versions.setdefault(row["day"], set()).add(row["version"])
    mixed = sorted(day for day, used in versions.items() if len(used) > 1)
    return f"days with several versions: {_some(mixed)}" if mixed else None


def _late_flights(tallies: list[Row], alerts: list[Row], seen: list[Row]) -> str | None:
    if twice := _twice(row["flight_id"] for row in alerts):
        return f"flights alerted more than once: {_some(twice)}"
    in_force = {(row["carrier"], row["day"]): row for row in tallies}
    wanted: dict[int, Row] = {}
    for flight in seen:
        tally = in_force.get((flight["carrier"], flight["day"]))
        if tally is not None and flight["delay"] is not None and flight["delay"] > tally["minutes"]:
            wanted[flight["flight_id"]] = {**flight, "minutes": tally["minutes"], "version": tally["version"]}
    found = {row["flight_id"]: row for row in alerts}
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or extra:
        return f"late flights without an alert: {_some(missing)}; alerts without reason: {_some(extra)}"
    fields = ("day", "carrier", "flight", "origin", "dest", "delay", "minutes", "version")
    wrong = sorted(id_ for id_, row in found.items() if any(row[name] != wanted[id_][name] for name in fields))
    if wrong:
        return f"alerts that say something else than their flights: {_some(wrong)}"
    told = Counter((row["carrier"], row["day"]) for row in alerts)
    return _differences(told, {key: row["alerts"] for key, row in in_force.items()})


def _reports(plan: Plan, seen: list[Row], alerts: list[Row]) -> str | None:
    flights = _differences(
        Counter(row["carrier"] for row in seen), {name: carrier.flights for name, carrier in plan.carriers.items()}
    )
    return flights or _differences(
        Counter(row["carrier"] for row in alerts), {name: carrier.alerts for name, carrier in plan.carriers.items()}
    )


def _in_step(plan: Plan) -> str | None:
    return f"{plan.out_of_step} reports of {plan.reports}" if plan.out_of_step else None


def _airports(airports: pa.Table, flights: pa.Table) -> str | None:
    wanted: Counter[tuple[str, int, str]] = Counter()
    for side, name in (("departures", "origin"), ("arrivals", "dest")):
        for row in flights.group_by([name, "day"]).aggregate([([], "count_all")]).to_pylist():
            wanted[row[name], row["day"], side] = row["count_all"]
    found = {
        (row["airport"], row["day"], side): row[side]
        for row in airports.to_pylist()
        for side in ("departures", "arrivals")
    }
    return _differences(wanted, found)


def _differences(wanted: Mapping[Key, int], found: Mapping[Key, int]) -> str | None:
    different = [
        f"{key}: {found.get(key, 0)} instead of {wanted.get(key, 0)}"
        for key in sorted(wanted.keys() | found.keys(), key=str)
        if wanted.get(key, 0) != found.get(key, 0)
    ]
    return _some(different) if different else None


def _twice(keys: Iterable[Key]) -> list[Key]:
    return [key for key, count in Counter(keys).items() if count > 1]


def _some(items: list[Any]) -> str:
    if not items:
        return "none"
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(map(str, items[:_SHOWN])) + more
