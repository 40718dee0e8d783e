"""Query ``alerts``: flags unusually late departures, with thresholds that keep the number of alerts near a budget.

The budget is a live value of the job, a column of the rows: all rows of an epoch have the same, also if it is run
again. The operator ``delay-threshold`` is partitioned by carrier. Its subtasks compare each departure with the
threshold of the carrier and report what they saw; the coordinator adapts the thresholds to the reports and broadcasts
them. It answers the question what its plan is::

    coordinator   [ Plan: budget, thresholds, what was reported ]
        | Thresholds, to all: in force in the same epoch      ^ Report per carrier, once the epoch is committed
        v                                                     |
    subtasks      [ Carriers: thresholds in force, running counts ]

All of it is exactly-once: a report contains the subtask's running count, and the coordinator compares it with the sum
of the reports. A lost or duplicate report would show immediately, and permanently.

Spark's Python workers import this module too, so it only imports what they need.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

import coord_control as cc
from coord_control.spark.worker.subtask import UserFunction

__all__ = [
    "ARROW_SCHEMA",
    "OUTPUT_SCHEMA",
    "Budget",
    "Carriers",
    "Current",
    "Plan",
    "Report",
    "ThresholdCoordinator",
    "Thresholds",
    "adapt",
    "failing_sometimes",
    "score",
]

#: There are two kinds of rows: an ``alert`` is a late flight, a ``tally`` counts the flights and alerts of a carrier on
#: a day, so that missing alerts are noticed. ``minutes`` and ``version`` are those of the threshold in force.
OUTPUT_SCHEMA: Final = (
    "kind string, day int, carrier string, minutes double, version int, "
    "flight_id int, flight int, origin string, dest string, delay int, flights int, alerts int"
)
ARROW_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("day", pa.int32()),
        ("carrier", pa.string()),
        ("minutes", pa.float64()),
        ("version", pa.int32()),
        ("flight_id", pa.int32()),
        ("flight", pa.int32()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("delay", pa.int32()),
        ("flights", pa.int32()),
        ("alerts", pa.int32()),
    ]
)

FIRST_MINUTES: Final = 60.0
_MINUTES: Final = (10.0, 600.0)
# The step for twice the wanted alerts: enough to follow the seasons, too little to follow every storm.
_STEP_MINUTES: Final = 15.0


class Budget(BaseModel):
    """The live value: how many alerts the desk can handle."""

    alerts_per_day: float


class Thresholds(BaseModel):
    """Down: the thresholds of all carriers, in minutes of delay."""

    version: int
    minutes: dict[str, float]


class Report(BaseModel):
    """Up: what a subtask did with a carrier in one epoch."""

    carrier: str
    flights: int
    alerts: int
    flights_so_far: int  #: since the beginning of the job
    last_day: int
    budget: float  #: alerts per day, in this epoch


class Carriers(BaseModel):
    """State of a subtask: the thresholds in force, and counts of its carriers since the beginning of the job."""

    version: int = 0
    minutes: dict[str, float] = {}
    flights: dict[str, int] = {}


class Seen(BaseModel):
    """What was reported about a carrier: in total, and since its threshold was adapted."""

    flights: int = 0
    alerts: int = 0
    new_flights: int = 0
    new_alerts: int = 0
    minutes: float = FIRST_MINUTES


class Plan(BaseModel):
    """State of the coordinator."""

    budget: float = 0.0  #: alerts per day, in the newest epoch
    version: int = 0
    carriers: dict[str, Seen] = {}
    reports: int = 0
    out_of_step: int = 0  #: reports whose running count is not the sum of the reports
    last_day: int = 0
    adapted_day: int = 0

    @property
    def flights(self) -> int:
        return sum(seen.flights for seen in self.carriers.values())

    @property
    def alerts(self) -> int:
        return sum(seen.alerts for seen in self.carriers.values())


class Current(cc.Request[Plan]):
    """The question to the coordinator: what is the plan now?"""


def adapt(minutes: float, alerts: int, wanted: float) -> float:
    """Return the next threshold after ``alerts`` alerts where ``wanted`` were wanted."""
    # Plus one, because a single alert of a small carrier means little. Proportional to the alerts, not to their
    # logarithm, so that the mean approaches the budget, no matter how uneven the days are.
    return _limited(minutes + _STEP_MINUTES * (alerts - wanted) / (wanted + 1))


class ThresholdCoordinator(cc.StatefulCoordinator[Plan]):
    """Adapts the thresholds to the reports."""

    def __init__(self) -> None:
        super().__init__(Plan())

    def handle_request(self, request: Current) -> Plan:
        return self.state

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Report) -> None:
        plan = self.state
        seen = plan.carriers.setdefault(event.carrier, Seen())
        seen.flights += event.flights
        seen.alerts += event.alerts
        seen.new_flights += event.flights
        seen.new_alerts += event.alerts
        plan.reports += 1
        plan.last_day = max(plan.last_day, event.last_day)
        plan.budget = event.budget
        if seen.flights != event.flights_so_far:
            plan.out_of_step += 1

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        # All reports of an epoch come before this call, so whole days are known.
        plan = self.state
        days, flights = plan.last_day - plan.adapted_day, sum(seen.new_flights for seen in plan.carriers.values())
        if days > 0 and flights:
            per_flight = plan.budget * days / flights
            for seen in plan.carriers.values():
                if seen.new_flights:
                    seen.minutes = adapt(seen.minutes, seen.new_alerts, per_flight * seen.new_flights)
                    seen.new_flights = seen.new_alerts = 0
            plan.adapted_day = plan.last_day
            plan.version += 1
            minutes = {carrier: seen.minutes for carrier, seen in plan.carriers.items()}
            self.context.broadcast(Thresholds(version=plan.version, minutes=minutes))


def score(subtask: cc.Subtask[Carriers], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Process flights in a subtask; yields rows of :data:`OUTPUT_SCHEMA`."""
    state = subtask.state
    for event in subtask.events:
        assert isinstance(event, Thresholds)
        state.version, state.minutes = event.version, event.minutes
    flights: Counter[tuple[str, int]] = Counter()
    alerts: Counter[tuple[str, int]] = Counter()
    budget = 0.0
    for batch in batches:
        budget = pc.max(batch["budget"]).as_py()
        late = _late(batch, state)
        flights.update(_keys(batch))
        alerts.update(_keys(late))
        yield late
    yield _tallies(state, flights, alerts)
    last_day = max(day for _, day in flights)
    for carrier in sorted({carrier for carrier, _ in flights}):
        seen = _of_carrier(flights, carrier)
        state.flights[carrier] = state.flights.get(carrier, 0) + seen
        subtask.send(
            Report(
                carrier=carrier,
                flights=seen,
                alerts=_of_carrier(alerts, carrier),
                flights_so_far=state.flights[carrier],
                last_day=last_day,
                budget=budget,
            )
        )


def failing_sometimes(function: UserFunction, probability: float) -> UserFunction:
    """Return ``function`` with attempts that fail with ``probability`` at the worst moment: after all their work."""

    def run(subtask: cc.Subtask[Any], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from function(subtask, batches)
        if random.random() < probability:
            raise RuntimeError("this attempt fails because --chaos was asked for")

    return run


def _limited(minutes: float) -> float:
    return round(min(max(minutes, _MINUTES[0]), _MINUTES[1]), 1)


def _late(batch: pa.RecordBatch, state: Carriers) -> pa.RecordBatch:
    minutes = pa.array([state.minutes.get(name, FIRST_MINUTES) for name in batch["carrier"].to_pylist()], pa.float64())
    is_late = pc.fill_null(pc.greater(batch["delay"], minutes), False)
    columns = {name: batch[name] for name in batch.schema.names if name in ARROW_SCHEMA.names}
    columns["minutes"] = minutes
    return _output("alert", state.version, batch.num_rows, columns).filter(is_late)


def _tallies(state: Carriers, flights: Counter[tuple[str, int]], alerts: Counter[tuple[str, int]]) -> pa.RecordBatch:
    keys = sorted(flights)
    columns = {
        "carrier": [carrier for carrier, _ in keys],
        "day": [day for _, day in keys],
        "minutes": [state.minutes.get(carrier, FIRST_MINUTES) for carrier, _ in keys],
        "flights": [flights[key] for key in keys],
        "alerts": [alerts[key] for key in keys],
    }
    return _output("tally", state.version, len(keys), columns)


def _output(kind: str, version: int, rows: int, columns: dict[str, Any]) -> pa.RecordBatch:
    columns = {"kind": [kind] * rows, "version": [version] * rows, **columns}
    arrays = [columns.get(field.name, [None] * rows) for field in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(
        [
            array if isinstance(array, pa.Array) else pa.array(array, field.type)
            for array, field in zip(arrays, ARROW_SCHEMA, strict=True)
        ],
        schema=ARROW_SCHEMA,
    )


def _keys(batch: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    return zip(batch["carrier"].to_pylist(), batch["day"].to_pylist(), strict=True)


def _of_carrier(counts: Counter[tuple[str, int]], carrier: str) -> int:
    return sum(count for (name, _), count in counts.items() if name == carrier)
