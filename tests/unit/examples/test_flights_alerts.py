"""Query `alerts` of the flights without Spark: thresholds, the function of the subtasks, the coordinator's books."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coord_control as cc
from coord_control.spark.worker.model_codec import EventTypes
from examples.flights.alerts import (
    ARROW_SCHEMA,
    Carriers,
    Current,
    Report,
    ThresholdCoordinator,
    Thresholds,
    adapt,
    failing_sometimes,
    score,
)

UP = EventTypes("delay-threshold", "up", [Report])

minutes = st.floats(10, 600)
budgets = st.floats(0, 1000)
BUDGET = 25.0


def flight(flight_id: int, carrier: str, day: int, delay: int | None) -> dict[str, Any]:
    places = {"flight": flight_id + 100, "origin": "JFK", "dest": "SFO", "scheduled": 600, "budget": BUDGET}
    return {"flight_id": flight_id, "day": day, "carrier": carrier, **places, "delay": delay}


def subtask(state: Carriers, *events: Thresholds) -> cc.Subtask[Carriers]:
    return cc.Subtask(0, 4, 0, state, list(events), UP)


def run(one: cc.Subtask[Carriers], *batches: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Any]]:
    """The rows that come out, and the reports."""
    rows: list[dict[str, Any]] = []
    for batch in score(one, iter([pa.RecordBatch.from_pylist(batch) for batch in batches])):
        assert batch.schema == ARROW_SCHEMA
        rows += batch.to_pylist()
    return rows, UP.decode(one._outbox)


def report(flights: int, so_far: int, alerts: int = 0) -> Report:
    return Report(carrier="AA", flights=flights, alerts=alerts, flights_so_far=so_far, last_day=1, budget=BUDGET)


@given(minutes, st.integers(0, 1000), budgets)
def test_a_threshold_moves_against_the_error(before: float, alerts: int, wanted: float) -> None:
    after = adapt(before, alerts, wanted)
    assert 10 <= after <= 600
    if alerts > wanted:
        assert after >= round(before, 1)
    else:
        assert after <= round(before, 1)


def test_a_threshold_stays_when_as_many_alerts_came_as_were_wanted() -> None:
    assert adapt(60.0, 25, 25.0) == 60.0


def test_only_delays_above_the_threshold_are_alerts() -> None:
    batch = [flight(1, "AA", 1, 60), flight(2, "AA", 1, 61), flight(3, "AA", 1, None)]
    rows, _ = run(subtask(Carriers()), batch)
    alerts = [row for row in rows if row["kind"] == "alert"]
    assert [(row["flight_id"], row["delay"], row["minutes"]) for row in alerts] == [(2, 61, 60.0)]


def test_thresholds_are_in_force_before_the_rows_of_their_epoch() -> None:
    events = [Thresholds(version=1, minutes={"AA": 5.0}), Thresholds(version=2, minutes={"AA": 30.0})]
    one = subtask(Carriers(), *events)
    rows, _ = run(one, [flight(1, "AA", 1, 20), flight(2, "AA", 1, 31)])
    assert [(row["flight_id"], row["version"]) for row in rows if row["kind"] == "alert"] == [(2, 2)]
    assert one.state.version == 2


def test_tallies_count_per_carrier_and_day_over_all_batches() -> None:
    rows, _ = run(
        subtask(Carriers()),
        [flight(1, "AA", 1, 90), flight(2, "UA", 1, 0)],
        [flight(3, "AA", 1, 0), flight(4, "AA", 2, 70)],
    )
    tallies = {(row["carrier"], row["day"]): (row["flights"], row["alerts"]) for row in rows if row["kind"] == "tally"}
    assert tallies == {("AA", 1): (2, 1), ("AA", 2): (1, 1), ("UA", 1): (1, 0)}


def test_a_report_per_carrier_carries_the_running_count() -> None:
    one = subtask(Carriers(flights={"AA": 10}))
    _, reports = run(one, [flight(1, "AA", 3, 90), flight(2, "UA", 4, 0), flight(3, "AA", 4, 0)])
    assert reports == [
        Report(carrier="AA", flights=2, alerts=1, flights_so_far=12, last_day=4, budget=BUDGET),
        Report(carrier="UA", flights=1, alerts=0, flights_so_far=1, last_day=4, budget=BUDGET),
    ]
    assert one.state.flights == {"AA": 12, "UA": 1}


def test_chaos_strikes_when_all_work_is_done() -> None:
    one = subtask(Carriers())
    batches = iter([pa.RecordBatch.from_pylist([flight(1, "AA", 1, 90)])])
    rows = failing_sometimes(score, 1.0)(one, batches)
    assert next(rows).num_rows == 1
    with pytest.raises(RuntimeError, match="--chaos"):
        list(rows)
    assert one.state.flights == {"AA": 1}


@pytest.mark.parametrize(
    ("reports", "out_of_step"),
    [
        pytest.param([report(3, 3), report(4, 7)], 0, id="each once"),
        pytest.param([report(3, 3), report(3, 3), report(4, 7)], 2, id="one doubled"),
        pytest.param([report(4, 7)], 1, id="one lost"),
    ],
)
def test_the_coordinator_notices_reports_that_are_lost_or_doubled(reports: list[Report], out_of_step: int) -> None:
    coordinator = ThresholdCoordinator()
    for event in reports:
        coordinator.handle_event_from_operator(0, 0, event)
    assert coordinator.state.out_of_step == out_of_step
    assert coordinator.state.flights == sum(event.flights for event in reports)
    assert coordinator.handle_request(Current()).budget == BUDGET, "that of the epoch in which they were made"


def test_the_state_of_the_coordinator_survives() -> None:
    before = ThresholdCoordinator()
    before.handle_event_from_operator(0, 0, report(3, 3, alerts=1))
    after = ThresholdCoordinator()
    after.restore(before.snapshot())
    assert after.state == before.state
