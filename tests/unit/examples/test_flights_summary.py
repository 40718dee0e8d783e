"""The check at the end of the demo finds what it is there for: each test breaks one thing in results that are right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from examples.flights.alerts import ARROW_SCHEMA, Plan, Seen
from examples.flights.summary import Results, check

Row = dict[str, Any]

DAYS = 3
CARRIERS = ("AA", "UA")
THRESHOLD = 60.0


def flights() -> pa.Table:
    """Four flights per carrier and day: one cancelled, one on time, two late."""
    rows = [
        {"day": day, "carrier": carrier, "flight": number, "origin": "JFK", "dest": "SFO", "delay": delay}
        for day in range(1, DAYS + 1)
        for carrier in CARRIERS
        for number, delay in enumerate((None, 5, 61, 200))
    ]
    return pa.Table.from_pylist([{"flight_id": number, **row} for number, row in enumerate(rows)])


def right_results(days: int = DAYS) -> Results:
    rows = [row for row in flights().to_pylist() if row["day"] <= days]
    alerts = [
        {"kind": "alert", **row, "minutes": THRESHOLD, "version": row["day"]}
        for row in rows
        if (row["delay"] or 0) > 60
    ]
    tallies = [
        {
            "kind": "tally",
            "day": day,
            "carrier": carrier,
            "minutes": THRESHOLD,
            "version": day,
            "flights": 4,
            "alerts": 2,
        }
        for day in range(1, days + 1)
        for carrier in CARRIERS
    ]
    airports = [
        {"airport": airport, "day": day, "departures": departures, "arrivals": 8 - departures}
        for day in range(1, days + 1)
        for airport, departures in (("JFK", 8), ("SFO", 0))
    ]
    carriers = {carrier: Seen(flights=4 * days, alerts=2 * days) for carrier in CARRIERS}
    plan = Plan(budget=25, carriers=carriers, reports=2 * days, last_day=days)
    return Results(pa.Table.from_pylist(alerts + tallies, schema=ARROW_SCHEMA), pa.Table.from_pylist(airports), plan)


def problems(results: Results, *, is_complete: bool = True) -> dict[str, str]:
    checks = check(flights(), results, DAYS, is_complete)
    return {one.name: one.problem for one in checks if one.problem is not None}


def with_alerts(results: Results, rows: list[Row]) -> Results:
    return replace(results, alerts=pa.Table.from_pylist(rows, schema=ARROW_SCHEMA))


def only_problem(results: Results) -> str:
    found = problems(results)
    assert len(found) == 1, found
    return " ".join(next(iter(found.items())))


def first(rows: list[Row], kind: str) -> Row:
    return next(row for row in rows if row["kind"] == kind)


def test_right_results_have_no_problem() -> None:
    assert problems(right_results()) == {}
    assert Counter(row["kind"] for row in right_results().alerts.to_pylist()) == {"alert": 12, "tally": 6}


def test_a_stopped_job_may_have_fewer_days_but_whole_ones() -> None:
    assert problems(right_results(days=2), is_complete=False) == {}
    assert set(problems(right_results(days=2))) == {
        "alerts: every day is there, none too many",
        "airports: every day is there, none too many",
    }


def test_a_stopped_job_may_have_done_nothing() -> None:
    nothing = Results(ARROW_SCHEMA.empty_table(), right_results().airports.slice(0, 0), Plan(budget=25))
    assert problems(nothing, is_complete=False) == {}


@pytest.mark.parametrize(("change", "sign"), [(-1, "3 instead of 4"), (1, "5 instead of 4")])
def test_a_flight_that_the_operator_lost_or_doubled(change: int, sign: str) -> None:
    rows = right_results().alerts.to_pylist()
    first(rows, "tally")["flights"] += change
    problem = only_problem(with_alerts(right_results(), rows))
    assert sign in problem
    assert "'AA', 1" in problem


def test_an_epoch_written_twice() -> None:
    rows = right_results().alerts.to_pylist()
    found = problems(with_alerts(right_results(), [*rows, *(row for row in rows if row["day"] == 2)]))
    assert "tallied more than once" in found["alerts: flights per carrier and day"]
    assert "alerted more than once" in found["alerts: each late flight once, and no other"]


def test_a_missing_alert() -> None:
    rows = right_results().alerts.to_pylist()
    lost = first(rows, "alert")
    found = problems(with_alerts(right_results(), [row for row in rows if row is not lost]))
    assert found["alerts: each late flight once, and no other"].startswith("late flights without an alert: 2;")
    assert "events: reports add up to the flights and alerts of each carrier" in found


def test_an_alert_without_reason() -> None:
    rows = right_results().alerts.to_pylist()
    rows.append({**first(rows, "alert"), "flight_id": 1, "delay": 5})
    found = problems(with_alerts(right_results(), rows))
    assert "alerts without reason: 1" in found["alerts: each late flight once, and no other"]


def test_an_alert_that_says_something_else_than_its_flight() -> None:
    rows = right_results().alerts.to_pylist()
    first(rows, "alert")["delay"] += 1
    assert "something else than their flights: 2" in only_problem(with_alerts(right_results(), rows))


def test_an_alert_with_another_threshold_than_the_one_in_force() -> None:
    rows = right_results().alerts.to_pylist()
    first(rows, "tally")["minutes"] = 100.0
    assert "without an alert: none; alerts without reason: 2" in only_problem(with_alerts(right_results(), rows))


def test_a_tally_that_counts_other_alerts_than_there_are() -> None:
    rows = right_results().alerts.to_pylist()
    first(rows, "tally")["alerts"] += 1
    assert "2 instead" not in only_problem(with_alerts(right_results(), rows))


def test_subtasks_that_used_different_versions_in_one_epoch() -> None:
    rows = right_results().alerts.to_pylist()
    for row in rows:
        if row["carrier"] == "UA" and row["day"] == 3:
            row["version"] = 2
    assert "days with several versions: 3" in only_problem(with_alerts(right_results(), rows))


def test_reports_that_do_not_add_up() -> None:
    results = right_results()
    results.plan.carriers["UA"].flights += 1
    assert "UA: 13 instead of 12" in only_problem(results)


def test_reports_out_of_step() -> None:
    results = right_results()
    results.plan.out_of_step = 2
    assert "2 reports of 6" in only_problem(results)


def test_a_lost_departure() -> None:
    results = right_results()
    rows = results.airports.to_pylist()
    rows[0]["departures"] -= 1
    problem = only_problem(replace(results, airports=pa.Table.from_pylist(rows)))
    assert "('JFK', 1, 'departures'): 7 instead of 8" in problem


def test_a_lost_day_in_the_middle() -> None:
    rows = [row for row in right_results().alerts.to_pylist() if row["day"] != 2]
    found = problems(with_alerts(right_results(), rows), is_complete=False)
    assert found["alerts: every day is there, none too many"] == "missing: 2; too many: none"
